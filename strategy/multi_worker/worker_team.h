// Workers that train together, as seen by one worker's replicas, and the transfer of the workers'
// state.
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

/// Use of NCCL for sums of gradients. kNever: hosts sum them, as for CPUs. kIfAllCan: NCCL if every
/// worker supports it. kAlways: NCCL; an error if a worker does not support it.
enum class NcclUse { kNever, kIfAllCan, kAlways };

/// Devices of one worker, and its NCCL options.
struct WorkerGpus {
  std::vector<Device> devices;  // devices of the worker's replicas; may be CPUs
  NcclUse use = NcclUse::kNever;
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

/// Returns the operation "nccl" over the replicas of all workers, or nullptr if NCCL is not used.
/// Collective; each worker must know the number of replicas of every worker. If NCCL was optional,
/// worker 0 logs the reason for the choice. Throws the same error on all workers, naming a worker
/// without support: kInvalidArgument if NCCL is required but unusable, or if `own.use` differs
/// between workers; and the error of a failed NCCL initialization.
std::unique_ptr<CrossDeviceOps> connect_worker_gpus(WorkerTeam& team, const WorkerGpus& own);

/// The values of each replica of a worker. All replicas have the same number of values, each dense,
/// sparse or empty.
using ReplicaValues = std::vector<std::vector<Gradient>>;

/// Serializes values; copies those on GPUs to the host. Numbers are little-endian.
std::string encode_values(const ReplicaValues& values);
/// Returns values on the host. Throws kDataLoss for bytes that encode_values() cannot have
/// produced.
ReplicaValues decode_values(std::string_view bytes);

/// Workers that train together. A *worker* is a process (in tests: a thread with its own strategy)
/// with some replicas, which are numbered across all workers in worker order. All workers must make
/// the same calls in the same order. Each call has a name; if one worker makes a different call,
/// all of them throw. If a call fails (a worker is lost, is late, or fails), the connection ends:
/// later calls throw an error with the same reason until reconnect().
///
/// Values and sums of gradients use separate message groups, so that sums can be in progress while
/// layers exchange values. Gather functions may be called on any thread, but only one at a time.
/// sums() may be used concurrently with them. abort() is thread-safe.
class WorkerTeam {
 public:
  /// Collective: exchanges the workers' replica counts. The communicator's rank is this worker's
  /// index. The communicator's algorithm sums gradients unless `gpus` selects NCCL.
  WorkerTeam(std::unique_ptr<Communicator> communicator, WorkerGpus gpus,
             const StragglerOptions& stragglers = {});
  /// Same as above, but for the workers of a job. A process that replaces a lost worker is not
  /// connected until it and the other workers call require_connection() or reconnect().
  WorkerTeam(std::shared_ptr<WorkerGroup> group, const CommunicatorOptions& options,
             WorkerGpus gpus, const StragglerOptions& stragglers = {});
  ~WorkerTeam();

  int worker() const { return worker_; }
  int num_workers() const { return num_workers_; }
  /// Returns V, the number of replicas across all workers. first_replica() returns the index of
  /// this worker's first replica.
  int num_replicas() const { return first_of_.back(); }
  int first_replica() const { return first_replica_of(worker()); }
  /// Returns the index of worker `worker`'s first replica; for num_workers(), the total number of
  /// replicas.
  int first_replica_of(int worker) const { return first_of_[static_cast<std::size_t>(worker)]; }
  /// Returns the name of the algorithm that sums gradients: "canonical", "ring", ...
  std::string_view algorithm() const { return algorithm_; }
  bool is_canonical() const { return is_canonical_; }
  /// Returns the operation that sums GPU buffers over all workers, or nullptr if the hosts sum
  /// them.
  CrossDeviceOps* gpu_sums() const { return gpu_sums_.get(); }

  /// Returns the job's client; nullptr for a single worker and for workers without a job.
  ControlClient* control() const { return group_ ? group_->control() : nullptr; }
  bool is_connected() const { return sums_ != nullptr; }
  /// Returns how many times the workers have connected.
  std::uint64_t connection() const { return connection_; }
  /// Returns true if a call failed with `error` because a worker or a connection between two
  /// workers was lost (not because a worker failed by itself), so that reconnect() helps. Waits up
  /// to `patience` for the job to detect the loss.
  bool may_reconnect(const Error& error, Duration patience) const;
  /// Reconnects all workers, including restarted ones. Collective; must not overlap other calls.
  /// Throws kDeadlineExceeded naming the missing workers; if another worker is lost during the
  /// call, may_reconnect() returns true for the error.
  void reconnect(TimePoint deadline);
  /// Does nothing if this worker is connected. Connects a replacement if allow_restart() was called
  /// and all other workers were restarted, too; otherwise throws kFailedPrecondition. Every
  /// collective calls this first; call it yourself before threads start collectives concurrently.
  void require_connection();
  /// Declares that the workers hold all training state. If all workers are restarted, their new
  /// processes may then form a new job.
  void allow_restart() { may_restart_ = true; }

