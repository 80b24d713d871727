// What the replicas of this process gave in one reduction; sums of its buckets: the interface, and
// its implementations by place.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "autograd/replica_shards.h"
#include "strategy/reduction/bucket_plan.h"
#include "strategy/reduction/gradient_filters.h"
#include "strategy/replicas/local_replica.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/gradient.h"

namespace tutti::internal {

enum class GradientKind : std::uint8_t { kNone, kDense, kSparse };

/// Elements [begin, end) of a bucket, all of one item.
struct Piece {
  const BucketPlan::Item& item;
  std::size_t bucket = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t offset() const { return begin - item.first; }  // in the variable
  std::size_t count() const { return end - begin; }
};

/// Gradients by replica of this process and variable, and what of them is decided for all: kinds,
/// sums of slices, values that are not finite. Threads: of a bucket, each replica its own gradients
/// until it has filled it; then the one that filled it last; then all, to read. note(), any.
struct GivenGradients {
  GivenGradients(ReplicaServices& all_services, const PlanInUse& in_use,
                 std::span<const Variable> of_variables);

  Gradient& of(std::size_t replica, std::size_t variable) {
    return gradients[replica * variables.size() + variable];
  }
  const Gradient& of(std::size_t replica, std::size_t variable) const {
    return gradients[replica * variables.size() + variable];
  }
  void put(std::size_t replica, std::size_t variable, const Gradient& gradient);
  /// What it was when the replica gave it.
  GradientKind given_kind(std::size_t replica, std::size_t variable) const {
    return given_kinds[replica * variables.size() + variable];
  }
  const BucketPlan::Bucket& bucket(std::size_t index) const { return plan->buckets[index]; }
  const BucketPlan::Item& item_of(std::size_t variable) const;
  bool has_dense(std::size_t bucket) const;

  /// The kind that the variable's gradient has on all replicas of this process, once all gave it:
  /// zeros stand for none, and slices become dense where another replica's gradient is. Sets it.
  GradientKind unify(std::size_t variable);
  void make_dense(std::size_t variable);
  /// On the host, one per replica; of no rows where a replica has no gradient.
  std::vector<IndexedSlices> slices_of(std::size_t variable) const;
  /// Into sparse_sums[variable], searched for values that are not finite. `slices`: of all replicas
  /// (of all workers).
  void sum_slices(std::size_t variable, std::vector<IndexedSlices> slices);

  bool compresses(std::size_t bucket) const {
    return residuals && plan->buckets[bucket].dtype == DType::kFloat32;
  }
  /// What a replica gives to the sum of a piece: its dense gradient, with zeros where it is not
  /// finite if `clean` (and noted), rounded to the wire's type where the bucket is compressed. In
  /// `copy`, of as many elements, where it is not the gradient itself.
  const std::byte* prepared(std::size_t replica, const Piece& piece, bool clean, std::byte* copy);

  bool checks() const { return policy != NonFinitePolicy::kIgnore; }
  bool zeroes() const { return policy == NonFinitePolicy::kZero; }
  void note(const BucketPlan::Item& item, std::size_t index, int replica);
  /// The first element of each replica's part that is not finite, or else of `sum`, the piece's.
  void note_first(const Piece& piece, const std::byte* sum);
  void note_slices(const BucketPlan::Item& item, std::span<const IndexedSlices> slices,
                   const IndexedSlices& sum);
  /// Forgets the bucket's dense gradients.
  void let_go(std::size_t bucket);
  /// Zeros for what is not finite in the bucket's dense gradients, and notes it.
  void clean(std::size_t bucket);

  /// Calls visitor(Piece) for what is dense in a slice of a bucket.
  template <class Visitor>
  void for_dense_pieces(std::size_t index, SliceRange slice, const Visitor& visitor) const {
    for (const BucketPlan::Item& item : bucket(index).items) {
      const std::size_t begin = std::max(slice.begin, item.first);
      const std::size_t end = std::min(slice.end, item.first + item.count);
      if (begin < end && kinds[item.variable] == GradientKind::kDense) {
        visitor(Piece{item, index, begin, end});
      }
    }
  }
  template <class Visitor>
  void for_dense_items(std::size_t index, const Visitor& visitor) const {
    for_dense_pieces(index, {0, bucket(index).count}, visitor);
  }
  /// Zeros in `buffers`, one per copy of the bucket, where no dense gradient comes: that is
  /// reduced, too.
  void zero_unused(std::size_t bucket, std::span<const Elements> buffers) const;

  ReplicaServices& services;
  const std::shared_ptr<const BucketPlan> plan;
  const std::shared_ptr<Residuals> residuals;  // nullptr: nothing is compressed
  const std::vector<Variable> variables;
  const std::size_t num_replicas;  // of this process
  const NonFinitePolicy policy;
  std::vector<GradientKind> kinds;    // per variable
  std::vector<Gradient> sparse_sums;  // per variable
  NonFiniteFindings non_finite;

