// Checkpoint of a coordinator's job: saved while closures run, and restored if a server is lost.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_file.h"
#include "strategy/parameter_server/coordinator/closure_queue.h"
#include "strategy/parameter_server/coordinator/server_group.h"
#include "tutti/core/executor.h"
#include "tutti/strategy/parameter_server/coordinator/coordinator_options.h"

namespace tutti::internal {

/// Versions of a checkpoint (checkpoint/run_folder.h), which contain all variables on servers and
/// the number of closures. A version is taken between closures: no closure begins until running
/// ones have ended and the servers have frozen their values. Training continues while the frozen
/// values are written. If a server is lost, all servers are restored from the last version, and the
/// queue repeats the closures since then. An error that prevents this stops the queue. Thread-safe.
class JobCheckpoint {
 public:
  /// Restores the newest version in the folder, or saves the first one. All arguments must outlive
  /// this object. Throws kInvalidArgument for an interval of 0, kFailedPrecondition for a version
  /// that another program saved, and the errors of ServerGroup and save_version().
  JobCheckpoint(ClosureQueue& queue, ServerGroup& servers,
                const ClusterCoordinatorOptions& options);
  ~JobCheckpoint() { stop(); }

  /// Ends this object's thread; later calls do nothing.
  void stop();
  /// Same as stop(), but first saves a version if the last one lacks changes; does not save if a
  /// closure other than a repeated one is queued or running.
  void finish();

  /// Returns true unless a server may be lost and has not been restored.
  bool may_assign() const { return num_troubles_.load() == num_handled_.load(); }
  /// Called when a closure ends.
  void note_end();
  /// Requests a check for lost servers; no closure is assigned until the check is done.
  void note_trouble();
  /// Returns once a version contains all closures that have ended. Throws the error that prevented
  /// saving, kDeadlineExceeded at the deadline, or kCancelled after stop().
  void save_now(TimePoint deadline);
  /// Waits until the servers have all changes of the finished closures; returns the generation,
  /// which each rollback increments. Throws the error that prevents this.
  std::uint64_t wait_until_current();

 private:
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
  void roll_back_servers();
  void require_no_outside_change(const std::string& why) const;
  void give_up(const Error& error);

  ClosureQueue& queue_;
  ServerGroup& servers_;
  const ClusterCoordinatorOptions options_;
  /// Number of server losses and failures, and number of these that recover() has handled.
  std::atomic<std::uint64_t> num_troubles_{0}, num_handled_{0};
  std::atomic<std::uint64_t> saved_outside_{
      0};  // number of changes outside closures in the last version
  // Used only by this object's thread.
  std::int64_t last_sequence_ = 0;  // number of the last version in the folder
  TimePoint next_at_;
  bool has_failed_ = false;  // true if the last attempt to save failed
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t num_wanted_ TUTTI_GUARDED_BY(mutex_) = 0;  // number of calls to save_now()
  std::uint64_t num_served_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Error> last_problem_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> gave_up_ TUTTI_GUARDED_BY(mutex_);
  bool is_stopped_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
