// Selection of the examples that a rank trains on, for libtorch's data loaders.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::torch {

/// Options for DistributedSampler. Must be equal on all ranks.
struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;  // for epoch 0; epoch e uses seed + e
  /// If true, drops examples that cannot be divided evenly among the ranks; otherwise repeats the
  /// first examples. In both cases all ranks have the same number of examples.
  bool drop_last = false;
};

/// Sampler that gives rank r of n the examples r, r + n, r + 2n, ... of an order that all ranks
/// share. The union of the ranks' batches equals the batch of a single process. The order of an
/// epoch is that of PyTorch's DistributedSampler with the same seed. A data loader owns its
/// sampler, so the sampler counts epochs: the first reset() (a loader's begin()) begins epoch 0,
/// and each later reset() begins the next epoch. Not thread-safe.
class DistributedSampler : public ::torch::data::samplers::Sampler<> {
 public:
  /// Samples a dataset of `size` examples. Copies the rank and the number of ranks from `ranks`,
  /// which is not used later. Throws kInvalidArgument if `size` is 0.
  DistributedSampler(std::size_t size, const Communicator& ranks,
                     const DistributedSamplerOptions& options = {})
      : size_(size),
        rank_(static_cast<std::size_t>(ranks.rank())),
        num_ranks_(static_cast<std::size_t>(ranks.size())),
        options_(options) {
    if (size == 0)
      fail(ErrorCode::kInvalidArgument, "DistributedSampler: expected at least 1 example, got 0");
  }

  /// Begins the next epoch, with `new_size` examples if given.
  void reset(c10::optional<std::size_t> new_size = c10::nullopt) override {
    size_ = new_size.value_or(size_);
    begin(next_epoch_);
  }
  /// Sets the epoch that the next reset() begins, to resume after a restart.
  void set_epoch(std::uint64_t epoch) { next_epoch_ = epoch; }

  /// Returns at most `batch_size` examples of this rank; nullopt at the end of the epoch.
  c10::optional<std::vector<std::size_t>> next(std::size_t batch_size) override {
    if (!has_begun_) reset();
    if (position_ >= indices_.size()) return c10::nullopt;
    const auto first = indices_.begin() + static_cast<std::ptrdiff_t>(position_);
    const std::size_t count = std::min(batch_size, indices_.size() - position_);
    position_ += count;
    return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
  }

  /// Saves the epoch and the position within it.
  void save(::torch::serialize::OutputArchive& archive) const override {
    archive.write("next_epoch", ::torch::tensor(static_cast<std::int64_t>(next_epoch_)), true);
    const std::int64_t position = has_begun_ ? static_cast<std::int64_t>(position_) : -1;
    archive.write("position", ::torch::tensor(position), true);
  }
  /// Restores the state that save() wrote, for a sampler made with the same arguments.
  void load(::torch::serialize::InputArchive& archive) override {
    ::torch::Tensor next_epoch, position;
    archive.read("next_epoch", next_epoch, true);
    archive.read("position", position, true);
    next_epoch_ = static_cast<std::uint64_t>(next_epoch.item<std::int64_t>());
    has_begun_ = position.item<std::int64_t>() >= 0;
    if (!has_begun_) return;
    begin(next_epoch_ - 1);
    position_ = static_cast<std::size_t>(position.item<std::int64_t>());
  }

 private:
  void begin(std::uint64_t epoch) {
    has_begun_ = true;
    next_epoch_ = epoch + 1;
    position_ = 0;
    const std::vector<std::int64_t> order = order_of(epoch);
    const std::size_t even = size_ / num_ranks_ * num_ranks_;
    const std::size_t total = options_.drop_last || even == size_ ? even : even + num_ranks_;
    indices_.clear();
    for (std::size_t i = rank_; i < total; i += num_ranks_) {
      indices_.push_back(static_cast<std::size_t>(order[i % size_]));
    }
  }

  std::vector<std::int64_t> order_of(std::uint64_t epoch) const {
    std::vector<std::int64_t> order(size_);
    if (!options_.shuffle) {
      std::iota(order.begin(), order.end(), 0);
      return order;
    }
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed + epoch);
    const ::torch::Tensor shuffled =
        ::torch::randperm(static_cast<std::int64_t>(size_), generator, ::torch::kInt64);
    std::copy_n(shuffled.data_ptr<std::int64_t>(), size_, order.begin());
    return order;
  }

  std::size_t size_, rank_, num_ranks_;
  DistributedSamplerOptions options_;
  std::uint64_t next_epoch_ = 0;
  bool has_begun_ = false;
  std::vector<std::size_t> indices_;
  std::size_t position_ = 0;
};

}  // namespace tutti::torch
