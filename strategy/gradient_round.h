// One reduction of a list of gradients, shared by the replicas of a run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/gpu/device_work.h"
#include "tutti/strategy/bucket_plan.h"
#include "tutti/strategy/error_feedback.h"
#include "tutti/strategy/local_replica.h"
#include "tutti/strategy/multi_worker/host_sums.h"
#include "tutti/strategy/multi_worker/worker_team.h"
#include "tutti/strategy/non_finite.h"

namespace tutti::internal {

/// A bucket that all replicas have filled is published: on CPUs as slices, which any replica
/// computes; on GPUs as work for their communication streams. With other workers the sum of this
/// worker's replicas goes on to them, bucket by bucket.
class GradientRound {
 public:
  struct Task {
    std::size_t bucket = 0;
    SliceRange slice;
  };

  GradientRound(ReplicaServices& services, ReplicaMonitor& monitor, PlanInUse& plan,
                std::span<const Variable> variables);

  const BucketPlan& plan() const { return *plan_; }
  const Variable& variable(std::size_t index) const { return variables_[index]; }

  /// Replica `replica` gives its gradient of variable `index`; when that fills its part of a
  /// bucket, and it is the last one to do so, the bucket is published.
  void put(int replica, std::size_t index, const Gradient& gradient);
  /// With other workers: waits for the sums over all of them. On GPUs: what replicas queue from now
  /// on sees the sums. After all buckets are done, by one replica.
  void join();
  /// Computes slices until none is there. A failure is kept for wait-and-rethrow by the leader.
  void work();
  /// What was found not finite, under every policy but kIgnore. After all buckets are done.
  const std::optional<NonFiniteValue>& non_finite() const { return non_finite_.lowest(); }

  // With the monitor's mutex held:
  bool has_task() const { return next_task_ < tasks_.size() && !failure_; }
  bool is_finished() const { return failure_ || buckets_done_ == buckets_.size(); }
  std::exception_ptr failure() const { return failure_; }
  /// How many replicas joined: guarded by the monitor's mutex, used by GradientExchange.
  std::vector<int> joined;

  /// The sums, on the device of `replica`. After all buckets are done.
  std::vector<Gradient> results(int replica) const;

 private:
  enum class Kind { kNone, kDense, kSparse };
  using Event = std::shared_ptr<DeviceEvent>;
  struct BucketState {
    int num_filled = 0;
    std::size_t slices_left = 0;
    std::vector<Kind> kinds;  // per item, known once published
    // Canonical: one, the result; else per replica, reduced in place. With other workers, on CPUs:
    // per partial sum.
    std::vector<MutableTensor> flat;
    PendingReduction pending;  // on GPUs

    // With other workers:
    // Per partial sum of the team, on the host; with NCCL the counters alone. The result is in the
    // first.
    std::vector<Elements> partials;
    std::vector<float> counters;       // with NCCL
    std::vector<MutableTensor> wide;   // on GPUs, per replica: a 16-bit bucket as float32, or none
    std::unique_ptr<DeviceWork> work;  // on GPUs
    // On GPUs: the partial sums are on the host, or with NCCL: gradients are packed.
    std::vector<Event> copied;
    bool summed = false;  // by this worker: guarded by sums_mutex_
    std::string name;     // of the sum over workers
    CollectiveHandle sum;
  };
  /// Elements [begin, end) of a bucket, all of one item.
  struct Piece {
    const BucketPlan::Item& item;
    std::size_t bucket;
    std::size_t begin;
    std::size_t end;
    std::size_t offset() const { return begin - item.first; }  // in the variable
    std::size_t count() const { return end - begin; }
  };

  int first_replica() const { return team_ ? team_->first_replica() : 0; }
  bool last_to_fill(std::size_t bucket);
  void publish(std::size_t bucket);
  void prepare(std::size_t bucket);
  /// What no gradient was staged into is reduced, too: padding and variables without dense
  /// gradient.
  void zero_unused(std::size_t bucket);
  Kind prepare_item(std::size_t bucket, const BucketPlan::Item& item);
  void make_dense(const BucketPlan::Item& item, std::size_t bucket);
  void bucket_is_summed(std::size_t bucket);
  std::vector<IndexedSlices> local_slices(const BucketPlan::Item& item) const;
  void sum_sparse(const BucketPlan::Item& item);
  void note_sparse(const BucketPlan::Item& item, std::span<const IndexedSlices> slices,
                   const IndexedSlices& sum);
  void check_alone(std::size_t index);
  void fail_with(std::exception_ptr failure);
  std::byte* element(std::size_t bucket, std::size_t copy, std::size_t index);

