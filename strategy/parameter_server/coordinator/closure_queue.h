// The closures that wait for a worker and those under way, for many threads.
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
  /// Bytes that this object keeps, about.
  std::size_t num_bytes() const { return num_bytes_; }
  /// Aborts the result: the closure failed (ClosureError) or was cancelled (kCancelled). Called
  /// once, with the queue's lock held.
  void ended(const Error& error) const;

 private:
  const std::string step_;
  const Nest arguments_;
  const std::size_t num_bytes_;
  const std::shared_ptr<RemoteResult> result_ = std::make_shared<RemoteResult>();
};

struct ClosureQueueOptions {
  /// put() waits while so many closures are queued.
  std::size_t most_queued = 4096;
  /// Closures that one worker has at a time: the next begins while the last is being reported.
  int window = 2;
  LedgerRules rules = {};
  /// Of the first closure, and of the coordinator's first ids (ClosureLedger).
  std::uint64_t first_number = 0;
  std::uint64_t generation = 1;
};

/// The workers that may be given something now. Asked with the queue's lock held.
using ClosureTakers = std::function<std::vector<int>()>;

/// ClosureLedger with a mutex and waits. Threads: any.
class ClosureQueue {
 public:
  /// A closure that a worker is to run. `token` is cancelled when nobody waits for it any more.
  struct Handout {
    std::uint64_t number = 0;
    int attempt = 0;
    int worker = 0;
    std::uint64_t id = 0;  // to servers
    std::shared_ptr<const ScheduledWork> work = {};
    std::shared_ptr<CancellationToken> token = {};
  };

  explicit ClosureQueue(ClosureQueueOptions options = {});

  /// Begins at this number, in the next generation. Requires: no closure was scheduled.
  void continue_from(std::uint64_t first_number);

  /// Waits while the queue is full or somebody is in wait(). Throws a pending failure (see wait());
  /// kDeadlineExceeded; kCancelled after stop(). When it throws, `work` is told that it was
  /// cancelled.
  std::uint64_t put(std::shared_ptr<const ScheduledWork> work,
                    TimePoint deadline = TimePoint::max());
  /// The next closure, and the worker that is to have it: the one that has the least to do, and
  /// fewer than `window`. One that just could not do the closure gets it again if it is alone.
  /// Nothing at the deadline, after stop(), and when spare() has something.
  std::optional<Handout> get(const ClosureTakers& takers, TimePoint deadline = TimePoint::max());
  /// Where a worker has nothing to do while the queue is empty: a closure that another one may not
  /// have begun, for it has two. Each is given once per attempt. Ask that worker for it, and put it
  /// back if it gives it.
  std::optional<Handout> spare(const ClosureTakers& takers);
  /// Wakes get(), which asks who may take closures again.
  void wake_workers();

  // How an attempt ended. False, and nothing happens, for one that is not under way any more.

  /// `deliver` runs with the lock held before anybody learns that the closure finished.
  bool mark_finished(const Handout& handout, const std::function<void()>& deliver = {});
  bool mark_failed(const Handout& handout, ErrorCode code, ErrorOrigin origin, std::string text);
  /// kCancelled after its token was.
  bool mark_stopped(const Handout& handout);
  /// Stands at the front of the queue, unless the ledger's rules say that it failed.
  bool put_back(const Handout& handout, AttemptReport report);

  /// Until nothing is queued or runs. Throws ClosureError for failures since the last time, once
  /// nothing runs any more, and clears them; kDeadlineExceeded saying what runs; kCancelled after
  /// stop().
  void wait(TimePoint deadline = TimePoint::max());
  /// Whether nothing is queued or runs. Throws as wait(), after waiting for what runs.
  bool done();

  /// Cancels everything; no function waits any more, and those that did throw `why` (kCancelled if
  /// there is none).
  void stop(std::optional<Error> why = std::nullopt);
  bool is_stopped() const;

  // For checkpoints: see ClosureLedger.

