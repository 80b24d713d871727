// Gradients of a libtorch module in buckets that are reduced during the backward pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cross_device_ops/libtorch/tensors.h"

namespace tutti::torch::internal {

/// Hook that autograd calls after it has accumulated a gradient.
struct AfterGradient : ::torch::autograd::FunctionPostHook {
  explicit AfterGradient(std::function<void()> function) : call(std::move(function)) {}
  ::torch::autograd::variable_list operator()(
      const ::torch::autograd::variable_list& outputs,
      const ::torch::autograd::variable_list& /*inputs*/) override {
    call();
    return outputs;
  }
  std::function<void()> call;
};

/// Averages the gradients of some parameters over ranks. Buckets are filled from the last parameter
/// to the first and reduced in this order, whatever order gradients arrive in, so that all ranks
/// make the same calls. A bucket's gradients are followed by one number per parameter: 1 if this
/// rank has a gradient, else 0. A parameter whose number is 0 after the reduction was used by no
/// rank.
class GradientBuckets {
 public:
  GradientBuckets(std::vector<::torch::Tensor> parameters, Communicator& ranks,
                  std::size_t bucket_bytes)
      : ranks_(ranks) {
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) add(*p, bucket_bytes);
    for (Bucket& bucket : buckets_) allocate(bucket);
    for (Slot& slot : slots_) observe(slot);
  }
  ~GradientBuckets() {
    for (const Slot& slot : slots_) slot.accumulator->del_post_hook(slot.hook);
  }
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  bool is_on() const { return is_on_; }
  /// Turns reductions on or off. While they are off, gradients stay as autograd computed them.
  void set_enabled(bool on) { is_on_ = on; }
  std::size_t num_buckets() const { return buckets_.size(); }

 private:
  struct Slot {
    ::torch::Tensor parameter;
    std::size_t bucket = 0, begin = 0;
    ::torch::Tensor view = {};
    std::shared_ptr<::torch::autograd::Node> accumulator = {};  // keeps the parameter's node alive
    std::uintptr_t hook = 0;
    bool is_ready = false;
  };
  struct Bucket {
    std::string name;
    ::torch::ScalarType type = ::torch::kFloat32;
    std::size_t first = 0, end = 0;  // range of slots_
    std::size_t bytes = 0;
    FlatMemory memory;
    ::torch::Tensor is_used;  // shape [end - first]
    std::size_t num_missing = 0;
    CollectiveHandle reduction;
  };

  void add(const ::torch::Tensor& parameter, std::size_t bucket_bytes) {
    if (buckets_.empty() || buckets_.back().bytes >= bucket_bytes ||
        buckets_.back().type != parameter.scalar_type()) {
      Bucket& added = buckets_.emplace_back();
      added.name = concat("gradients ", buckets_.size() - 1);
      added.type = parameter.scalar_type();
      added.first = added.end = slots_.size();
    }
    Bucket& bucket = buckets_.back();
    slots_.push_back({parameter, buckets_.size() - 1, bucket.memory.add(parameter)});
    bucket.bytes += elements(parameter).num_bytes();
    ++bucket.end;
  }

  void allocate(Bucket& bucket) {
    const auto count = static_cast<std::int64_t>(bucket.end - bucket.first);
    const ::torch::Tensor like = ::torch::empty({count}, bucket.type);
    const std::size_t begin = bucket.memory.add(like);
    bucket.memory.use(ranks_.allocate(bucket.memory.num_bytes()));
    bucket.is_used = bucket.memory.view(begin, like);
    for (std::size_t i = bucket.first; i < bucket.end; ++i) {
      slots_[i].view = bucket.memory.view(slots_[i].begin, slots_[i].parameter);
    }
  }

  void observe(Slot& slot) {
    slot.accumulator = ::torch::autograd::impl::grad_accumulator(slot.parameter);
    slot.hook = slot.accumulator->add_post_hook(
        std::make_unique<AfterGradient>([this, &slot] { on_gradient(slot); }));
  }

  void on_gradient(Slot& slot) {
    if (!is_on_) return;
    if (!is_running_) begin();
    slot.is_ready = true;
    take_gradient(slot);
    --buckets_[slot.bucket].num_missing;
    while (next_ < buckets_.size() && buckets_[next_].num_missing == 0) start(buckets_[next_++]);
  }

  // State of a backward pass. It is owned by autograd's callback for the end of the pass, so that
  // it is destroyed even if the pass throws early. Its destructor waits for reductions already
  // started, which must not write into gradients afterwards.
  struct Pass {
    explicit Pass(GradientBuckets& of) : buckets(of) {}
    ~Pass() {
      if (has_ended) return;
      buckets.is_running_ = false;
      for (Bucket& bucket : buckets.buckets_) bucket.reduction = {};  // waits for the reduction
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    GradientBuckets& buckets;
    bool has_ended = false;
  };

  void begin() {
    is_running_ = true;
    next_ = 0;
    for (Slot& slot : slots_) slot.is_ready = false;
    for (Bucket& bucket : buckets_) bucket.num_missing = bucket.end - bucket.first;
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [this, pass = std::make_shared<Pass>(*this)] {
          finish();
          pass->has_ended = true;
        });
  }

  // The view becomes the gradient, so that the reduced values need no copy.
  void take_gradient(Slot& slot) {
    const ::torch::NoGradGuard no_grad;
    ::torch::Tensor& gradient = slot.parameter.mutable_grad();
    if (!gradient.defined()) {
      slot.view.zero_();
      return;
    }
    if (gradient.is_sparse()) {
      fail(ErrorCode::kUnimplemented, "DistributedDataParallel: expected dense gradients, got a ",
           "sparse one; use EmbeddingOptions().sparse(false)");
    }
    if (gradient.data_ptr() == slot.view.data_ptr()) return;
    slot.view.copy_(gradient);
    gradient = slot.view;
  }

  void start(Bucket& bucket) {
    bucket.is_used.fill_(1);
    for (std::size_t i = bucket.first; i < bucket.end; ++i) {
      if (!slots_[i].parameter.grad().defined()) flag(bucket, i).zero_();
    }
    bucket.reduction =
        ranks_.start_all_reduce(ReduceOp::kMean, bucket.memory.all(), {.name = bucket.name});
  }

  // Runs at the end of the backward pass, on the thread that began it.
  void finish() {
    is_running_ = false;
    for (Slot& slot : slots_) {
      if (!slot.is_ready) take_gradient(slot);
    }
    while (next_ < buckets_.size()) start(buckets_[next_++]);
    for (Bucket& bucket : buckets_) finish(bucket);
  }

  void finish(Bucket& bucket) {
    bucket.reduction.wait();
    for (std::size_t i = bucket.first; i < bucket.end; ++i) {
      ::torch::Tensor& gradient = slots_[i].parameter.mutable_grad();
      if (!gradient.defined() && flag(bucket, i).item<double>() > 0) gradient = slots_[i].view;
    }
  }

  static ::torch::Tensor flag(const Bucket& bucket, std::size_t slot) {
    return bucket.is_used.select(0, static_cast<std::int64_t>(slot - bucket.first));
  }

  Communicator& ranks_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  bool is_on_ = true;
  bool is_running_ = false;
  std::size_t next_ = 0;  // next bucket to be reduced
};

}  // namespace tutti::torch::internal
