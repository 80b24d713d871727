// Thread-safe queue of the closures that are waiting for a worker or running on one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/closure_ledger.h"
#include "strategy/parameter_server/protocol/operation.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

namespace tutti::internal {

/// Closure in the queue: the step to run and its arguments, and the result that a caller waits for.
class ScheduledWork {
 public:
  ScheduledWork(std::string step, Nest arguments);
  const std::string& step() const { return step_; }
  const Nest& arguments() const { return arguments_; }
  const std::shared_ptr<RemoteResult>& result() const { return result_; }
  /// Returns the approximate number of bytes that this object keeps.
  std::size_t num_bytes() const { return num_bytes_; }
  /// Completes the result with an error, because the closure failed (ClosureError) or was cancelled
  /// (kCancelled). Called once. Requires: the queue's lock held.
  void ended(const Error& error) const;

 private:
  const std::string step_;
  const Nest arguments_;
  const std::size_t num_bytes_;
  const std::shared_ptr<RemoteResult> result_ = std::make_shared<RemoteResult>();
};

struct ClosureQueueOptions {
  /// Number of queued closures at which put() waits.
  std::size_t most_queued = 4096;
  /// Number of closures that one worker has at a time; the next closure begins while the outcome of
  /// the previous one is being reported.
  int window = 2;
  int num_workers = 1;
  /// Predicate that returns true if the worker may receive a closure now; called with the queue's
  /// lock held. If it is empty, every worker may receive one.
  std::function<bool(int worker)> is_present = {};
  LedgerRules rules = {};
  /// Initial values for ClosureLedger: number of the first closure, and generation of closure ids.
  std::uint64_t first_number = 0;
  std::uint64_t generation = 1;
};

/// ClosureLedger with a mutex and blocking calls. A closure is given to the waiting worker that has
/// the fewest closures. Thread-safe.
class ClosureQueue {
 public:
  /// Closure that a worker is to run. `token` is cancelled when the closure's result is no longer
  /// needed.
  struct AssignedClosure {
    std::uint64_t number = 0;
    int attempt = 0;
    int worker = 0;
    std::uint64_t id = 0;  // closure_id(), under which servers know the closure
    std::shared_ptr<const ScheduledWork> work = {};
    std::shared_ptr<CancellationToken> token = {};
  };

  explicit ClosureQueue(ClosureQueueOptions options = {});

  /// Numbers closures from `first_number` on, in the next generation. Requires: no closure has been
  /// scheduled yet.
  void continue_from(std::uint64_t first_number);

  /// Queues a closure and returns its number. Waits while the queue is full or a thread is in
  /// wait(). Throws a pending failure (see wait()), kDeadlineExceeded, or, after stop(),
  /// kCancelled. If it throws, `work` is cancelled.
  std::uint64_t put(std::shared_ptr<const ScheduledWork> work,
                    TimePoint deadline = TimePoint::max());
  /// Waits for the next closure that this worker is to run. A worker that has a closure gets a
  /// second one only while there are enough for all workers, because the second waits for the
  /// first. A closure whose last attempt ended on this worker goes to another worker, unless all
  /// other workers are busy or absent. Returns nullopt at the deadline and after stop().
  std::optional<AssignedClosure> get(int worker, TimePoint deadline = TimePoint::max());
  /// Reassigns queued closures after workers have become available or unavailable.
  void wake_workers();
  /// Fails the first queued closure, which no worker can run. Does nothing if no closure is queued.
  void fail_next(ErrorCode code, ErrorOrigin origin, std::string text);

  // Functions that end an attempt. They do nothing and return false if the attempt is no longer
  // running.

  /// `deliver` runs with the lock held, before any thread can see that the closure has finished.
  bool mark_finished(const AssignedClosure& assigned, const std::function<void()>& deliver = {});
  bool mark_failed(const AssignedClosure& assigned, ErrorCode code, ErrorOrigin origin,
                   std::string text);
  /// Records that the closure ended with kCancelled because its token was cancelled.
  bool mark_stopped(const AssignedClosure& assigned);
  /// Queues the closure again, ahead of closures scheduled later; see ClosureLedger::put_back().
  bool put_back(const AssignedClosure& assigned, AttemptReport report);

  /// Waits until no closure is queued or running. After a failure, waits only for running closures,
  /// clears the failures since the last call, and throws ClosureError for them. Throws
  /// kDeadlineExceeded naming the running closures, and kCancelled after stop().
  void wait(TimePoint deadline = TimePoint::max());
  /// Returns true if no closure is queued or running. If a closure failed, waits until the running
  /// closures have ended, then throws the same errors as wait().
  bool done();

  /// Cancels all closures. Waiting functions return, or throw `why` (kCancelled if it is nullopt).
  void stop(std::optional<Error> why = std::nullopt);
  bool is_stopped() const;

  // Functions for checkpoints; see ClosureLedger.