  /// Closures that have not begun are not handed out until resume(). Returns true when every
  /// closure that had begun has ended, false at the deadline and after stop().
  bool pause(TimePoint deadline);
  void resume();
  void note_saved(std::uint64_t number);
  void roll_back();
  /// Waits until closures that had finished before a server was lost have finished again. Throws as
  /// wait(), but for failures of closures; kDataLoss if one of those closures failed this time.
  void wait_until_caught_up(TimePoint deadline);
  /// Returns true when they have, false at the deadline and after stop().
  bool catch_up(TimePoint deadline);
  /// Returns true if no other closure waits or runs.
  bool has_only_repeats() const { return of_ledger(&ClosureLedger::has_only_repeats); }

  std::uint64_t generation() const { return of_ledger(&ClosureLedger::generation); }
  std::uint64_t finished_below() const { return of_ledger(&ClosureLedger::finished_below); }
  std::uint64_t saved_below() const { return of_ledger(&ClosureLedger::saved_below); }
  /// Of closures that have ended, and are kept until a checkpoint contains them.
  std::size_t num_held_bytes() const;
  /// Of schedule(): how many were put, also into queues that this one goes on from.
  std::uint64_t num_scheduled() const { return of_ledger(&ClosureLedger::next_number); }
  std::size_t num_queued() const { return of_ledger(&ClosureLedger::num_queued); }
  std::size_t num_running() const { return of_ledger(&ClosureLedger::num_running); }
  /// Closures that ended so far: what a watchdog looks at.
  std::uint64_t num_ended() const;
  /// A copy, for checks.
  ClosureLedger ledger() const;
  /// Follows finished_below(), as an id.
  const std::shared_ptr<ClosureWatermark>& watermark() const { return watermark_; }
  /// "closure 7 on worker 1 (attempt 2)", for each that runs.
  std::vector<std::string> running() const;

 private:
  struct Entry {
    std::shared_ptr<const ScheduledWork> work = {};
    std::shared_ptr<CancellationToken> token = {};  // while it runs
    bool is_settled = false;                        // finished, or was told that it ended
    bool is_spared = false;                         // this attempt, by spare()
  };

  template <class Number>
  Number of_ledger(Number (ClosureLedger::*get)() const) const {
    MutexLock lock(mutex_);
    return (ledger_.*get)();
  }
  std::optional<std::pair<std::uint64_t, int>> next_for(std::vector<int> takers)
      TUTTI_REQUIRES(mutex_);
  std::optional<std::uint64_t> spare_for(const std::vector<int>& takers) TUTTI_REQUIRES(mutex_);
  void settle(std::uint64_t first) TUTTI_REQUIRES(mutex_);
  void settle_entry(Entry& entry) TUTTI_REQUIRES(mutex_);
  void forget() TUTTI_REQUIRES(mutex_);
  void stop_now(const char* why) TUTTI_REQUIRES(mutex_);
  bool end_attempt(const Handout& handout, const std::function<void()>& end);
  void require_no_failure(std::uint64_t number) TUTTI_REQUIRES(mutex_);
  void attempt_over(const Handout& handout) TUTTI_REQUIRES(mutex_);
  void raise_failures(TimePoint deadline) TUTTI_REQUIRES(mutex_);
  void require_in_time(bool in_time, const char* who) TUTTI_REQUIRES(mutex_);
  void raise_watermark() TUTTI_REQUIRES(mutex_);
  std::vector<std::string> running_now() const TUTTI_REQUIRES(mutex_);

  const ClosureQueueOptions options_;
  const std::shared_ptr<ClosureWatermark> watermark_ = std::make_shared<ClosureWatermark>();
  mutable Mutex mutex_;
  CondVar for_workers_;
  CondVar for_users_;
  ClosureLedger ledger_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Entry> entries_ TUTTI_GUARDED_BY(mutex_);
  std::map<int, int> num_running_on_ TUTTI_GUARDED_BY(mutex_);
  /// In the order in which they were given out.
  std::map<std::uint64_t, std::uint64_t> running_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_given_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::size_t num_held_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_paused_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_repeating_ TUTTI_GUARDED_BY(mutex_) = false;  // closures that had finished
  int num_joining_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_ended_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_stopped_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<Error> why_stopped_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> why_incomplete_ TUTTI_GUARDED_BY(mutex_);  // results without their changes
};

}  // namespace tutti::internal
