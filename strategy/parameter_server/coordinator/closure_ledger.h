// Which closures wait, run and have ended: the coordinator's state without threads, clocks or I/O.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/closure_event.h"

namespace tutti::internal {

class RecordReader;

struct LedgerRules {
  /// Attempts that infrastructure may end before the closure fails.
  int most_attempts = 4;
  /// A closure that was being worked on when so many different workers died fails: it may be what
  /// kills them.
  int most_workers_lost = 2;
  bool operator==(const LedgerRules&) const = default;
};

/// A value that changes by events alone, so that a journal of them gives the same state again.
/// Errors follow tf: the first failure cancels what is queued; what runs is waited for; then it is
/// raised once, and the next closure is accepted.
class ClosureLedger {
 public:
  enum class State : std::uint8_t { kQueued = 1, kRunning, kFinished, kFailed, kCancelled };
  struct Closure {
    State state = State::kQueued;
    int attempts = 0;  // begun; while it runs: the number of this one
    int worker = -1;   // of the last attempt
    std::vector<AttemptReport> reports = {};
    std::string content = {};
    bool has_ended() const { return state != State::kQueued && state != State::kRunning; }
    bool operator==(const Closure&) const = default;
  };

  explicit ClosureLedger(LedgerRules rules = {}) : rules_(rules) {}

  /// Throws kFailedPrecondition, and changes nothing, for an event that cannot happen now.
  void apply(const ClosureEvent& event);
  /// The state that records of events (encode_record()) lead to; a last one that is cut short is
  /// left out. Throws as RecordReader; kDataLoss for an event that cannot follow.
  static ClosureLedger replay(std::span<const std::byte> journal, LedgerRules rules = {});
  /// The same of records that go on from this state.
  void replay_from_here(RecordReader& in);

  std::uint64_t term() const { return term_; }
  std::uint64_t next_number() const { return next_number_; }
  /// The first in the queue: a closure that was put back stands before younger ones.
  std::optional<std::uint64_t> next_queued() const;
  /// The first one whose last attempt did not end on `worker`.
  std::optional<std::uint64_t> next_queued_new_to(int worker) const;
  std::size_t num_queued() const { return queued_.size(); }
  std::size_t num_running() const { return num_running_; }
  /// Nothing waits or runs.
  bool is_drained() const { return queued_.empty() && num_running_ == 0; }
  /// Failures that were not raised yet; closures are accepted while there are none.
  const std::vector<ClosureFailure>& failures() const { return failures_; }

  /// Every closure below it has ended.
  std::uint64_t finished_below() const { return finished_below_; }
  std::uint64_t last_cut() const { return last_cut_; }
  /// Of any that began: later ones have higher numbers, so that late answers are told apart.
  std::uint64_t last_cut_begun() const { return last_cut_begun_; }

  /// find() has forgotten all below it.
  std::uint64_t kept_from() const {
    return closures_.empty() ? next_number_ : closures_.begin()->first;
  }
  /// nullptr: not scheduled yet, or ended and forgotten.
  const Closure* find(std::uint64_t number) const;
  /// Whether this attempt is the one under way: what others report is late, and void.
  bool is_current(std::uint64_t number, int attempt) const;

  /// All of the state: equal bytes mean equal ledgers.
  std::vector<std::byte> bytes() const;
  /// The ledger of these bytes, which from now on has these rules. Throws kDataLoss for bytes that
  /// bytes() did not write.
  static ClosureLedger restore(std::span<const std::byte> bytes, LedgerRules rules);
  bool operator==(const ClosureLedger&) const = default;

 private:
  void on(const events::Scheduled& event);
  void on(const events::Started& event);
  void on(const events::Finished& event);
  void on(const events::PutBack& event);
  void on(const events::Failed& event);
  void on(const events::Stopped& event);
  void on(const events::ErrorRaised& event);
  void on(const events::TookOver& event);
  void on(const events::CutBegan& event);
  void on(const events::CutTaken& event);
  void on(const events::BeganAfter& event);

  Closure& running(std::uint64_t number, int attempt, const char* what);
  void end(std::uint64_t number, Closure& closure, State state);
  void queue_again(std::uint64_t number, Closure& closure);
  void add_failure(ClosureFailure failure);
  std::optional<ClosureFailure> verdict(std::uint64_t number, const Closure& closure) const;
  bool is_watermark_sound() const;
  void forget();

  LedgerRules rules_;
  std::uint64_t term_ = 0;
  std::uint64_t next_number_ = 0;
  std::uint64_t finished_below_ = 0;
  std::uint64_t last_cut_ = 0;
  std::uint64_t last_cut_begun_ = 0;
  bool is_taking_cut_ = false;  // the last that began
  std::map<std::uint64_t, Closure> closures_;
  std::set<std::uint64_t> queued_;
  std::size_t num_running_ = 0;
  std::vector<ClosureFailure> failures_;
};

}  // namespace tutti::internal