  /// Stops assigning closures that have not begun, until resume(). Returns true once every closure
  /// that had begun has ended; false at the deadline and after stop().
  bool pause(TimePoint deadline);
  void resume();
  void note_saved(std::uint64_t number);
  void roll_back();
  /// Waits until all closures that had finished before a server was lost have finished again.
  /// Throws the same errors as wait(), but kDataLoss instead of ClosureError if a repeated closure
  /// fails.
  void wait_until_caught_up(TimePoint deadline);
  /// Same as wait_until_caught_up(), but returns true once the closures have finished, or false at
  /// the deadline or after stop().
  bool catch_up(TimePoint deadline);
  /// Same as ClosureLedger::has_only_repeats().
  bool has_only_repeats() const { return of_ledger(&ClosureLedger::has_only_repeats); }

  std::uint64_t generation() const { return of_ledger(&ClosureLedger::generation); }
  std::uint64_t finished_below() const { return of_ledger(&ClosureLedger::finished_below); }
  std::uint64_t saved_below() const { return of_ledger(&ClosureLedger::saved_below); }
  /// Returns the total size, in bytes, of the finished closures that are held until a checkpoint
  /// contains them.
  std::size_t num_held_bytes() const;
  /// Returns the number of closures ever scheduled, including those before continue_from().
  std::uint64_t num_scheduled() const { return of_ledger(&ClosureLedger::next_number); }
  std::size_t num_queued() const { return of_ledger(&ClosureLedger::num_queued); }
  std::size_t num_running() const { return of_ledger(&ClosureLedger::num_running); }
  /// Returns the number of closures that have ended so far, for a watchdog.
  std::uint64_t num_ended() const;
  /// Returns a copy of the ledger, for checks.
  ClosureLedger ledger() const;
  /// Returns the watermark, which holds the ledger's finished_below() as a closure's id. It rises
  /// whenever finished_below() does.
  const std::shared_ptr<ClosureWatermark>& watermark() const { return watermark_; }
  /// Returns "closure 7 on worker 1 (attempt 2)" for each running closure.
  std::vector<std::string> running() const;

 private:
  struct Entry {
    std::shared_ptr<const ScheduledWork> work = {};
    std::shared_ptr<CancellationToken> token = {};  // set while the closure runs
    bool is_settled = false;                        // its result is final
  };
  /// A thread in get().
  struct Waiting {
    int worker = 0;
    std::optional<AssignedClosure> assigned = {};
    CondVar given = {};
  };

  template <class Number>
  Number of_ledger(Number (ClosureLedger::*get)() const) const {
    MutexLock lock(mutex_);
    return (ledger_.*get)();
  }
  bool is_present(int worker) const { return !options_.is_present || options_.is_present(worker); }
  std::optional<std::uint64_t> next_for(int worker) TUTTI_REQUIRES(mutex_);
  AssignedClosure start(std::uint64_t number, int worker) TUTTI_REQUIRES(mutex_);
  void assign_closures() TUTTI_REQUIRES(mutex_);
  void settle(std::uint64_t first) TUTTI_REQUIRES(mutex_);
  void settle_entry(Entry& entry) TUTTI_REQUIRES(mutex_);
  void forget() TUTTI_REQUIRES(mutex_);
  void stop_now(const char* why) TUTTI_REQUIRES(mutex_);
  bool end_attempt(const AssignedClosure& assigned, const std::function<void()>& end);
  void require_no_failure(std::uint64_t number) TUTTI_REQUIRES(mutex_);
  void attempt_over(const AssignedClosure& assigned) TUTTI_REQUIRES(mutex_);
  void raise_failures(TimePoint deadline) TUTTI_REQUIRES(mutex_);
  void require_in_time(bool in_time, const char* who) TUTTI_REQUIRES(mutex_);
  void raise_watermark() TUTTI_REQUIRES(mutex_);
  std::vector<std::string> running_now() const TUTTI_REQUIRES(mutex_);

  const ClosureQueueOptions options_;
  const std::shared_ptr<ClosureWatermark> watermark_ = std::make_shared<ClosureWatermark>();
  mutable Mutex mutex_;
  CondVar for_users_;
  std::vector<Waiting*> waiting_ TUTTI_GUARDED_BY(mutex_);
  ClosureLedger ledger_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Entry> entries_ TUTTI_GUARDED_BY(mutex_);
  std::map<int, int> num_running_on_ TUTTI_GUARDED_BY(mutex_);
  /// Running closures, in the order in which they were assigned.
  std::map<std::uint64_t, std::uint64_t> running_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_given_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::size_t num_held_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_paused_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_repeating_ TUTTI_GUARDED_BY(mutex_) =
      false;  // true from a rollback until repeated closures have caught up
  int num_joining_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_ended_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_stopped_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<Error> why_stopped_ TUTTI_GUARDED_BY(mutex_);
  /// Set if variables lack the changes of closures whose results callers already have.
  std::optional<Error> why_incomplete_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
