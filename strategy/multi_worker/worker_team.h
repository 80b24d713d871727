// The workers that train together, as the replicas of one of them see the others; the state that
// they hand over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/worker_group.h"
#include "cross_device_ops/communicator/partial_sums.h"
#include "strategy/multi_worker/consistency_check.h"
#include "strategy/multi_worker/straggler_watch.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/gradient.h"

namespace tutti::internal {

class WorkerTeam;

/// Whether sums of gradients go from GPU to GPU by NCCL: kNever: by the hosts, as those of CPUs.
/// kIfAllCan: by NCCL where every worker can. kAlways: where one cannot it is an error.
enum class NcclUse { kNever, kIfAllCan, kAlways };

/// What a worker brings.
struct WorkerGpus {
  std::vector<Device> devices;  // of its replicas; CPUs, too
  NcclUse use = NcclUse::kNever;
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

/// Called by all workers, once they know their numbers of replicas. The operation "nccl" over all
/// replicas of all workers, or nullptr. Worker 0 says in one line why, where there was a choice.
/// Throws on all workers alike, naming those that cannot: kInvalidArgument for replicas on CPUs, or
/// that share a GPU, and for workers that name different uses; kUnavailable for a missing library.
std::unique_ptr<CrossDeviceOps> connect_worker_gpus(WorkerTeam& team, const WorkerGpus& own);

/// What each replica of a worker gives: as many values each, dense, slices, or none.
using ReplicaValues = std::vector<std::vector<Gradient>>;

/// Copies values on GPUs to the host. Numbers are little-endian, as in memory.
std::string encode_values(const ReplicaValues& values);
/// On the host. Throws kDataLoss for bytes that no encode_values() made.
ReplicaValues decode_values(std::string_view bytes);

/// A *worker* is a process (tests: a thread with its own strategy) with some replicas, which are
/// numbered over all workers in worker order. All workers make the same calls in the same order;
/// each names what it is for, and a worker that does something else is an error on all of them. A
/// call that fails (a worker is gone, late, or fails) ends the connection: later calls throw the
/// same reason, until reconnect().
///
/// Values are exchanged by one group of messages, sums of gradients by another, so that these may
/// be under way while layers exchange values. Threads: gather functions any thread, one at a time;
/// sums() likewise, beside them; abort() any.
class WorkerTeam {
 public:
  /// Called by all workers: tells the others which replicas this one has. The communicator's rank
  /// is the worker's number, its algorithm that of the sums of gradients, unless `gpus` ask for
  /// NCCL.
  WorkerTeam(std::unique_ptr<Communicator> communicator, WorkerGpus gpus,
             const StragglerOptions& stragglers = {});
  /// The same for the workers of a job. A process that takes the place of one that died is not
  /// connected until reconnect(), which the others call, too, or require_connection().
  WorkerTeam(std::shared_ptr<WorkerGroup> group, const CommunicatorOptions& options,
             WorkerGpus gpus, const StragglerOptions& stragglers = {});
  ~WorkerTeam();

  int worker() const { return worker_; }
  int num_workers() const { return num_workers_; }
  /// V, over all workers, and the number of this worker's first one.
  int num_replicas() const { return first_of_.back(); }
  int first_replica() const { return first_replica_of(worker()); }
  /// Of worker `worker`; of num_workers(): V.
  int first_replica_of(int worker) const { return first_of_[static_cast<std::size_t>(worker)]; }
  /// Of the sums of gradients: "canonical", "ring", ...
  std::string_view algorithm() const { return algorithm_; }
  bool is_canonical() const { return is_canonical_; }
  /// What sums the buffers of GPUs over all workers; nullptr: the hosts do.
  CrossDeviceOps* gpu_sums() const { return gpu_sums_.get(); }

  /// The job's; nullptr for workers that are connected otherwise, and for one alone.
  ControlClient* control() const { return group_ ? group_->control() : nullptr; }
  bool is_connected() const { return sums_ != nullptr; }
  /// How often the workers were connected.
  std::uint64_t connection() const { return connection_; }
  /// A call failed with `error`: whether that is because a worker, or a connection between two, was
  /// lost (and not: because a worker failed by itself), so that reconnect() helps. Waits up to
  /// `patience` for the job to find out.
  bool may_reconnect(const Error& error, Duration patience) const;
  /// Connects all workers anew, those that were started again among them. Called by all, outside
  /// all other calls. Throws kDeadlineExceeded naming who is missing; when another worker is lost
  /// meanwhile, may_reconnect() says so.
  void reconnect(TimePoint deadline);
  /// Nothing on connected workers. A replacement is connected when all others were started again,
  /// too, if allow_restart(); otherwise throws kFailedPrecondition. All calls of all workers begin
  /// with it; it is called before threads make several at once.
  void require_connection();
  /// All state of the training is in the workers: new processes of all of them are a new job.
  void allow_restart() { may_restart_ = true; }

