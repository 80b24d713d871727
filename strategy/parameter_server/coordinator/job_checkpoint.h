// The checkpoint of a coordinator's job: saved while closures run, and what brings a lost server
// back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_file.h"
#include "strategy/parameter_server/coordinator/closure_queue.h"
#include "strategy/parameter_server/coordinator/server_group.h"
#include "tutti/core/executor.h"
#include "tutti/strategy/parameter_server/coordinator/coordinator_options.h"

namespace tutti::internal {

/// Versions of a checkpoint (checkpoint/run_folder.h): all variables on servers, and how many
/// closures they contain. A version is taken between closures: those that have not begun wait until
/// the others have ended and servers have frozen their values, which are written while training
/// continues. A server that was lost takes all of them back to the last version, and the queue does
/// the closures since then again. What makes that impossible stops the queue with an error.
/// Thread-safe.
class JobCheckpoint {
 public:
  /// Restores the newest version in the folder, or saves the first one. All arguments outlive it.
  /// Throws kInvalidArgument for an interval of 0, kFailedPrecondition for a version of another
  /// program, and as ServerGroup and save_version().
  JobCheckpoint(ClosureQueue& queue, ServerGroup& servers,
                const ClusterCoordinatorOptions& options);
  ~JobCheckpoint() { stop(); }

  /// Ends its thread; later calls do nothing.
  void stop();
  /// Same as stop(), but saves before, if the last version does not contain all, and no closure
  /// waits or runs but those that are done again.
  void finish();

  /// Returns true while all servers are there.
  bool may_give_out() const { return !is_troubled_.load(std::memory_order_acquire); }
  /// A closure ended.
  void note_end();
  /// A server's failure ended this attempt: it is void if a server was lost, else put back.
  void put_back(const ClosureQueue::Handout& handout, AttemptReport report);
  /// Returns when a version contains all that has ended. Throws what kept it from that;
  /// kDeadlineExceeded; kCancelled after stop().
  void save_now(TimePoint deadline);
  /// Waits until servers have all changes of the closures that have finished; returns how often
  /// they were taken back. Throws what made that impossible.
  std::uint64_t wait_until_current();

 private:
  using Failed = std::pair<ClosureQueue::Handout, AttemptReport>;

  void run();
  void wait_for_work();
  bool has_unsaved() const;
  bool is_due() const;
  bool is_called() const TUTTI_REQUIRES(mutex_);
  bool is_stopping() const;
  std::optional<Error> try_save(bool is_wanted);
  void save(bool is_wanted);
  void release();
  void wait_for(bool (ClosureQueue::*wait)(TimePoint), const char* meaning);
  CheckpointFile read_servers();
  std::optional<Error> write(const CheckpointFile& version) const;
  void require_own_folder() const;
  std::optional<CheckpointFile> newest_version();
  void restore(const CheckpointFile& version);
  void recover();
  bool has_lost_server();
  void go_back();
  void require_no_outside_change(const std::string& why) const;
  void give_up(const Error& error);

  ClosureQueue& queue_;
  ServerGroup& servers_;
  const ClusterCoordinatorOptions options_;
  std::atomic<bool> is_troubled_{false};
  std::atomic<std::uint64_t> saved_outside_{0};  // changes outside closures, in the last version
  // Used by the thread alone.
  std::int64_t last_sequence_ = 0;  // of the last version in the folder
  TimePoint next_at_;
  bool has_failed_ = false;  // the last try to save
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Failed> failed_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_wanted_ TUTTI_GUARDED_BY(mutex_) = 0;  // calls of save_now()
  std::uint64_t num_served_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Error> last_problem_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> gave_up_ TUTTI_GUARDED_BY(mutex_);
  bool is_stopped_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