  // gradient_round_workers.cc: buckets that are summed over workers, too.
  void join_workers();
  std::size_t first_counter(std::size_t bucket) const;
  void give_summed() TUTTI_REQUIRES(sums_mutex_);
  void give_all();
  void give(std::size_t bucket);
  void round_sum(std::size_t bucket);
  void make_partial_sums(std::size_t bucket);
  void count_kinds(std::size_t bucket);
  std::size_t first_wait() const;
  void tell_wait();
  void note_waits();
  void add_for_workers(const Piece& piece);
  void add_block_for_workers(const Piece& piece);
  void give_to_workers(std::size_t bucket);
  void take_from_workers(std::size_t bucket);
  void take_item(std::size_t bucket, std::size_t position, double num_dense, double num_sparse);
  void sum_mixed(const BucketPlan::Item& item, std::size_t bucket);
  std::vector<IndexedSlices> slices_of_all_replicas(const BucketPlan::Item& item);
  void search_sums(std::size_t bucket);
  void share_findings();

  // gradient_round_worker_gpus.cc: the same for buckets in the memory of GPUs.
  void make_gpu_buffers(std::size_t bucket);
  std::vector<ReplicaBuffer> summed_buffers(std::size_t bucket) const;
  std::vector<Event> mark_on_gpus(StreamId stream) const;
  void wait_for(const std::vector<Event>& events) const;
  void start_for_workers(std::size_t bucket);
  void start_partial_sums(std::size_t bucket);
  bool is_copied(std::size_t bucket) const;
  void clear_partial_sums(std::size_t bucket);
  void repeat_partial_sums(std::size_t bucket);
  void spread_sum(std::size_t bucket);
  void sum_by_nccl(std::size_t bucket);
  void join_worker_gpus(std::size_t bucket);

  // gradient_round_gpu.cc: buckets in the memory of GPUs, reduced beside the backward pass.
  void join_gpus();
  void pack(int replica, std::size_t bucket);
  void start(std::size_t bucket);
  bool has_dense(std::size_t bucket) const;
  std::vector<ReplicaBuffer> flat_buffers(std::size_t bucket) const;
  void search_on_gpus();
  void search_alone_on_gpu();
  void note_on_gpus(std::size_t bucket);
  void repair_on_gpus(std::size_t bucket);

  // gradient_round_slices.cc: packing and adding.
  bool compresses(std::size_t bucket) const;
  void stage(int replica, std::size_t bucket, const BucketPlan::Item& item);
  void reduce_slice(const Task& task);
  void reduce_copies(const Task& task);
  void reduce_in_tree_order(const Piece& piece);
  void add_block(const Piece& piece, std::vector<std::vector<float>>& sent);
  void repair_block(const Piece& piece);
  template <class Visitor>
  void for_dense_pieces(const Task& task, const Visitor& visitor);
  const std::byte* gradient_at(std::size_t replica, const Piece& piece) const;
  void note_first(const Piece& piece);
  void note(const BucketPlan::Item& item, std::size_t index, int replica);

  ReplicaServices& services_;
  ReplicaMonitor& monitor_;
  const std::shared_ptr<const BucketPlan> plan_;
  const std::shared_ptr<Residuals> residuals_;  // nullptr: nothing is compressed
  const std::vector<Variable> variables_;
  const std::size_t num_replicas_;  // of this worker
  const bool on_gpus_;
  WorkerTeam* const team_;  // nullptr: this worker is alone
  const bool by_nccl_;      // on GPUs, over all workers
  const bool by_hosts_;     // on GPUs, over all workers
  const bool alone_;        // one replica, which keeps its gradients as they are
  const bool canonical_;    // on CPUs: added straight from the gradients into one result
  const WireCompression compression_;
  const NonFinitePolicy policy_;
  // gradients_[replica][variable]: written by the replica until it has filled the bucket, then by
  // the publisher, then read by all.
  std::vector<std::vector<Gradient>> gradients_;
  std::vector<std::vector<std::size_t>> unfilled_;  // [replica][bucket]; the replica's own
  std::shared_ptr<HostSums> host_sums_;             // by hosts
  std::vector<BucketState> buckets_;
  std::vector<Gradient> sparse_sums_;  // per variable
  Mutex sums_mutex_;
  std::size_t next_to_give_ TUTTI_GUARDED_BY(sums_mutex_) = 0;  // bucket
  NonFiniteFindings non_finite_;
  // Guarded by monitor_.mutex():
  std::vector<Task> tasks_;
  std::size_t next_task_ = 0;
  std::size_t buckets_done_ = 0;
  std::exception_ptr failure_;
};

}  // namespace tutti::internal
