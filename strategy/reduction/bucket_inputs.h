// Gradients of this process's replicas in one reduction.
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

/// Elements [begin, end) of a bucket; all belong to the same item.
struct Piece {
  const BucketPlan::Item& item;
  std::size_t bucket = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t offset() const { return begin - item.first; }  // offset in the variable
  std::size_t count() const { return end - begin; }
};

/// Gradients by local replica and variable, and the decisions for all of them: kinds, sums of
/// slices, non-finite values. In each bucket, a replica's thread accesses only its own gradients
/// until it has filled the bucket. The last thread to fill it then accesses all gradients.
/// Afterwards all threads may read them. note() is thread-safe.
struct BucketInputs {
  BucketInputs(ReplicaServices& all_services, const PlanInUse& in_use,
               std::span<const Variable> of_variables);

  Gradient& of(std::size_t replica, std::size_t variable) {
    return gradients[replica * variables.size() + variable];
  }
  const Gradient& of(std::size_t replica, std::size_t variable) const {
    return gradients[replica * variables.size() + variable];
  }
  void put(std::size_t replica, std::size_t variable, const Gradient& gradient);
  /// Returns the kind of the gradient that the replica provided.
  GradientKind given_kind(std::size_t replica, std::size_t variable) const {
    return given_kinds[replica * variables.size() + variable];
  }
  const BucketPlan::Bucket& bucket(std::size_t index) const { return plan->buckets[index]; }
  const BucketPlan::Item& item_of(std::size_t variable) const;
  bool has_dense(std::size_t bucket) const;

  /// Determines, sets and returns the common kind of the gradients that all replicas of this
  /// process have provided for the variable. A missing gradient counts as zeros; slices become
  /// dense if another replica's gradient is dense.
  GradientKind unify(std::size_t variable);
  void make_dense(std::size_t variable);
  /// Returns slices on the host, one per replica, with no rows for a replica without a gradient.
  std::vector<IndexedSlices> slices_of(std::size_t variable) const;
  /// Sums slices into sparse_sums[variable] and searches for non-finite values. `slices` come from
  /// all replicas of all workers.
  void sum_slices(std::size_t variable, std::vector<IndexedSlices> slices);

  bool compresses(std::size_t bucket) const {
    return residuals && plan->buckets[bucket].dtype == DType::kFloat32;
  }
  /// Returns a replica's contribution to the sum of a piece: the elements of the replica's dense
  /// gradient or, if the bucket is compressed, a copy of them in `copy`, rounded to the type in
  /// which they are sent. `copy` has room for the piece.
  const std::byte* prepared(std::size_t replica, const Piece& piece, std::byte* copy);

  bool checks() const { return policy != NonFinitePolicy::kIgnore; }
  void note(const BucketPlan::Item& item, std::size_t index, int replica);
  /// Records the first non-finite element of each replica's piece. If all elements of the pieces
  /// are finite, records the first non-finite element of their sum `sum`.
  void note_first(const Piece& piece, const std::byte* sum);
  void note_slices(const BucketPlan::Item& item, std::span<const IndexedSlices> slices,
                   const IndexedSlices& sum);
  /// Records non-finite values in a bucket's sum over all workers. The sum has the same type as the
  /// gradients.
  void search_sum(std::size_t bucket, const std::byte* sum);
  /// Same as search_sum(), but for a gradient in a run with a single replica, where no sum is
  /// computed.
  void search_gradient(std::size_t variable);
  /// Releases the bucket's dense gradients.
  void release_gradients(std::size_t bucket);

  /// Calls visitor(Piece) for the dense parts of a slice of a bucket.
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
  WorkerTeam* const team;  // null: this process has all replicas
  const std::shared_ptr<const BucketPlan> plan;
  const std::shared_ptr<Residuals> residuals;  // null: no compression
  const std::vector<Variable> variables;
  const std::size_t num_replicas;  // number of this process's replicas
  const NonFinitePolicy policy;
  std::vector<GradientKind> kinds;             // per variable
  std::vector<Gradient> sparse_sums;           // per variable
  std::vector<std::vector<Tensor>> kept_sums;  // per variable, see BucketSums::sum_of()
  NonFiniteFindings non_finite;

 private:
  std::vector<Gradient> gradients;
  std::vector<GradientKind> given_kinds;
};

/// Returns the gradient itself, or a copy if it is on a GPU.
Gradient on_host(const Gradient& gradient);

/// Destination for the sums of a bucket's elements [begin, end).
struct SumPlace {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<std::byte*> sums = {};  // per node: address of element `begin`
};

/// Partial sums of a bucket on the host, one per node of PartialSums: elements, if they are sent
/// through the host, and counters. The first one receives the sum over all workers.
struct HostPartials {
  std::vector<Elements> sums = {};
  std::size_t first_counter = 0;
};

/// Waits for a sum over workers.
inline void wait_for(CollectiveHandle& sum, WorkerTeam& team) {
  const StragglerWatch::Waiting waiting(team.stragglers());
  sum.wait();
}

/// Returns the replicas' shards of the variable's sum; nullptr if each replica needs the whole sum.
const ReplicaShards* shards_of(const Variable& variable);

}  // namespace tutti::internal
