// Sums over the replicas of this process, on CPUs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "strategy/reduction/bucket_sums.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::internal {
namespace {

class KeptGradients final : public BucketSums {
 public:
  using BucketSums::BucketSums;

  void given(std::size_t, std::size_t variable) override {
    if (given_.checks() && !is_later(variable)) check(variable);
  }
  std::vector<SliceRange> begin(std::size_t) override { return {}; }
  void join() override {
    if (!given_.checks()) return;
    std::vector<std::size_t> later;
    std::vector<Tensor> values;
    for (std::size_t i = 0; i < given_.variables.size(); ++i) {
      if (!is_later(i)) continue;
      later.push_back(i);
      values.push_back(given_.of(0, i).dense().to(given_.services.replica_devices.front()));
    }
    for (const std::size_t i : indices_of_non_finite(values)) check(later[i]);
  }

 private:
  /// Those on a GPU are searched all at once.
  bool is_later(std::size_t variable) const {
    const Gradient& gradient = given_.of(0, variable);
    return gradient.is_dense() && device_of(gradient).type == DeviceType::kGpu;
  }
  void check(std::size_t variable) {
    Gradient& gradient = given_.of(0, variable);
    if (gradient.is_none()) return;
    const BucketPlan::Item& item = given_.item_of(variable);
    const Device device = device_of(gradient);
    if (gradient.is_slices()) {
      const IndexedSlices slices = on_host(gradient).slices();
      const Tensor finite = without_non_finite(slices.values);
      if (finite.id() == slices.values.id()) return;
      given_.note_slices(item, {&slices, 1}, slices);
      if (given_.zeroes()) {
        gradient = copy_to(IndexedSlices{finite, slices.indices, slices.dense_shape}, device);
      }
      return;
    }
    const Tensor values = on_host(gradient).dense();
    const auto found = first_non_finite(values.dtype(), values.bytes().data(), item.count);
    if (!found) return;
    given_.note(item, *found, 0);
    if (given_.zeroes()) gradient = without_non_finite(values).to(device);
  }
};

class LocalSums final : public BucketSums {
 public:
  explicit LocalSums(GivenGradients& given)
      : BucketSums(given),
        gives_shards_(std::ranges::any_of(given.variables, shards_of)),
        places_(given.plan->buckets.size()),
        flat_(places_.size()),
        sums_(given.variables.size()) {}

  std::vector<SliceRange> begin(std::size_t bucket) override {
    if (!given_.has_dense(bucket)) return {};
    const BucketPlan::Bucket& plan = given_.bucket(bucket);
    if (gives_shards_) {
      given_.for_dense_items(bucket, [&](const Piece& piece) { make_sums(piece, plan.dtype); });
    } else {
      flat_[bucket] = MutableTensor({static_cast<std::int64_t>(plan.count)}, plan.dtype,
                                    given_.services.replica_devices.front());
      places_[bucket].push_back({0, plan.count, {flat_[bucket].data()}});
    }
    return cut_slices(plan.count, size_of(plan.dtype),
                      given_.services.ops.sliceable() ? static_cast<int>(given_.num_replicas) : 1);
  }
  void reduce(std::size_t bucket, SliceRange slice) override {
    const CanonicalNode all{0, static_cast<int>(given_.num_replicas)};
    sum_slice(given_, bucket, slice, given_.bucket(bucket).dtype, {&all, 1}, places_[bucket], true);
  }
  void end(std::size_t bucket) override {
    if (!gives_shards_) return;
    given_.for_dense_items(bucket, [&](const Piece& piece) {
      for (const MutableTensor& sum : sums_[piece.item.variable]) {
        kept_[piece.item.variable].push_back(sum.freeze());
      }
    });
    given_.let_go(bucket);
  }
  bool gives_shards() const override { return gives_shards_; }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    if (gives_shards_ || !given_.has_dense(bucket)) return std::nullopt;
    return flat_[bucket].freeze().to(given_.services.replica_devices[replica]);
  }

 private:
  void make_sums(const Piece& piece, DType dtype) {
    for_shards(piece.item, [&](const Shard& shard, Device device) {
      MutableTensor& sum =
          sums_[piece.item.variable].emplace_back(Shape{shard.count}, dtype, device);
      const std::size_t first = piece.item.first + static_cast<std::size_t>(shard.first);
      places_[piece.bucket].push_back(
          {first, first + static_cast<std::size_t>(shard.count), {sum.data()}});
    });
  }

  const bool gives_shards_;                       // of variables that are cut over the replicas
  std::vector<std::vector<SumPlace>> places_;     // per bucket
  std::vector<MutableTensor> flat_;               // per bucket; or
  std::vector<std::vector<MutableTensor>> sums_;  // per variable, as kept_
};

}  // namespace

const ReplicaShards* shards_of(const Variable& variable) {
  const auto* const shards = dynamic_cast<const ReplicaShards*>(&variable.storage());
  return shards && shards->sums_shards() ? shards : nullptr;
}

std::optional<Tensor> BucketSums::sum_of(std::size_t variable, std::size_t replica) const {
  const std::vector<Tensor>& sums = kept_[variable];
  if (sums.empty()) return std::nullopt;  // the gradient itself, where it has no elements
  if (shards_of(given_.variables[variable])) return sums[replica];
  return sums[sums.size() == 1 ? 0 : replica]
      .detached_reshape(given_.variables[variable].shape())
      .to(given_.services.replica_devices[replica]);
}

std::unique_ptr<BucketSums> kept_gradients(GivenGradients& given) {
  return std::make_unique<KeptGradients>(given);
}
std::unique_ptr<BucketSums> local_sums(GivenGradients& given) {
  return std::make_unique<LocalSums>(given);
}

}  // namespace tutti::internal
