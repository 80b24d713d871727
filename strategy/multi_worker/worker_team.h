// The workers that train together, as the replicas of one of them see the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/canonical_nodes.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/strategy/multi_worker/worker_values.h"

namespace tutti::internal {

/// A *worker* is a process (tests: a thread with its own strategy) with some replicas, which are
/// numbered over all workers in worker order. All workers make the same calls in the same order;
/// each names what it is for, and a worker that does something else is an error on all of them. A
/// call that fails (a worker is gone, late, or fails) ends the team: later calls throw the same
/// reason.
///
/// Values are exchanged by one group of messages, sums of gradients by another, so that these may
/// be under way while layers exchange values. Threads: gather functions any thread, one at a time;
/// start_sum() likewise, beside them; abort() any.
class WorkerTeam {
 public:
  /// Called by all workers: tells the others how many replicas this one has. The communicator's
  /// rank is the worker's number, its algorithm that of the sums of gradients.
  WorkerTeam(std::unique_ptr<Communicator> communicator, int num_local_replicas);

  int worker() const { return values_->rank(); }
  int num_workers() const { return values_->size(); }
  /// V, over all workers, and the number of this worker's first one.
  int num_replicas() const { return first_of_.back(); }
  int first_replica() const { return first_of_[static_cast<std::size_t>(worker())]; }
  int num_local_replicas() const { return num_local_replicas_; }
  int worker_of(int replica) const;
  /// Of the sums of gradients: "canonical", "ring", ...
  std::string_view algorithm() const { return sums_->name(); }
  bool is_canonical() const { return sums_->determinism() == Determinism::kCanonical; }

  /// A text of each worker, by worker. `name` (as in all calls, its first 47 characters) is
  /// compared.
  std::vector<std::string> gather_texts(std::string_view own, std::string_view name);
  /// Values of all replicas, in replica order, on the host; `local`: of this worker's.
  ReplicaValues gather(const ReplicaValues& local, std::string_view name);
  /// The same for one dense value per replica.
  std::vector<Tensor> gather_tensors(std::span<const Tensor> local, std::string_view name);

  /// What a worker adds up itself before it gives a sum to the others: one buffer per range of
  /// local replicas (first: 0 is this worker's first). One, unless the canonical order needs more.
  std::span<const CanonicalNode> partial_sums() const { return partial_sums_; }
  /// The type in which partial sums of `dtype` travel: 16-bit numbers as float32, so that they are
  /// rounded once.
  static DType sum_dtype(DType dtype);
  /// Begins to add up all workers' partial sums: `partials[i]` holds that of partial_sums()[i]. The
  /// sum over all replicas is in partials[0] when the handle's wait() returned. All partials have
  /// one length and one sum_dtype(), and stay where they are until then, like `name`.
  CollectiveHandle start_sum(std::span<const Elements> partials, std::string_view name);

  /// Ends all calls, here and on the other workers, with kAborted and this reason.
  void abort(const Error& reason) noexcept;

 private:
  std::vector<std::string> exchange(std::string_view own, std::string_view name);
  void sum_by_parts(std::span<const Elements> partials, std::string_view name);
  std::vector<CanonicalNode> nodes_of(int worker) const;

  const std::unique_ptr<Communicator> values_;
  const std::unique_ptr<Communicator> sums_;
  const int num_local_replicas_;
  std::vector<int> first_of_;  // by worker, and one more: V
  std::vector<CanonicalNode> partial_sums_;
  bool by_parts_ = false;  // workers' replicas are no whole halves of the canonical tree
};

}  // namespace tutti::internal