 private:
  std::vector<Gradient> gradients;
  std::vector<GradientKind> given_kinds;
};

Elements elements_of(MutableTensor& flat);

/// The gradient itself, or its copy if it is on a GPU.
Gradient on_host(const Gradient& gradient);

/// Where sums of elements [begin, end) of a bucket go.
struct SumPlace {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<std::byte*> sums = {};  // per node: of element `begin`
};

/// The sums of a slice's dense gradients over `nodes` of the canonical tree of this process's
/// replicas, by ReplicaServices::ops. `places`: increasing, of all dense elements of the bucket.
/// `sum_dtype`: the bucket's or, of 16-bit types, float32. `check`: searches the sums for what is
/// not finite; otherwise that becomes 0 before it is added, if the policy says so. Threads: any, on
/// disjoint slices of a bucket, if the operation is sliceable.
void sum_slice(GivenGradients& given, std::size_t bucket, SliceRange slice, DType sum_dtype,
               std::span<const CanonicalNode> nodes, std::span<const SumPlace> places, bool check);

/// Which replica owns what of the variable's sum; nullptr: each wants the whole.
const ReplicaShards* shards_of(const Variable& variable);

/// The sums of one reduction's buckets. Replicas are numbered within this process. BucketReducer
/// calls; a failure of any call ends the reduction.
class BucketSums {
 public:
  explicit BucketSums(GivenGradients& given) : given_(given), kept_(given.variables.size()) {}
  virtual ~BucketSums() = default;
  BucketSums(const BucketSums&) = delete;
  BucketSums& operator=(const BucketSums&) = delete;

  /// By the replica, when it has put its gradient of the variable into GivenGradients.
  virtual void given(std::size_t /*replica*/, std::size_t /*variable*/) {}
  /// By the replica, when it has put those of a whole bucket.
  virtual void filled(std::size_t /*replica*/, std::size_t /*bucket*/) {}
  /// By one thread, when all replicas have, and kinds are unified. Returns the slices that replicas
  /// have to reduce(); none where the sum is made otherwise.
  virtual std::vector<SliceRange> begin(std::size_t bucket) = 0;
  /// The same for a variable whose gradients are slices: sums those of this process.
  virtual void sum_slices(std::size_t variable) {
    given_.sum_slices(variable, given_.slices_of(variable));
  }
  /// Any thread; slices of one bucket are disjoint.
  virtual void reduce(std::size_t /*bucket*/, SliceRange /*slice*/) {}
  /// By one thread, when all slices of the bucket are reduced.
  virtual void end(std::size_t /*bucket*/) {}
  /// Whether replicas get their shards alone of what shards_of() names. end() then lets go of
  /// gradients, so that replicas should not run ahead of each other.
  virtual bool gives_shards() const { return false; }
  /// By one thread, when all buckets have ended. Waits for other workers, not for GPUs: what
  /// replicas put into their compute streams from now on sees the sums.
  virtual void join() {}
  /// Afterwards, any thread: the bucket's sums on the replica's device. Nothing: each replica's
  /// gradients are the sums, but for what sum_of() has.
  virtual std::optional<Tensor> sum(std::size_t /*bucket*/, std::size_t /*replica*/) const {
    return std::nullopt;
  }
  /// The same of one variable, where sums are not kept by bucket: of one that shards_of() names
  /// that of the replica's shard, [count].
  std::optional<Tensor> sum_of(std::size_t variable, std::size_t replica) const;

 protected:
  /// Calls visitor(shard, device) for each replica's shard of a variable that is cut, or for the
  /// whole of another one, on the first device.
  template <class Visitor>
  void for_shards(const BucketPlan::Item& item, const Visitor& visitor) const {
    const ReplicaShards* const cut = shards_of(given_.variables[item.variable]);
    const std::vector<Device>& devices = given_.services.replica_devices;
    if (!cut) return visitor(Shard{0, static_cast<std::int64_t>(item.count)}, devices.front());
    for (std::size_t r = 0; r < devices.size(); ++r) {
      visitor(cut->shard(static_cast<int>(r)), devices[r]);
    }
  }

  GivenGradients& given_;
  std::vector<std::vector<Tensor>> kept_;  // for sum_of(): of each replica, or one for all
};

// replica_sums.cc: on CPUs, of this process.
/// Of one replica: looks for values that are not finite, and leaves all as it is. GPUs, too.
std::unique_ptr<BucketSums> kept_gradients(GivenGradients& given);
/// By ReplicaServices::ops. Each shard goes to the replica that owns it; other sums are shared by
/// all. Lets go of gradients that are summed, if there are shards.
std::unique_ptr<BucketSums> local_sums(GivenGradients& given);

// worker_sums.cc: on CPUs, of several processes. Each shard goes to the replica that owns it.
std::unique_ptr<BucketSums> worker_sums(GivenGradients& given);

// gpu_sums.cc: in the memory of GPUs, beside the backward pass.
/// Same as local_sums(), but where values that are not finite are looked for, sums stay whole.
std::unique_ptr<BucketSums> gpu_sums(GivenGradients& given);
std::unique_ptr<BucketSums> gpu_sums_by_hosts(GivenGradients& given, PlanInUse& plan);
std::unique_ptr<BucketSums> gpu_sums_by_nccl(GivenGradients& given);

}  // namespace tutti::internal
