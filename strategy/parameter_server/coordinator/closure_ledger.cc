// Implements ClosureLedger: one function per event, which first checks and then changes the state.
// SPDX-License-Identifier: Apache-2.0
//
// A closure *ends* when it finishes, fails or is cancelled. It is removed once it and all closures
// before it have ended and, if finished ones are kept, a checkpoint contains them.
#include "strategy/parameter_server/coordinator/closure_ledger.h"

#include <utility>

namespace tutti::internal {
namespace {

void expect(bool condition, const char* what, std::uint64_t number, const char* reason) {
  if (condition) return;
  tutti::fail(ErrorCode::kFailedPrecondition, "closure ledger: ", what, " ", number, ": ", reason);
}

}  // namespace

ClosureLedger::ClosureLedger(LedgerRules rules, std::uint64_t first_number,
                             std::uint64_t generation)
    : rules_(rules),
      generation_(generation),
      next_number_(first_number),
      finished_below_(first_number),
      saved_below_(first_number) {}

std::optional<std::uint64_t> ClosureLedger::next_queued(bool interrupted_only) const {
  for (const std::uint64_t number : queued_) {
    if (!interrupted_only || closures_.at(number).is_interrupted) return number;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> ClosureLedger::next_queued_new_to(int worker,
                                                               bool interrupted_only) const {
  for (const std::uint64_t number : queued_) {
    const Closure& closure = closures_.at(number);
    if (interrupted_only && !closure.is_interrupted) continue;
    if (closure.reports.empty() || closure.reports.back().worker != worker) return number;
  }
  return std::nullopt;
}

const ClosureLedger::Closure* ClosureLedger::find(std::uint64_t number) const {
  const auto found = closures_.find(number);
  return found == closures_.end() ? nullptr : &found->second;
}

bool ClosureLedger::is_current(std::uint64_t number, int attempt) const {
  const Closure* closure = find(number);
  return closure != nullptr && closure->state == State::kRunning && closure->attempts == attempt;
}

ClosureLedger::Closure& ClosureLedger::running(std::uint64_t number, int attempt,
                                               const char* what) {
  expect(is_current(number, attempt), what, number, "this attempt is not under way");
  return closures_.at(number);
}

std::uint64_t ClosureLedger::schedule() {
  expect(failures_.empty(), "schedule", next_number_, "a failure has not been raised yet");
  closures_[next_number_] = {};
  queued_.insert(next_number_);
  return next_number_++;
}

int ClosureLedger::start(std::uint64_t number, int worker) {
  expect(queued_.contains(number), "start", number, "it is not queued");
  Closure& closure = closures_.at(number);
  queued_.erase(number);
  ++num_running_;
  if (!std::exchange(closure.is_interrupted, true)) ++num_interrupted_;
  closure.state = State::kRunning;
  closure.worker = worker;
  return ++closure.attempts;
}

void ClosureLedger::finish(std::uint64_t number, int attempt) {
  Closure& closure = running(number, attempt, "finish");
  --num_running_;
  end(number, closure, State::kFinished);
  advance();
}

void ClosureLedger::stop(std::uint64_t number, int attempt) {
  Closure& closure = running(number, attempt, "stop");
  --num_running_;
  if (closure.has_finished) {
    queue_again(number,
                closure);  // a caller already has the result, so the changes must not be lost
  } else {
    end(number, closure, State::kCancelled);
  }
  advance();
}

void ClosureLedger::put_back(std::uint64_t number, int attempt, AttemptReport report) {
  Closure& closure = running(number, attempt, "put back");
  --num_running_;
  if (report.kind != AttemptReport::Kind::kNotStarted) {
    closure.reports.push_back(std::move(report));
  }
  if (auto failure = verdict(number, closure)) {
    end(number, closure, State::kFailed);
    add_failure(std::move(*failure));
  } else if (!failures_.empty() && !closure.has_finished) {
    end(number, closure, State::kCancelled);
  } else {
    queue_again(number, closure);
  }
  advance();
}

void ClosureLedger::fail(ClosureFailure failure) {
  Closure& closure = running(failure.closure, failure.attempt, "fail");
  --num_running_;
  end(failure.closure, closure, State::kFailed);
  add_failure(std::move(failure));
  advance();
}

std::vector<ClosureFailure> ClosureLedger::raise_failures() {
  expect(!failures_.empty() && is_drained(), "raise the failures below", next_number_,
         "there are none, or closures still run");
  return std::exchange(failures_, {});
}

void ClosureLedger::note_saved(std::uint64_t number) {
  expect(number >= saved_below_ && number <= finished_below_, "mark as saved the closures below",
         number, "some have not ended, or a later checkpoint contains them");
  saved_below_ = number;
  advance();
}

void ClosureLedger::roll_back() {
  ++generation_;
  num_interrupted_ = 0;
  num_repeated_ = 0;
  for (auto& [number, closure] : closures_) {
    if (closure.state == State::kRunning) --num_running_;
    closure.is_interrupted = false;
    closure.reports.clear();
    if (closure.has_finished) {
      ++num_repeated_;
      queue_again(number, closure);
    } else if (closure.state == State::kRunning && !failures_.empty()) {
      end(number, closure, State::kCancelled);
    } else if (closure.state == State::kRunning) {
      queue_again(number, closure);
    }
  }
  finished_below_ = saved_below_;
  advance();
}

void ClosureLedger::queue_again(std::uint64_t number, Closure& closure) {
  closure.state = State::kQueued;
  queued_.insert(number);
}

void ClosureLedger::end(std::uint64_t number, Closure& closure, State state) {
  queued_.erase(number);
  closure.state = state;
  closure.reports.clear();
  if (std::exchange(closure.is_interrupted, false)) --num_interrupted_;
  if (std::exchange(closure.has_finished, state == State::kFinished)) --num_repeated_;
}

/// The first failure cancels queued closures, except those whose results are already known, because
/// their changes must not be lost.
void ClosureLedger::add_failure(ClosureFailure failure) {
  failures_.push_back(std::move(failure));
  const std::set<std::uint64_t> queued = queued_;
  for (const std::uint64_t number : queued) {
    Closure& closure = closures_.at(number);
    if (!closure.has_finished) end(number, closure, State::kCancelled);
  }
}

std::optional<ClosureFailure> ClosureLedger::verdict(std::uint64_t number,
                                                     const Closure& closure) const {
  if (std::cmp_less(closure.reports.size(), rules_.most_attempts)) return std::nullopt;
  std::string texts;
  for (const AttemptReport& report : closure.reports) {
    texts += concat("\n    worker ", report.worker, ": ", report.text);
  }
  const AttemptReport& last = closure.reports.back();
  return ClosureFailure{
      number,
      closure.attempts,
      last.worker,
      last.origin,
      last.code,
      concat("infrastructure ended ", closure.reports.size(), " attempts; expected at most ",
             rules_.most_attempts - 1, ":", texts)};
}

void ClosureLedger::advance() {
  while (finished_below_ < next_number_) {
    const Closure* first = find(finished_below_);
    if (first != nullptr && !first->has_ended()) break;
    ++finished_below_;
  }
  while (!closures_.empty()) {
    const auto& [number, closure] = *closures_.begin();
    const bool is_kept = rules_.keeps_finished && number >= saved_below_;
    if (is_kept || !closure.has_ended()) break;
    closures_.erase(closures_.begin());
  }
}

}  // namespace tutti::internal
