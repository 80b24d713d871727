// One function per event; each checks first and changes then.
// SPDX-License-Identifier: Apache-2.0
//
// Words: a closure *ends* when it finished, failed or was cancelled, and is forgotten when all
// before it have ended. A *cut* is a set of snapshots, one per server, each with its dedup table.
// A late message of the time before a server or a coordinator was lost is told by its term, which
// every such turn raises.
#include "strategy/parameter_server/coordinator/closure_ledger.h"

#include <algorithm>
#include <utility>

#include "strategy/parameter_server/protocol/record_file.h"

namespace tutti::internal {
namespace {

void expect(bool condition, const char* what, std::uint64_t number, const char* reason) {
  if (condition) return;
  fail(ErrorCode::kFailedPrecondition, "closure ledger: ", what, " ", number, ": ", reason);
}

}  // namespace

void ClosureLedger::apply(const ClosureEvent& event) {
  std::visit([this](const auto& each) { on(each); }, event);
  forget();
}

std::vector<std::byte> encode_record(const ClosureEvent& event) {
  std::vector<std::byte> record;
  RecordWriter(0, [&](std::span<const std::byte> bytes) {
    record.insert(record.end(), bytes.begin(), bytes.end());
  }).put(encode(event));
  return record;
}

ClosureLedger ClosureLedger::replay(std::span<const std::byte> journal, LedgerRules rules) {
  RecordReader in("coordinator's journal", journal.size(), source_of(journal));
  ClosureLedger ledger(rules);
  ledger.replay_from_here(in);
  return ledger;
}

void ClosureLedger::replay_from_here(RecordReader& in) {
  for (;;) {
    const std::uint64_t first = in.offset();
    const auto packet = in.next();
    if (!packet) return;
    try {
      apply(decode_event(*packet));
    } catch (const Error& error) {
      in.refuse(first, "expected an event that can happen there, found ", error.message());
    }
  }
}

std::optional<std::uint64_t> ClosureLedger::next_queued() const {
  if (queued_.empty()) return std::nullopt;
  return *queued_.begin();
}

std::optional<std::uint64_t> ClosureLedger::next_queued_new_to(int worker) const {
  for (const std::uint64_t number : queued_) {
    const auto& reports = closures_.at(number).reports;
    if (reports.empty() || reports.back().worker != worker) return number;
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

void ClosureLedger::on(const events::Scheduled& event) {
  expect(event.number == next_number_, "schedule", event.number, "not the next number");
  expect(failures_.empty(), "schedule", event.number, "a failure was not raised yet");
  closures_[event.number].content = event.content;
  queued_.insert(event.number);
  ++next_number_;
}

void ClosureLedger::on(const events::Started& event) {
  expect(queued_.contains(event.number), "start", event.number, "it is not queued");
  Closure& closure = closures_.at(event.number);
  expect(event.attempt == closure.attempts + 1, "start", event.number, "not the next attempt");
  queued_.erase(event.number);
  ++num_running_;
  closure.state = State::kRunning;
  closure.attempts = event.attempt;
  closure.worker = event.worker;
}

void ClosureLedger::on(const events::Finished& event) {
  Closure& closure = running(event.number, event.attempt, "finish");
  --num_running_;
  end(event.number, closure, State::kFinished);
}

void ClosureLedger::on(const events::Stopped& event) {
  Closure& closure = running(event.number, event.attempt, "stop");
  --num_running_;
  end(event.number, closure, State::kCancelled);
}

void ClosureLedger::on(const events::PutBack& event) {
  Closure& closure = running(event.number, event.attempt, "put back");
  --num_running_;
  if (event.report.kind != AttemptReport::Kind::kNotStarted) {
    closure.reports.push_back(event.report);
  }
  if (auto failure = verdict(event.number, closure)) {
    end(event.number, closure, State::kFailed);
    add_failure(std::move(*failure));
  } else if (!failures_.empty()) {
    end(event.number, closure, State::kCancelled);
  } else {
    queue_again(event.number, closure);
  }
}

void ClosureLedger::on(const events::Failed& event) {
  Closure& closure = running(event.failure.closure, event.failure.attempt, "fail");
  --num_running_;
  end(event.failure.closure, closure, State::kFailed);
  add_failure(event.failure);
}

void ClosureLedger::on(const events::ErrorRaised&) {
  expect(!failures_.empty() && is_drained(), "raise the error of", next_number_,
         "there is none, or closures still run");
  failures_.clear();
}

/// Reports of closures have another term, or none: they do not count.
void ClosureLedger::on(const events::TookOver& event) {
  expect(event.term == term_ + 1, "take over with term", event.term,
         "not one higher than the last");
  term_ = event.term;
  is_taking_cut_ = false;
  for (auto& [number, closure] : closures_) {
    if (closure.state != State::kRunning) continue;
    --num_running_;
    if (failures_.empty()) {
      queue_again(number, closure);
    } else {
      end(number, closure, State::kCancelled);
    }
  }
}

void ClosureLedger::on(const events::CutBegan& event) {
  expect(event.id > last_cut_begun_, "begin cut", event.id, "not a new number");
  last_cut_begun_ = event.id;
  is_taking_cut_ = true;
}

void ClosureLedger::on(const events::CutTaken& event) {
  expect(is_taking_cut_ && last_cut_begun_ == event.id, "take cut", event.id,
         "it is not being taken");
  last_cut_ = event.id;
  is_taking_cut_ = false;
}

void ClosureLedger::on(const events::BeganAfter& event) {
  expect(term_ == 0 && next_number_ == 0, "begin after", event.number, "it has begun already");
  term_ = event.term;
  next_number_ = finished_below_ = event.number;
}

void ClosureLedger::queue_again(std::uint64_t number, Closure& closure) {
  closure.state = State::kQueued;
  queued_.insert(number);
}

void ClosureLedger::end(std::uint64_t number, Closure& closure, State state) {
  queued_.erase(number);
  closure.state = state;
  closure.reports.clear();
  closure.content.clear();
  while (finished_below_ < next_number_) {
    const Closure* first = find(finished_below_);
    if (first != nullptr && !first->has_ended()) break;
    ++finished_below_;
  }
}

/// The first one cancels what is queued.
void ClosureLedger::add_failure(ClosureFailure failure) {
  failures_.push_back(std::move(failure));
  const std::set<std::uint64_t> queued = queued_;
  for (const std::uint64_t number : queued) end(number, closures_.at(number), State::kCancelled);
}

std::optional<ClosureFailure> ClosureLedger::verdict(std::uint64_t number,
                                                     const Closure& closure) const {
  std::set<int> workers_lost;
  std::string texts;
  for (const AttemptReport& report : closure.reports) {
    if (report.kind == AttemptReport::Kind::kWorkerLost) workers_lost.insert(report.worker);
    texts += concat("\n    worker ", report.worker, ": ", report.text);
  }
  const bool is_poison = std::cmp_greater_equal(workers_lost.size(), rules_.most_workers_lost);
  const bool is_tired = std::cmp_greater_equal(closure.reports.size(), rules_.most_attempts);
  if (!is_poison && !is_tired) return std::nullopt;
  const AttemptReport& last = closure.reports.back();
  return ClosureFailure{
      number,
      closure.attempts,
      last.worker,
      last.origin,
      last.code,
      is_poison ? concat(workers_lost.size(), " different workers were lost while they worked on ",
                         "it; expected at most ", rules_.most_workers_lost - 1, ":", texts)
                : concat("infrastructure ended ", closure.reports.size(),
                         " attempts; expected at most ", rules_.most_attempts - 1, ":", texts)};
}

void ClosureLedger::forget() {
  while (!closures_.empty() && closures_.begin()->second.has_ended()) {
    closures_.erase(closures_.begin());
  }
}

}  // namespace tutti::internal