  /// A text of each worker, by worker.
  std::vector<std::string> gather_texts(std::string_view own, std::string_view name);
  /// The text of worker `giver`; `own` of the others does not count.
  std::string broadcast_text(const std::string& own, int giver, std::string_view name);
  /// Communicator::group() of values that are no sums: nullptr for those who name nobody.
  std::unique_ptr<Communicator> make_group(const std::vector<int>& members, std::string_view name);
  /// Values of all replicas, in replica order, on the host; `local`: of this worker's. Carries the
  /// digest of check(), and throws where the workers' digests differ.
  ReplicaValues gather(const ReplicaValues& local, std::string_view name);
  /// Begins to gather the elements of all workers, one worker's after the other's: counts[w] of
  /// worker w. Calls that gather come to an end in the order in which they began.
  CollectiveHandle start_all_gather(const ConstElements& own, const Elements& all,
                                    std::span<const std::size_t> counts, std::string_view name);
  /// The same as gather() for one dense value per replica.
  std::vector<Tensor> gather_tensors(std::span<const Tensor> local, std::string_view name);

  /// Sums over the replicas of all workers, a rank each.
  PartialSums& sums();

  /// Notes of what must be alike on all workers, since they were connected.
  const std::shared_ptr<ConsistencyCheck>& check() const { return check_; }
  /// Collective: exchanges the notes of check(), and removes them. Throws what require_alike()
  /// does.
  void compare_notes();
  /// Same as compare_notes(), but exchanges eight bytes where these are alike.
  void compare_digests();

  /// Finds slow workers; waits outside this class are reported to it, too.
  StragglerWatch& stragglers() { return stragglers_; }
  /// What StragglerWatch::take_wait() gave on each worker, in a step.
  void note_waits(std::span<const double> waits);

  /// The step that the replicas are in, for messages about workers that are late.
  void set_step(std::uint64_t step);

  /// Ends all calls, here and on the other workers, with kAborted and this reason.
  void abort(const Error& reason) noexcept;

 private:
  void begin(std::unique_ptr<Communicator> communicator);
  void set_replicas(const std::vector<std::int32_t>& counts);
  Communicator& values();
  std::vector<std::string> gather_with_digest(std::string own, std::string_view name);

  const std::shared_ptr<WorkerGroup> group_;  // destroyed last; may be null
  const CommunicatorOptions options_;         // with a group
  const int worker_;
  const int num_workers_;
  const WorkerGpus gpus_;
  const int num_local_replicas_;
  const std::shared_ptr<ConsistencyCheck> check_ = std::make_shared<ConsistencyCheck>();
  std::string algorithm_;
  bool is_canonical_ = true;
  std::unique_ptr<Communicator> values_;
  std::unique_ptr<Communicator> sums_;
  std::unique_ptr<PartialSums> partial_sums_;  // by sums_
  std::shared_ptr<CrossDeviceOps> gpu_sums_;
  std::vector<std::shared_ptr<void>> watches_;  // destroyed before what they look at
  std::vector<int> first_of_;                   // by worker, and one more: V
  StragglerWatch stragglers_;
  std::uint64_t connection_ = 0;
  bool may_restart_ = false;
  const int exceptions_at_begin_ = std::uncaught_exceptions();
};

/// Called by all workers: `giver` has `own`, the `takers` (increasing, without the giver) get it,
/// from its memory into theirs, small tensors together, others one by one; all others, and a giver
/// without takers, go on at once. Returns what a taker got: kDataLoss where that is damaged; as
/// collectives.
std::optional<CheckpointSnapshot> hand_over_state(WorkerTeam& team, int giver,
                                                  const std::vector<int>& takers,
                                                  const CheckpointSnapshot* own);

/// "'w' float32 [3, 4], values <hash>".
std::string describe_variable(const std::string& name, const Tensor& initial_value);

/// Called by all workers with what each makes. Throws kInvalidArgument on all of them naming the
/// first worker whose description differs from worker 0's, and both.
void require_same_variable(std::string_view who, WorkerTeam& team, const std::string& description);

}  // namespace tutti::internal
