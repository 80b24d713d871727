// A libtorch module whose gradients are the mean over all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/cross_device_ops/libtorch/gradient_buckets.h"
#include "tutti/cross_device_ops/libtorch/tensors.h"

namespace tutti::torch {

/// How a DistributedDataParallel reduces.
struct DistributedDataParallelOptions {
  /// A bucket is reduced when it has at least these bytes of gradients. Smaller: reductions begin
  /// earlier; larger: there are fewer.
  std::size_t bucket_bytes = std::size_t{4} << 20;
  /// Before each forward pass in training, buffers (running averages of batch normalisation) become
  /// those of rank 0.
  bool broadcast_buffers = true;
};

/// While it lives, backward passes leave gradients as they are on this rank: to be added up, and
/// reduced by the first backward pass after it. Made by DistributedDataParallel::no_sync().
class NoSync {
 public:
  /// Turns reductions off; its end restores what was.
  explicit NoSync(internal::GradientBuckets& buckets)
      : buckets_(buckets), was_on_(buckets.is_on()) {
    buckets_.turn(false);
  }
  ~NoSync() { buckets_.turn(was_on_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  internal::GradientBuckets& buckets_;
  bool was_on_;
};

/// Trains a module on all ranks of a communicator, each with its own part of a batch: as
/// torch.nn.parallel.DistributedDataParallel of PyTorch, which libtorch lacks.
///
///     tutti::torch::DistributedDataParallel model(Net(), tutti::communicator_from_environment());
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     loss_of(model(x), y).backward();  // afterwards gradients are the mean over ranks
///
/// All ranks begin with the parameters and buffers of rank 0. Gradients become views of buckets,
/// and each bucket is reduced as soon as backward() has filled it, while it goes on. A parameter
/// that this rank did not use counts as 0; one that no rank used keeps what it had, without an
/// option. backward() returns with the means, or throws tutti::Error when a rank is gone, does not
/// come or makes another call; the communicator is closed then.
///
/// Every rank makes the same forward and backward passes, each of which uses one parameter at
/// least. `Module` is a module holder (torch::nn::Linear, what TORCH_MODULE made) or a
/// std::shared_ptr of a module. Parameters are dense, on the CPU, and no longer added, removed or
/// converted; those that need no gradient are left alone. With equal parts the mean over ranks is
/// the gradient of the mean over the whole batch.
///
/// Threads: one. Parameters and gradients live on after it.
template <class Module>
class DistributedDataParallel {
 public:
  /// All ranks call it. Throws kInvalidArgument on every rank where modules differ in names, shapes
  /// or types, and for a module without parameters that need gradients.
  DistributedDataParallel(Module module, std::shared_ptr<Communicator> ranks,
                          const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)), ranks_(std::move(ranks)), options_(options) {
    check_same_module();
    internal::BroadcastPack(module_->parameters(), *ranks_).broadcast(*ranks_, "parameters");
    buffers_ = std::make_unique<internal::BroadcastPack>(module_->buffers(), *ranks_);
    broadcast_buffers();
    buckets_ = std::make_unique<internal::GradientBuckets>(
        internal::trained_parameters(*module_, "DistributedDataParallel"), *ranks_,
        options_.bucket_bytes);
  }

  /// The module's forward().
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    if (options_.broadcast_buffers && module_->is_training() && buckets_->is_on() &&
        ::torch::GradMode::is_enabled()) {
      broadcast_buffers();
    }
    return module_->forward(std::forward<Inputs>(inputs)...);
  }

  /// For gradients of several batches: `{ auto guard = model.no_sync(); loss(...).backward(); }`.
  [[nodiscard]] NoSync no_sync() { return NoSync(*buckets_); }

  /// All ranks' buffers become rank 0's, as before a forward pass. All ranks call it.
  void broadcast_buffers() {
    if (!buffers_->empty()) buffers_->broadcast(*ranks_, "buffers");
  }

  /// What the constructor was given.
  Module& module() { return module_; }
  /// The module itself: parameters(), train(), eval().
  auto* operator->() { return &*module_; }
  /// How many reductions a backward pass takes.
  std::size_t num_buckets() const { return buckets_->num_buckets(); }

 private:
  void check_same_module() {
    const std::vector<std::int64_t> own = {internal::structure_of(*module_)};
    std::vector<std::int64_t> all(static_cast<std::size_t>(ranks_->size()));
    ranks_->all_gather(std::span(own), std::span(all), {}, {.name = "module"});
    internal::require_same("DistributedDataParallel", "rank", all, *module_);
  }

  Module module_;
  std::shared_ptr<Communicator> ranks_;
  DistributedDataParallelOptions options_;
  std::unique_ptr<internal::BroadcastPack> buffers_;
  std::unique_ptr<internal::GradientBuckets> buckets_;
};

}  // namespace tutti::torch
