// Data-parallel training of a libtorch module: gradients are averaged over all ranks.
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

/// Options of DistributedDataParallel.
struct DistributedDataParallelOptions {
  /// Size of a full gradient bucket, in bytes. Smaller buckets let reductions begin earlier; larger
  /// buckets need fewer reductions.
  std::size_t bucket_bytes = std::size_t{4} << 20;
  /// If true, buffers (running averages of batch normalisation) are copied from rank 0 before each
  /// forward pass in training.
  bool broadcast_buffers = true;
};

/// Scope in which backward passes do not reduce gradients, so that gradients accumulate on this
/// rank. The first backward pass after the scope reduces them. Created by
/// DistributedDataParallel::no_sync().
class NoSync {
 public:
  /// Turns reductions off; the destructor restores the previous state.
  explicit NoSync(internal::GradientBuckets& buckets)
      : buckets_(buckets), was_on_(buckets.is_on()) {
    buckets_.set_enabled(false);
  }
  ~NoSync() { buckets_.set_enabled(was_on_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  internal::GradientBuckets& buckets_;
  bool was_on_;
};

/// Wrapper that trains a module on all ranks of a communicator, each rank with its own part of a
/// batch. Equivalent of PyTorch's torch.nn.parallel.DistributedDataParallel, which libtorch lacks.
///
///     tutti::torch::DistributedDataParallel model(Net(), tutti::communicator_from_environment());
///     torch::optim::SGD optimizer(model->parameters(), 0.1);
///     loss_of(model(x), y).backward();  // afterwards gradients are the mean over ranks
///
/// All ranks begin with the parameters and buffers of rank 0. Gradients become views of buckets,
/// and each bucket is reduced as soon as backward() has filled it, while the backward pass
/// continues. If this rank did not use a parameter, the gradient counts as 0; if no rank used the
/// parameter, the gradient stays unchanged. Unused parameters need no option. When backward()
/// returns, the gradients are the means. backward() throws tutti::Error if a rank exits, does not
/// join or makes a different call; the communicator is then unusable.
///
/// Every rank makes the same forward and backward passes, each of which uses at least one
/// parameter. `Module` is a module holder (torch::nn::Linear, or a class made by TORCH_MODULE) or a
/// std::shared_ptr of a module. Parameters are dense and on the CPU, and must not be added, removed
/// or converted after construction; parameters that require no gradient are not trained. If the
/// ranks' parts of a batch have equal sizes, the mean over ranks is the gradient of the mean over
/// the whole batch.
///
/// Not thread-safe. Parameters and gradients stay valid after this object is destroyed.
template <class Module>
class DistributedDataParallel {
 public:
  /// Collective. Throws kInvalidArgument on every rank if modules differ in names, shapes or types,
  /// and for a module without parameters that require gradients.
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

  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    if (options_.broadcast_buffers && module_->is_training() && buckets_->is_on() &&
        ::torch::GradMode::is_enabled()) {
      broadcast_buffers();
    }
    return module_->forward(std::forward<Inputs>(inputs)...);
  }

  /// Disables reductions, to accumulate gradients over several batches: `{ auto guard =
  /// model.no_sync(); loss(...).backward(); }`.
  [[nodiscard]] NoSync no_sync() { return NoSync(*buckets_); }

  /// Copies rank 0's buffers to all ranks, as is done before a forward pass. Collective.
  void broadcast_buffers() {
    if (!buffers_->empty()) buffers_->broadcast(*ranks_, "buffers");
  }

  Module& module() { return module_; }
  /// Accesses the module itself: parameters(), train(), eval().
  auto* operator->() { return &*module_; }
  /// Returns the number of reductions in a backward pass.
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
