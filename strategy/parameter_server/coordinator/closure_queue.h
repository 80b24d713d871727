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
  int num_workers = 1;
  /// Returns true if the worker may be given something now. Called with the queue's lock held;
  /// empty: all workers may.
  std::function<bool(int worker)> is_present = {};
  LedgerRules rules = {};
  /// Number of the first closure, and generation of the first ids (ClosureLedger).
  std::uint64_t first_number = 0;
  std::uint64_t generation = 1;
};

/// ClosureLedger with a mutex and waits. Closures go to the waiting worker that has the least to
/// do. Thread-safe.
class ClosureQueue {
 public:
  /// A closure that a worker is to run. `token` is cancelled when its result is not needed any
  /// more.
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

  /// Waits while the queue is full or another thread is in wait(). Throws a pending failure (see
  /// wait()); kDeadlineExceeded; kCancelled after stop(). When it throws, `work` is cancelled.
  std::uint64_t put(std::shared_ptr<const ScheduledWork> work,
                    TimePoint deadline = TimePoint::max());
  /// Waits for the next closure that this worker is to run. A second one is only given while one
  /// is left for each worker, for it waits for the first. A closure whose last attempt this worker
  /// ended goes to another one, unless the others are busy or absent. Returns nothing at the
  /// deadline and after stop().
  std::optional<Handout> get(int worker, TimePoint deadline = TimePoint::max());
  /// Looks again which workers are present.
  void wake_workers();
  /// Fails the first closure in the queue, which no worker takes. Does nothing if there is none.
  void fail_next(ErrorCode code, ErrorOrigin origin, std::string text);

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
  /// Returns true if no closure is queued or runs. Throws as wait(), after running ones have ended.
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
  /// Returns the bytes of closures that have ended, and are kept until a checkpoint contains them.
  std::size_t num_held_bytes() const;
  /// Returns the number of closures that were put, also into queues that this one continues.
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
    bool is_settled = false;                        // its result is final
  };
  /// A thread in get().
  struct Waiting {
    int worker = 0;
    std::optional<Handout> handout = {};
    CondVar given = {};
  };

  template <class Number>
  Number of_ledger(Number (ClosureLedger::*get)() const) const {
    MutexLock lock(mutex_);
    return (ledger_.*get)();
  }
  bool is_present(int worker) const { return !options_.is_present || options_.is_present(worker); }
  std::optional<std::uint64_t> next_for(int worker) TUTTI_REQUIRES(mutex_);
  Handout start(std::uint64_t number, int worker) TUTTI_REQUIRES(mutex_);
  void give_out() TUTTI_REQUIRES(mutex_);
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
  CondVar for_users_;
  std::vector<Waiting*> waiting_ TUTTI_GUARDED_BY(mutex_);
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
