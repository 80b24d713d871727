// Which closures wait, run and have ended: the coordinator's state without threads, clocks or I/O.
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

/// Why an attempt ended without a result and without a fault of the step. A value.
struct AttemptReport {
  enum class Kind : std::uint8_t {
    kNotStarted = 1,  // the worker was lost, or asked to stop, before it began: no attempt
    kTransient,       // infrastructure failed, the worker lives
    kWorkerLost,      // the worker died while it worked on the closure
  };
  Kind kind = Kind::kTransient;
  int worker = -1;
  ErrorOrigin origin = ErrorOrigin::kWorker;
  ErrorCode code = ErrorCode::kUnavailable;
  std::string text = {};
  bool operator==(const AttemptReport&) const = default;
};

struct LedgerRules {
  /// Attempts that infrastructure may end before the closure fails.
  int most_attempts = 4;
  /// A closure that was being worked on when so many different workers died fails: it may be what
  /// kills them.
  int most_workers_lost = 2;
  /// Finished closures stay in the ledger until a checkpoint contains them (note_saved()).
  bool keeps_finished = false;
  bool operator==(const LedgerRules&) const = default;
};

/// A value that changes by the functions below alone. Errors follow tf: the first failure cancels
/// what is queued; what runs is waited for; then the failure is raised once, and the next closure
/// is accepted. Functions that change it throw kFailedPrecondition, and change nothing, where that
/// cannot happen now.
class ClosureLedger {
 public:
  enum class State : std::uint8_t { kQueued = 1, kRunning, kFinished, kFailed, kCancelled };
  struct Closure {
    State state = State::kQueued;
    int attempts = 0;             // begun; while it runs: the number of this one
    int worker = -1;              // of the last attempt
    bool is_interrupted = false;  // it was started in this generation, and has not ended
    bool has_finished = false;    // when it last ended, also if roll_back() queued it again since
    std::vector<AttemptReport> reports = {};
    bool has_ended() const { return state != State::kQueued && state != State::kRunning; }
    bool operator==(const Closure&) const = default;
  };

  /// Closures are numbered from `first_number`, which a checkpoint or an earlier coordinator left.
  explicit ClosureLedger(LedgerRules rules = {}, std::uint64_t first_number = 0,
                         std::uint64_t generation = 1);

  /// Queues the next closure and returns its number.
  std::uint64_t schedule();
  /// Returns the number of the attempt, from 1.
  int start(std::uint64_t number, int worker);
  void finish(std::uint64_t number, int attempt);
  /// A running closure saw its cancellation and stopped; one that had finished is queued again.
  void stop(std::uint64_t number, int attempt);
  /// The closure is queued again, unless the rules say that it failed.
  void put_back(std::uint64_t number, int attempt, AttemptReport report);
  void fail(ClosureFailure failure);
  /// Returns the pending failures, which the user sees now, and clears them.
  std::vector<ClosureFailure> raise_failures();
  /// A checkpoint contains every closure below `number`, each of which has ended.
  void note_saved(std::uint64_t number);
  /// Servers are about to have the state of the last checkpoint again: closures that finished since
  /// are queued again, attempts under way are void, and the next generation begins.
  void roll_back();

  std::uint64_t next_number() const { return next_number_; }
  /// How often servers were given a state, counted over the coordinators of a strategy: a part of
  /// closures' ids (closure_id()), so that servers refuse requests of the generation before.
  std::uint64_t generation() const { return generation_; }
  /// The first in the queue: a closure that was put back precedes younger ones.
  std::optional<std::uint64_t> next_queued(bool interrupted_only = false) const;
  /// The first one whose last attempt in this generation did not end on `worker`; with
  /// `interrupted_only`, of those that have changed something, perhaps.
  std::optional<std::uint64_t> next_queued_new_to(int worker, bool interrupted_only = false) const;
  std::size_t num_queued() const { return queued_.size(); }
  std::size_t num_running() const { return num_running_; }
  /// Returns true if no closure waits or runs.
  bool is_drained() const { return queued_.empty() && num_running_ == 0; }
  /// Returns true if every closure that was started has ended: servers then have all changes of a
  /// closure or none.
  bool is_between_closures() const { return num_interrupted_ == 0; }
  /// Returns true if a closure that had finished was rolled back and has not finished again.
  bool is_catching_up() const { return num_repeated_ > 0; }
  /// Returns true if no other closure waits or runs.
  bool has_only_repeats() const { return queued_.size() + num_running_ == num_repeated_; }
  /// Failures that were not raised yet; closures are accepted while there are none.
  const std::vector<ClosureFailure>& failures() const { return failures_; }

  /// Every closure below it has ended.
  std::uint64_t finished_below() const { return finished_below_; }
  /// The last checkpoint contains every closure below it.
  std::uint64_t saved_below() const { return saved_below_; }

  /// nullptr: not scheduled yet, or ended and forgotten.
  const Closure* find(std::uint64_t number) const;
  /// Returns true if this attempt is the one under way: reports of other attempts are void.
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
  std::size_t num_interrupted_ = 0;  // running, or queued again
  std::size_t num_repeated_ = 0;     // queued or running ones that had finished
  std::vector<ClosureFailure> failures_;
};

}  // namespace tutti::internal
