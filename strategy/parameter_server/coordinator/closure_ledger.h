// Ledger of all closures and their states: the coordinator's state, without threads, clocks or I/O.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/strategy/parameter_server/client/closure_context.h"

namespace tutti::internal {

/// Reason why an attempt ended without a result. Value type.
struct AttemptReport {
  enum class Kind : std::uint8_t {
    kNotStarted = 1,  // the worker was lost or stopped before the attempt began
    kInterrupted,     // infrastructure failed: the worker, a server or a connection
    kFailed,          // the step failed, or its arguments could not be created
    kStopped,         // the step noticed its cancellation and stopped
  };
  Kind kind = Kind::kInterrupted;
  int worker = -1;
  ErrorOrigin origin = ErrorOrigin::kWorker;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string text = {};
  bool operator==(const AttemptReport&) const = default;
};

struct LedgerRules {
  /// Number of attempts, each ended by an infrastructure error, after which a closure fails.
  int most_attempts = 4;
  /// If true, finished closures stay in the ledger until a checkpoint contains them (note_saved()).
  bool keeps_finished = false;
  bool operator==(const LedgerRules&) const = default;
};

/// States of all closures. Errors follow tf: the first failure cancels queued closures; once the
/// running ones have ended, the failure is raised, once, and then the next closure is accepted.
/// Functions that change the ledger throw kFailedPrecondition, and change nothing, if the event is
/// impossible in the current state. Value type.
class ClosureLedger {
 public:
  enum class State : std::uint8_t { kQueued = 1, kRunning, kFinished, kFailed, kCancelled };
  struct Closure {
    State state = State::kQueued;
    int attempts = 0;             // number of attempts started, including the current one
    int worker = -1;              // worker of the last attempt
    bool is_interrupted = false;  // started in this generation, but has not ended
    bool has_finished = false;  // true if the last ended attempt succeeded; not reset by rollbacks
    std::vector<AttemptReport> reports = {};
    bool has_ended() const { return state != State::kQueued && state != State::kRunning; }
    bool operator==(const Closure&) const = default;
  };

  /// `first_number`: first number after those of a checkpoint or an earlier coordinator.
  explicit ClosureLedger(LedgerRules rules = {}, std::uint64_t first_number = 0,
                         std::uint64_t generation = 1);

  /// Queues the next closure and returns its number.
  std::uint64_t schedule();
  /// Starts an attempt on `worker` and returns its number, counted from 1.
  int start(std::uint64_t number, int worker);
  void finish(std::uint64_t number, int attempt);
  /// Ends a closure that stopped after its cancellation; queues it again if it had finished
  /// earlier.
  void stop(std::uint64_t number, int attempt);
  /// Queues the closure again, unless LedgerRules make it fail or an earlier failure cancels it.
  /// Attempts that were not started do not count towards most_attempts.
  void put_back(std::uint64_t number, int attempt, AttemptReport report);
  void fail(ClosureFailure failure);
  /// Returns the pending failures, to be reported to the user, and clears them.
  std::vector<ClosureFailure> raise_failures();
  /// Records that a checkpoint contains every closure below `number`, each of which has ended.
  void note_saved(std::uint64_t number);
  /// Prepares for restoring the servers from the last checkpoint: requeues running closures and
  /// those that finished after it, voids all attempts, and begins the next generation. The closures
  /// begin in their original order, so that no checkpoint contains a later closure but lacks an
  /// earlier one.
  void roll_back();

  std::uint64_t next_number() const { return next_number_; }
  /// Returns how many times the coordinators of this strategy have set the servers' state. The
  /// number is part of closure_id(), so that servers refuse requests from earlier generations.
  std::uint64_t generation() const { return generation_; }
  /// Returns the first queued closure. Closures that were put back precede those queued later.
  std::optional<std::uint64_t> next_queued(bool interrupted_only = false) const;
  /// Returns the first queued closure, skipping closures whose last attempt in this generation
  /// ended on `worker`. With `interrupted_only`, also skips closures that cannot have changed
  /// anything.
  std::optional<std::uint64_t> next_queued_new_to(int worker, bool interrupted_only = false) const;
  std::size_t num_queued() const { return queued_.size(); }
  std::size_t num_running() const { return num_running_; }
  /// Returns true if no closure is queued or running.
  bool is_drained() const { return queued_.empty() && num_running_ == 0; }
  /// Returns true if every closure that was started has ended, i.e. the servers have either all or
  /// none of each closure's changes.
  bool is_between_closures() const { return num_interrupted_ == 0; }
  /// Returns true if a closure that had finished was rolled back and has not finished again.
  bool is_catching_up() const { return num_repeated_ > 0; }
  /// Returns true if all queued and running closures repeat closures that a rollback has undone.
  bool has_only_repeats() const { return queued_.size() + num_running_ == num_repeated_; }
  /// Returns the failures that have not been reported to a caller yet. Closures are accepted only
  /// while there are no failures.
  const std::vector<ClosureFailure>& failures() const { return failures_; }

  /// Returns a closure number such that every closure with a lower number has ended.
  std::uint64_t finished_below() const { return finished_below_; }
  /// Returns the closure number below which the last checkpoint contains every closure.
  std::uint64_t saved_below() const { return saved_below_; }

  /// Returns the closure; nullptr if it is not scheduled yet, or has ended and been removed.
  const Closure* find(std::uint64_t number) const;
  /// Returns true if this attempt is the current one; reports from other attempts are ignored.
  bool is_current(std::uint64_t number, int attempt) const;

  bool operator==(const ClosureLedger&) const = default;

 private:
  Closure& running(std::uint64_t number, int attempt, const char* what);
  void end(std::uint64_t number, Closure& closure, State state);
  void queue_again(std::uint64_t number, Closure& closure);
  void add_failure(ClosureFailure failure);
  std::optional<ClosureFailure> verdict(std::uint64_t number, const Closure& closure) const;
  void advance();

  LedgerRules rules_;
  std::uint64_t generation_;
  std::uint64_t next_number_;
  std::uint64_t finished_below_;
  std::uint64_t saved_below_;
  std::map<std::uint64_t, Closure> closures_;
  std::set<std::uint64_t> queued_;
  std::size_t num_running_ = 0;
  std::size_t num_interrupted_ = 0;  // closures that are running, or queued again
  std::size_t num_repeated_ = 0;     // queued or running closures that had already finished once
  std::vector<ClosureFailure> failures_;
};

}  // namespace tutti::internal
