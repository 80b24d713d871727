// A libtorch optimizer whose state is sharded across the ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/cross_device_ops/libtorch/tensors.h"

namespace tutti::torch {

/// Optimizer with ZeRO stage 1: each rank keeps the optimizer's state (Adam: two numbers per
/// weight) only for its own parameters, updates these parameters, and gathers the other parameters
/// from the ranks that updated them. Equivalent of PyTorch's ZeroRedundancyOptimizer.
///
///     tutti::torch::ShardedOptimizer<torch::optim::Adam> optimizer(
///         model->parameters(), ranks, torch::optim::AdamOptions(1e-3));
///
/// Parameters are assigned whole, the largest first, each to the rank that has the fewest elements
/// so far. An optimizer that treats each parameter separately therefore gives results that are
/// bit-identical to those of one process with the same gradients. DistributedDataParallel makes the
/// gradients of all ranks equal. Parameters move into one buffer per type, where they are gathered
/// without a copy.
///
/// Every rank must make the same calls. Not thread-safe. The parameters must outlive this object.
template <class Optimizer>
class ShardedOptimizer {
 public:
  /// Collective: every rank passes the same parameters, which receive rank 0's values. They must be
  /// dense and on the CPU. `options` is the argument that follows the parameters in the optimizer's
  /// constructor.
  template <class Options>
  ShardedOptimizer(std::vector<::torch::Tensor> parameters, std::shared_ptr<Communicator> ranks,
                   const Options& options)
      : parameters_(std::move(parameters)), ranks_(std::move(ranks)) {
    internal::BroadcastPack(parameters_, *ranks_).broadcast(*ranks_, "parameters");
    std::map<DType, std::vector<::torch::Tensor>> by_type;
    for (const ::torch::Tensor& parameter : parameters_) {
      by_type[to_dtype(parameter.scalar_type())].push_back(parameter);
    }
    std::vector<::torch::Tensor> own;
    for (auto& [dtype, tensors] : by_type) groups_.push_back(make_group(std::move(tensors), own));
    local_ = std::make_unique<Optimizer>(std::move(own), options);
  }

  /// Updates this rank's parameters and gathers all ranks' parameters. Throws tutti::Error as
  /// DistributedDataParallel does.
  void step() {
    local_->step();
    for (const Group& group : groups_) {
      ranks_->all_gather(group.own, group.all, group.counts, {.name = "parameters"});
    }
  }

  /// Clears the gradients of all parameters, like torch::nn::Module::zero_grad().
  void zero_grad(bool set_to_none = false) {
    for (::torch::Tensor& parameter : parameters_) {
      ::torch::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        gradient.detach_();
        gradient.zero_();
      }
    }
  }

  /// Returns the optimizer of this rank's parameters, for setting learning rates and saving its
  /// state. Each rank saves one file; the same number of ranks must load these files.
  Optimizer& local() { return *local_; }

 private:
  struct Group {
    Elements own, all;
    std::vector<std::size_t> counts;  // [ranks]
  };

  // Assigns tensors to ranks, adds this rank's tensors to `own`, and moves all tensors into one
  // buffer.
  Group make_group(std::vector<::torch::Tensor> tensors, std::vector<::torch::Tensor>& own) {
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const auto& a, const auto& b) { return a.numel() > b.numel(); });
    const auto size = static_cast<std::size_t>(ranks_->size());
    std::vector<std::vector<::torch::Tensor>> parts(size);
    std::vector<std::int64_t> load(size);
    for (const ::torch::Tensor& tensor : tensors) {
      const auto least = std::min_element(load.begin(), load.end());
      *least += tensor.numel();
      parts[static_cast<std::size_t>(least - load.begin())].push_back(tensor);
    }
    const auto rank = static_cast<std::size_t>(ranks_->rank());
    own.insert(own.end(), parts[rank].begin(), parts[rank].end());
    return place(parts, rank);
  }

  Group place(std::vector<std::vector<::torch::Tensor>>& parts, std::size_t rank) {
    internal::FlatMemory memory;
    std::vector<std::size_t> begins, ends;
    Group group;
    for (const auto& part : parts) {
      const std::size_t before = memory.count();
      for (const ::torch::Tensor& tensor : part) begins.push_back(memory.add(tensor));
      ends.push_back(memory.count());
      group.counts.push_back(memory.count() - before);
    }
    memory.use(ranks_->allocate(memory.num_bytes()));
    const ::torch::NoGradGuard no_grad;
    auto begin = begins.begin();
    for (auto& part : parts) {
      for (::torch::Tensor& tensor : part) {
        const ::torch::Tensor view = memory.view(*begin++, tensor);
        view.copy_(tensor);
        tensor.set_data(view);
      }
    }
    group.all = memory.all();
    group.own = memory.part(ends[rank] - group.counts[rank], ends[rank]);
    memories_.push_back(std::move(memory));
    return group;
  }

  std::vector<::torch::Tensor> parameters_;
  std::shared_ptr<Communicator> ranks_;
  std::vector<internal::FlatMemory> memories_;
  std::vector<Group> groups_;
  std::unique_ptr<Optimizer> local_;
};

}  // namespace tutti::torch
