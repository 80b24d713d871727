// Sums over the replicas of this process, on CPUs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "strategy/reduction/bucket_sums.h"
#include "strategy/reduction/given_gradients.h"
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
  std::optional<Tensor> sum(std::size_t, std::size_t) const override { return std::nullopt; }

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

/// Adds the piece to the sum of `adder`, whose first element is at `first` of the bucket, by the
/// policy for what is not finite.
void add_checked(GivenGradients& given, TreeAdder& adder, const Piece& piece, const Elements& sum,
                 std::size_t first) {
  if (!given.checks()) return adder.add(piece, false);
  // What was rounded for the wire cannot be added twice: residuals would be taken twice.
  const bool clean_first = given.zeroes() && given.compresses(piece.bucket);
  for_blocks(piece, sum.dtype, [&](const Piece& block) {
    adder.add(block, clean_first);
    std::byte* const place = sum.data + (block.begin - first) * size_of(sum.dtype);
    if (count_non_finite(sum.dtype, place, block.count()) == 0) return;
    given.note_first(block, place);
    if (!given.zeroes()) return;
    if (!clean_first) adder.add(block, true);
    clear_non_finite(sum.dtype, place, block.count());  // finite values may have an infinite sum
  });
}

class TreeSums final : public BucketSums {
 public:
  explicit TreeSums(GivenGradients& given) : BucketSums(given) {
    flat_.reserve(given.plan->buckets.size());
    for (const BucketPlan::Bucket& bucket : given.plan->buckets) {
      flat_.emplace_back(Shape{static_cast<std::int64_t>(bucket.count)}, bucket.dtype,
                         given.services.replica_devices.front());
    }
  }

  std::vector<SliceRange> begin(std::size_t bucket) override {
    const BucketPlan::Bucket& plan = given_.bucket(bucket);
    return cut_slices(given_.has_dense(bucket) ? plan.count : 0, size_of(plan.dtype),
                      static_cast<int>(given_.num_replicas));
  }
  void reduce(std::size_t bucket, SliceRange slice) override {
    const CanonicalNode all{0, static_cast<int>(given_.num_replicas)};
    const Elements flat = elements_of(flat_[bucket]);
    TreeAdder adder(given_, bucket, {&all, 1}, {&flat, 1});
    given_.for_dense_pieces(
        bucket, slice, [&](const Piece& piece) { add_checked(given_, adder, piece, flat, 0); });
  }
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    return flat_[bucket].freeze().to(given_.services.replica_devices[replica]);
  }

 private:
  std::vector<MutableTensor> flat_;  // per bucket
};

class ShardSums final : public BucketSums {
 public:
  explicit ShardSums(GivenGradients& given) : BucketSums(given), sums_(given.variables.size()) {}

  std::vector<SliceRange> begin(std::size_t bucket) override {
    const BucketPlan::Bucket& plan = given_.bucket(bucket);
    const std::vector<Device>& devices = given_.services.replica_devices;
    given_.for_dense_items(bucket, [&](const Piece& piece) {
      const std::size_t variable = piece.item.variable;
      const auto add = [&](const Shard& shard, Device device) {
        sums_[variable].push_back({static_cast<std::size_t>(shard.first),
                                   MutableTensor(Shape{shard.count}, plan.dtype, device)});
      };
      const ReplicaShards* const shards = shards_of(given_.variables[variable]);
      if (!shards) return add({0, static_cast<std::int64_t>(piece.count())}, devices.front());
      for (std::size_t r = 0; r < devices.size(); ++r) {
        add(shards->shard(static_cast<int>(r)), devices[r]);
      }
    });
    return cut_slices(given_.has_dense(bucket) ? plan.count : 0, size_of(plan.dtype),
                      static_cast<int>(given_.num_replicas));
  }
  void reduce(std::size_t bucket, SliceRange slice) override {
    const CanonicalNode all{0, static_cast<int>(given_.num_replicas)};
    given_.for_dense_pieces(bucket, slice, [&](const Piece& piece) {
      for (Part& part : sums_[piece.item.variable]) {
        const Elements sum = elements_of(part.sum);
        const std::size_t first = piece.item.first + part.first;
        const Piece own{piece.item, bucket, std::max(piece.begin, first),
                        std::min(piece.end, first + sum.count)};
        if (own.begin >= own.end) continue;
        TreeAdder adder(given_, bucket, {&all, 1}, {&sum, 1}, first);
        add_checked(given_, adder, own, sum, first);
      }
    });
  }
  void end(std::size_t bucket) override {
    given_.for_dense_items(bucket, [&](const Piece& piece) {
      for (std::size_t r = 0; r < given_.num_replicas; ++r) {
        given_.of(r, piece.item.variable) = Gradient();
      }
    });
  }
  bool lets_go() const override { return true; }
  std::optional<Tensor> sum(std::size_t, std::size_t) const override { return std::nullopt; }
  std::optional<Tensor> sum_of(std::size_t variable, std::size_t replica) const override {
    if (given_.kinds[variable] != GradientKind::kDense) return std::nullopt;
    const Variable& of = given_.variables[variable];
    if (shards_of(of)) return sums_[variable][replica].sum.freeze();
    return sums_[variable]
        .front()
        .sum.freeze()
        .detached_reshape(of.shape())
        .to(given_.services.replica_devices[replica]);
  }

 private:
  struct Part {
    std::size_t first = 0;  // element of the variable
    MutableTensor sum;      // [count]
  };
  std::vector<std::vector<Part>> sums_;  // per variable: of each replica's shard, or of the whole
};

class OperationSums final : public BucketSums {
 public:
  explicit OperationSums(GivenGradients& given) : BucketSums(given) {
    for (const BucketPlan::Bucket& bucket : given.plan->buckets) {
      auto& flat = flat_.emplace_back();
      for (const Device& device : given.services.replica_devices) {
        flat.emplace_back(Shape{static_cast<std::int64_t>(bucket.count)}, bucket.dtype, device);
      }
    }
  }

  void given(std::size_t replica, std::size_t variable) override {
    if (given_.of(replica, variable).is_dense()) stage(replica, variable);
  }
  std::vector<SliceRange> begin(std::size_t bucket) override {
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
  void reduce(std::size_t bucket, SliceRange slice) override {
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
  std::optional<Tensor> sum(std::size_t bucket, std::size_t replica) const override {
    return flat_[bucket][replica].freeze();
  }

 private:
  void stage(std::size_t replica, std::size_t variable) {
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

  std::vector<std::vector<MutableTensor>> flat_;  // per bucket and replica: reduced in place
};

}  // namespace

const ReplicaShards* shards_of(const Variable& variable) {
  const auto* const shards = dynamic_cast<const ReplicaShards*>(&variable.storage());
  return shards && shards->sums_shards() ? shards : nullptr;
}

std::unique_ptr<BucketSums> kept_gradients(GivenGradients& given) {
  return std::make_unique<KeptGradients>(given);
}
std::unique_ptr<BucketSums> tree_sums(GivenGradients& given) {
  return std::make_unique<TreeSums>(given);
}
std::unique_ptr<BucketSums> shard_sums(GivenGradients& given) {
  return std::make_unique<ShardSums>(given);
}
std::unique_ptr<BucketSums> operation_sums(GivenGradients& given) {
  return std::make_unique<OperationSums>(given);
}

}  // namespace tutti::internal
