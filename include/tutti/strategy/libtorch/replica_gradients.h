// Gradients of one replica's libtorch parameters, in memory that a strategy reduces.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tutti/cross_device_ops/libtorch/tensors.h"
#include "tutti/strategy/replica_context.h"

namespace tutti::torch::internal {

/// Memory of one replica's values. Reductions over all replicas read it without a copy.
class ReplicaMemory : public FlatMemory {
 public:
  /// Allocates the memory. Must be called after the last add().
  void allocate() {
    flat_ = MutableTensor(Shape{static_cast<std::int64_t>(count())}, all().dtype, Device{});
    const auto owner = std::make_shared<MutableTensor>(flat_);
    use(std::shared_ptr<std::byte>(owner, owner->data()));
  }
  Gradient value() const { return flat_.freeze(); }
  void take(const Gradient& combined) const {
    const auto bytes = combined.dense().bytes();
    if (bytes.data() != all().data) std::memcpy(all().data, bytes.data(), bytes.size());
  }

 private:
  MutableTensor flat_;
};

/// Gradients of one replica's parameters, as views of one buffer per type. The gradients are
/// followed by one flag per parameter: 1 if this replica has a gradient. The sum of a flag over
/// replicas is 0 if no replica used the parameter.
class ReplicaGradients {
 public:
  explicit ReplicaGradients(const std::vector<::torch::Tensor>& parameters) {
    std::map<DType, std::vector<::torch::Tensor>> by_type;
    for (const ::torch::Tensor& each : parameters) {
      by_type[to_dtype(each.scalar_type())].push_back(each);
    }
    for (const auto& [dtype, tensors] : by_type) add(tensors);
  }

  void all_reduce(ReduceOp op, ReplicaContext& replica, SourceLocation where) {
    const ::torch::NoGradGuard no_grad;
    std::vector<Gradient> values;
    for (Group& group : groups_) values.push_back(gather(group));
    const std::vector<Gradient> combined = replica.all_reduce(op, values, where);
    for (std::size_t i = 0; i < groups_.size(); ++i) scatter(groups_[i], combined[i]);
  }

 private:
  struct Group {
    std::vector<::torch::Tensor> parameters, views;
    ReplicaMemory memory = {};
    ::torch::Tensor is_used = {};  // one flag per parameter
  };

  void add(const std::vector<::torch::Tensor>& parameters) {
    Group& group = groups_.emplace_back(Group{parameters, parameters});
    std::vector<std::size_t> begins;
    for (const ::torch::Tensor& each : parameters) begins.push_back(group.memory.add(each));
    group.is_used =
        ::torch::empty({static_cast<std::int64_t>(parameters.size())}, parameters[0].options());
    begins.push_back(group.memory.add(group.is_used));
    group.memory.allocate();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      group.views[i] = group.memory.view(begins[i], parameters[i]);
    }
    group.is_used = group.memory.view(begins.back(), group.is_used.detach());
  }

  static Gradient gather(Group& group) {
    auto* const is_used = &group.is_used;
    for (std::size_t i = 0; i < group.views.size(); ++i) {
      const ::torch::Tensor& gradient = group.parameters[i].grad();
      is_used->select(0, static_cast<std::int64_t>(i)).fill_(gradient.defined() ? 1 : 0);
      if (!gradient.defined()) {
        group.views[i].zero_();
      } else if (gradient.is_sparse()) {
        fail(ErrorCode::kUnimplemented, "Replicated: expected dense gradients, got a sparse one; ",
             "use EmbeddingOptions().sparse(false)");
      } else if (gradient.data_ptr() != group.views[i].data_ptr()) {
        group.views[i].copy_(gradient);
      }
    }
    return group.memory.value();
  }

  // Replaces the gradients of the used parameters with the views. If a gradient is then cleared in
  // place, the next one needs no copy.
  static void scatter(Group& group, const Gradient& combined) {
    group.memory.take(combined);
    for (std::size_t i = 0; i < group.views.size(); ++i) {
      const auto uses = group.is_used.select(0, static_cast<std::int64_t>(i));
      if (uses.item<double>() > 0) group.parameters[i].mutable_grad() = group.views[i];
    }
  }

  std::vector<Group> groups_;
};

}  // namespace tutti::torch::internal