  /// Gathers one string from each worker; returns the strings in worker order.
  std::vector<std::string> gather_texts(std::string_view own, std::string_view name);
  /// Returns, on every worker, the string `own` of worker `giver`; the other workers' `own` is
  /// ignored.
  std::string broadcast_text(const std::string& own, int giver, std::string_view name);
  /// Calls Communicator::group() on the communicator for values. Returns nullptr if `members` is
  /// empty.
  std::unique_ptr<Communicator> make_group(const std::vector<int>& members, std::string_view name);
  /// Returns the values of all replicas, in replica order, on the host; `local` holds this worker's
  /// values. Also exchanges the digest of check(), and throws if the workers' digests differ.
  ReplicaValues gather(const ReplicaValues& local, std::string_view name);
  /// Starts to gather the elements of all workers in worker order: counts[w] elements from worker
  /// w. Gathers complete in the order in which they were started.
  CollectiveHandle start_all_gather(const ConstElements& own, const Elements& all,
                                    std::span<const std::size_t> counts, std::string_view name);
  /// Same as gather(), but for one dense value per replica.
  std::vector<Tensor> gather_tensors(std::span<const Tensor> local, std::string_view name);

  /// Returns the object that adds values across the replicas of all workers.
  PartialSums& sums();

  /// Returns the notes about values that must be equal on all workers, recorded since the workers
  /// last connected.
  const std::shared_ptr<ConsistencyCheck>& check() const { return check_; }
  /// Compares the notes in check() across all workers, then clears them. Collective. Throws as
  /// require_alike() does.
  void compare_notes();
  /// Same as compare_notes(), but exchanges only eight bytes if the notes are equal.
  void compare_digests();

  /// Returns the slow-worker detector, to which code outside this class also reports waiting times.
  StragglerWatch& stragglers() { return stragglers_; }
  /// Reports one step to the detector: each worker's result of StragglerWatch::take_wait().
  void note_waits(std::span<const double> waits);

  /// Sets the replicas' current step, for messages about late workers.
  void set_step(std::uint64_t step);

  /// Ends all calls, here and on the other workers, with kAborted and this reason.
  void abort(const Error& reason) noexcept;

 private:
  void begin(std::unique_ptr<Communicator> communicator);
  void set_replicas(const std::vector<std::int32_t>& counts);
  Communicator& values();
  std::vector<std::string> gather_with_digest(std::string own, std::string_view name);

  const std::shared_ptr<WorkerGroup> group_;  // destroyed last; may be null
  const CommunicatorOptions options_;         // used only with a group
  const int worker_;
  const int num_workers_;
  const WorkerGpus gpus_;
  const int num_local_replicas_;
  const std::shared_ptr<ConsistencyCheck> check_ = std::make_shared<ConsistencyCheck>();
  std::string algorithm_;
  bool is_canonical_ = true;
  std::unique_ptr<Communicator> values_;
  std::unique_ptr<Communicator> sums_;
  std::unique_ptr<PartialSums> partial_sums_;  // uses sums_
  std::shared_ptr<CrossDeviceOps> gpu_sums_;
  std::vector<std::shared_ptr<void>> watches_;  // destroyed before the objects that they watch
  std::vector<int> first_of_;                   // first replica of each worker, then the total
  StragglerWatch stragglers_;
  std::uint64_t connection_ = 0;
  bool may_restart_ = false;
  const int exceptions_at_begin_ = std::uncaught_exceptions();
};

/// Sends the state `own` of `giver` to the `takers` (in ascending order, without the giver), from
/// memory to memory: small tensors in one message, larger ones one by one. Collective, but workers
/// that neither send nor receive return at once. Returns the received state on takers, nullopt on
/// other workers. Throws kDataLoss if the state is damaged, and the same errors as collectives.
std::optional<CheckpointSnapshot> transfer_state(WorkerTeam& team, int giver,
                                                 const std::vector<int>& takers,
                                                 const CheckpointSnapshot* own);

/// Returns e.g. "'w' float32 [3, 4], values <hash>".
std::string describe_variable(const std::string& name, const Tensor& initial_value);

/// Collective: compares the variables that workers create. If a description differs from worker
/// 0's, throws kInvalidArgument on all workers. The error names the first such worker and contains
/// both descriptions.
void require_same_variable(std::string_view who, WorkerTeam& team, const std::string& description);

}  // namespace tutti::internal
