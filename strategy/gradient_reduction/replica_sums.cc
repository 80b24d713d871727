// Sums over the replicas of this process, on CPUs.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/strategy/gradient_reduction/bucket_sums.h"
#include "tutti/strategy/gradient_reduction/given_gradients.h"

namespace tutti::internal {
namespace {

class KeptGradients final : public BucketSums {
 public:
  using BucketSums::BucketSums;

  void given(std::size_t, std::size_t variable) override {
    if (given_.checks() && !is_later(variable)) check(variable);
  }
  std::vector<SliceRange> begin(std::size_t) override { return {}; }
  void join() override;
  std::optional<Tensor> sum(std::size_t, std::size_t) const override { return std::nullopt; }

 private:
  /// Those on a GPU are searched all at once.
  bool is_later(std::size_t variable) const {
    const Gradient& gradient = given_.of(0, variable);
    return gradient.is_dense() && device_of(gradient).type == DeviceType::kGpu;
  }
  void check(std::size_t variable);
};

void KeptGradients::check(std::size_t variable) {
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

void KeptGradients::join() {
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

class TreeSums final : public BucketSums {
 public:
  explicit TreeSums(GivenGradients& given);

  std::vector<SliceRange> begin(std::size_t bucket) override;
  void reduce(std::size_t bucket, SliceRange slice) override;
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    return flat_[bucket].freeze().to(given_.services.replica_devices[replica]);
  }

 private:
  std::vector<MutableTensor> flat_;  // per bucket
};

TreeSums::TreeSums(GivenGradients& given) : BucketSums(given) {
  flat_.reserve(given.plan->buckets.size());
  for (const BucketPlan::Bucket& bucket : given.plan->buckets) {
    flat_.emplace_back(Shape{static_cast<std::int64_t>(bucket.count)}, bucket.dtype,
                       given.services.replica_devices.front());
  }
}

std::vector<SliceRange> TreeSums::begin(std::size_t bucket) {
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  return cut_slices(given_.has_dense(bucket) ? plan.count : 0, size_of(plan.dtype),
                    static_cast<int>(given_.num_replicas));
}

void TreeSums::reduce(std::size_t bucket, SliceRange slice) {
  const CanonicalNode all{0, static_cast<int>(given_.num_replicas)};
  const Elements flat = elements_of(flat_[bucket]);
  TreeAdder adder(given_, bucket, {&all, 1}, {&flat, 1});
  // What was rounded for the wire cannot be added twice: residuals would be taken twice.
  const bool clean_first = given_.zeroes() && given_.compresses(bucket);
  given_.for_dense_pieces(bucket, slice, [&](const Piece& piece) {
    if (!given_.checks()) return adder.add(piece, false);
    for_blocks(piece, flat.dtype, [&](const Piece& block) {
      adder.add(block, clean_first);
      std::byte* const sum = flat.data + block.begin * size_of(flat.dtype);
      if (count_non_finite(flat.dtype, sum, block.count()) == 0) return;
      given_.note_first(block, sum);
      if (!given_.zeroes()) return;
      if (!clean_first) adder.add(block, true);
      clear_non_finite(flat.dtype, sum, block.count());  // finite values may have an infinite sum
    });
  });
}

class OperationSums final : public BucketSums {
 public:
  explicit OperationSums(GivenGradients& given);

  void given(std::size_t replica, std::size_t variable) override {
    if (given_.of(replica, variable).is_dense()) stage(replica, variable);
  }
  std::vector<SliceRange> begin(std::size_t bucket) override;
  void reduce(std::size_t bucket, SliceRange slice) override;
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    return flat_[bucket][replica].freeze();
  }

 private:
  void stage(std::size_t replica, std::size_t variable);

  std::vector<std::vector<MutableTensor>> flat_;  // per bucket and replica: reduced in place
};

OperationSums::OperationSums(GivenGradients& given) : BucketSums(given) {
  for (const BucketPlan::Bucket& bucket : given.plan->buckets) {
    auto& flat = flat_.emplace_back();
    for (const Device& device : given.services.replica_devices) {
      flat.emplace_back(Shape{static_cast<std::int64_t>(bucket.count)}, bucket.dtype, device);
    }
  }
}

void OperationSums::stage(std::size_t replica, std::size_t variable) {
  const std::size_t bucket = given_.plan->places[variable].bucket;
  const BucketPlan::Item& item = given_.item_of(variable);
  const Elements flat = elements_of(flat_[bucket][replica]);
  const std::size_t size = size_of(flat.dtype);
  for_blocks(
      {item, bucket, item.first, item.first + item.count}, flat.dtype, [&](const Piece& block) {
        std::byte* const place = flat.data + block.begin * size;
        const std::byte* const values = given_.prepared(replica, block, given_.zeroes(), place);
        if (values != place) std::memcpy(place, values, block.count() * size);
      });
}

std::vector<SliceRange> OperationSums::begin(std::size_t bucket) {
  const BucketPlan::Bucket& plan = given_.bucket(bucket);
  std::vector<Elements> buffers;
  for (MutableTensor& flat : flat_[bucket]) buffers.push_back(elements_of(flat));
  given_.zero_unused(bucket, buffers);
  given_.for_dense_items(bucket, [&](const Piece& piece) {
    const std::size_t variable = piece.item.variable;
    for (std::size_t r = 0; r < given_.num_replicas; ++r) {
      if (given_.given_kind(r, variable) != GradientKind::kDense) stage(r, variable);
    }
  });
  const std::size_t parts = given_.services.ops.sliceable() ? given_.num_replicas : 1;
  return cut_slices(given_.has_dense(bucket) ? plan.count : 0, size_of(plan.dtype),
                    static_cast<int>(parts));
}

void OperationSums::reduce(std::size_t bucket, SliceRange slice) {
  const ReplicaServices& services = given_.services;
  const DType dtype = given_.bucket(bucket).dtype;
  std::vector<ReplicaBuffer> buffers;
  for (std::size_t r = 0; r < given_.num_replicas; ++r) {
    buffers.push_back({flat_[bucket][r].data() + slice.begin * size_of(dtype),
                       slice.end - slice.begin, dtype, services.replica_devices[r]});
  }
  if (services.ops.sliceable()) {
    services.ops.all_reduce_in_place(ReduceOp::kSum, buffers, services.communication);
  } else {
    MutexLock lock(services.ops_mutex);
    services.ops.all_reduce_in_place(ReduceOp::kSum, buffers, services.communication);
  }
  if (!given_.checks()) return;
  given_.for_dense_pieces(bucket, slice, [&](const Piece& piece) {
    const auto place = [&](std::size_t r) {
      return flat_[bucket][r].data() + piece.begin * size_of(dtype);
    };
    if (count_non_finite(dtype, place(0), piece.count()) == 0) return;
    given_.note_first(piece, place(0));
    for (std::size_t r = 0; given_.zeroes() && r < given_.num_replicas; ++r) {
      clear_non_finite(dtype, place(r), piece.count());
    }
  });
}

}  // namespace

std::unique_ptr<BucketSums> kept_gradients(GivenGradients& given) {
  return std::make_unique<KeptGradients>(given);
}
std::unique_ptr<BucketSums> tree_sums(GivenGradients& given) {
  return std::make_unique<TreeSums>(given);
}
std::unique_ptr<BucketSums> operation_sums(GivenGradients& given) {
  return std::make_unique<OperationSums>(given);
}

}  // namespace tutti::internal
