// Gradients that the replicas of this process gave in one reduction.
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
  /// Notes values that are not finite in a bucket's sum over all workers, which has the gradients'
  /// type, and sets them to zero under that policy.
  void search_sum(std::size_t bucket, std::byte* sum);
  /// Same as search_sum(), but in the gradient of the only replica.
  void search_gradient(std::size_t variable);
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
  ReplicaServices& services;
  WorkerTeam* const team;  // nullptr: this process has all replicas
  const std::shared_ptr<const BucketPlan> plan;
  const std::shared_ptr<Residuals> residuals;  // nullptr: nothing is compressed
  const std::vector<Variable> variables;
  const std::size_t num_replicas;  // of this process
  const NonFinitePolicy policy;
  std::vector<GradientKind> kinds;             // per variable
  std::vector<Gradient> sparse_sums;           // per variable
  std::vector<std::vector<Tensor>> kept_sums;  // per variable: for BucketSums::sum_of()
  NonFiniteFindings non_finite;

 private:
  std::vector<Gradient> gradients;
  std::vector<GradientKind> given_kinds;
};

/// The gradient itself, or its copy if it is on a GPU.
Gradient on_host(const Gradient& gradient);

/// Where sums of elements [begin, end) of a bucket go.
struct SumPlace {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<std::byte*> sums = {};  // per node: of element `begin`
};

/// Partial sums of a bucket on the host, one per node of PartialSums: elements, if they travel this
/// way, and counters. The first one gets the sum over all workers.
struct HostPartials {
  std::vector<Elements> sums = {};
  std::size_t first_counter = 0;
};

/// Waits for a sum over workers.
inline void wait_for(CollectiveHandle& sum, WorkerTeam& team) {
  const StragglerWatch::Waiting waiting(team.stragglers());
  sum.wait();
}

/// Returns which replica owns what of the variable's sum; nullptr if each needs the whole.
const ReplicaShards* shards_of(const Variable& variable);

}  // namespace tutti::internal
