// Events of the journal as messages, and a ledger as bytes: what a journal begins with, and what
// hashes compare.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>

#include "strategy/parameter_server/coordinator/closure_ledger.h"
#include "strategy/parameter_server/coordinator/report_message.h"

namespace tutti::internal {
namespace {

void put(const events::Scheduled& event, v1::ClosureEvent& out) {
  out.mutable_scheduled()->set_number(event.number);
  out.mutable_scheduled()->set_content(event.content);
}
void put(const events::Started& event, v1::ClosureEvent& out) {
  v1::ClosureEvent::Started& started = *out.mutable_started();
  started.set_number(event.number), started.set_attempt(event.attempt);
  started.set_worker(event.worker);
}
void put(const events::Finished& event, v1::ClosureEvent& out) {
  out.mutable_finished()->set_number(event.number);
  out.mutable_finished()->set_attempt(event.attempt);
}
void put(const events::PutBack& event, v1::ClosureEvent& out) {
  v1::ClosureEvent::PutBack& put_back = *out.mutable_put_back();
  put_back.set_number(event.number), put_back.set_attempt(event.attempt);
  put_report(event.report, *put_back.mutable_report());
}
void put(const events::Failed& event, v1::ClosureEvent& out) {
  put_failure(event.failure, *out.mutable_failed());
}
void put(const events::Stopped& event, v1::ClosureEvent& out) {
  out.mutable_stopped()->set_number(event.number);
  out.mutable_stopped()->set_attempt(event.attempt);
}
void put(const events::ErrorRaised&, v1::ClosureEvent& out) { out.mutable_error_raised(); }
void put(const events::TookOver& event, v1::ClosureEvent& out) {
  out.mutable_took_over()->set_term(event.term);
}
void put(const events::CutBegan& event, v1::ClosureEvent& out) {
  out.mutable_cut_began()->set_id(event.id);
}
void put(const events::CutTaken& event, v1::ClosureEvent& out) {
  out.mutable_cut_taken()->set_id(event.id);
}
void put(const events::BeganAfter& event, v1::ClosureEvent& out) {
  out.mutable_began_after()->set_term(event.term);
  out.mutable_began_after()->set_number(event.number);
}

ClosureEvent get(const v1::ClosureEvent& in) {
  switch (in.what_case()) {
    case v1::ClosureEvent::kScheduled:
      return events::Scheduled{in.scheduled().number(), in.scheduled().content()};
    case v1::ClosureEvent::kStarted:
      return events::Started{in.started().number(), in.started().attempt(), in.started().worker()};
    case v1::ClosureEvent::kFinished:
      return events::Finished{in.finished().number(), in.finished().attempt()};
    case v1::ClosureEvent::kPutBack:
      return events::PutBack{in.put_back().number(), in.put_back().attempt(),
                             get_report(in.put_back().report())};
    case v1::ClosureEvent::kFailed:
      return events::Failed{get_failure(in.failed())};
    case v1::ClosureEvent::kStopped:
      return events::Stopped{in.stopped().number(), in.stopped().attempt()};
    case v1::ClosureEvent::kErrorRaised:
      return events::ErrorRaised{};
    case v1::ClosureEvent::kTookOver:
      return events::TookOver{in.took_over().term()};
    case v1::ClosureEvent::kCutBegan:
      return events::CutBegan{in.cut_began().id()};
    case v1::ClosureEvent::kCutTaken:
      return events::CutTaken{in.cut_taken().id()};
    case v1::ClosureEvent::kBeganAfter:
      return events::BeganAfter{in.began_after().term(), in.began_after().number()};
    case v1::ClosureEvent::WHAT_NOT_SET:
      break;
  }
  fail(ErrorCode::kDataLoss, "coordinator's journal: an event of no kind");
}

void put(const ClosureLedger::Closure& closure, v1::ClosureLedger::Closure& out) {
  out.set_state(static_cast<std::uint32_t>(closure.state));
  out.set_attempts(closure.attempts), out.set_worker(closure.worker);
  out.set_content(closure.content);
  for (const AttemptReport& report : closure.reports) put_report(report, *out.add_reports());
}

ClosureLedger::Closure get(const v1::ClosureLedger::Closure& in) {
  using State = ClosureLedger::State;
  ClosureLedger::Closure closure;
  closure.state = checked_enum(in.state(), State::kQueued, State::kCancelled);
  closure.attempts = in.attempts(), closure.worker = in.worker();
  closure.content = in.content();
  for (const v1::AttemptReport& report : in.reports()) {
    closure.reports.push_back(get_report(report));
  }
  return closure;
}

}  // namespace

Packet encode(const ClosureEvent& event) {
  InArena<v1::ClosureEvent> message;
  std::visit([&](const auto& each) { put(each, *message); }, event);
  return {serialized(*message, std::numeric_limits<std::uint32_t>::max()), {}};
}

ClosureEvent decode_event(const Packet& packet) {
  InArena<v1::ClosureEvent> message;
  parse(packet.head, *message);
  return get(*message);
}

std::vector<std::byte> ClosureLedger::bytes() const {
  InArena<v1::ClosureLedger> message;
  v1::ClosureLedger& out = *message;
  out.set_most_attempts(rules_.most_attempts);
  out.set_most_workers_lost(rules_.most_workers_lost);
  out.set_term(term_), out.set_next_number(next_number_), out.set_finished_below(finished_below_);
  out.set_last_cut(last_cut_), out.set_last_cut_begun(last_cut_begun_);
  out.set_is_taking_cut(is_taking_cut_);
  for (const auto& [number, closure] : closures_) put(closure, *out.add_closures());
  for (const ClosureFailure& failure : failures_) put_failure(failure, *out.add_failures());
  out.set_is_whole(true);
  return serialized(out, std::numeric_limits<std::uint32_t>::max());
}

/// Closures below the watermark have ended, and that at it has not.
bool ClosureLedger::is_watermark_sound() const {
  const auto first_not_ended =
      std::ranges::find_if_not(closures_, [](const auto& each) { return each.second.has_ended(); });
  return finished_below_ ==
         (first_not_ended == closures_.end() ? next_number_ : first_not_ended->first);
}

ClosureLedger ClosureLedger::restore(std::span<const std::byte> bytes, LedgerRules rules) {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorCode::kDataLoss, "coordinator's journal: ", bytes.size(),
         " bytes that are no state of closures (", why, ")");
  };
  InArena<v1::ClosureLedger> message;
  const v1::ClosureLedger& in = *message;
  ClosureLedger ledger(rules);
  try {
    parse(bytes, *message);
    ledger.term_ = in.term(), ledger.next_number_ = in.next_number();
    ledger.finished_below_ = in.finished_below();
    ledger.last_cut_ = in.last_cut(), ledger.last_cut_begun_ = in.last_cut_begun();
    ledger.is_taking_cut_ = in.is_taking_cut();
    // Closures are forgotten from the first one on.
    std::uint64_t number = in.next_number() - static_cast<std::uint64_t>(in.closures_size());
    for (const v1::ClosureLedger::Closure& each : in.closures()) {
      const Closure& closure = ledger.closures_.emplace(number, get(each)).first->second;
      if (closure.state == State::kQueued) ledger.queued_.insert(number);
      if (closure.state == State::kRunning) ++ledger.num_running_;
      ++number;
    }
    for (const v1::ClosureFailure& each : in.failures()) {
      ledger.failures_.push_back(get_failure(each));
    }
  } catch (const Error& error) {
    refuse(error.message());
  }
  if (!in.is_whole()) refuse("it was cut off");
  const bool are_numbers = static_cast<std::uint64_t>(in.closures_size()) <= in.next_number();
  if (!are_numbers || !ledger.is_watermark_sound()) refuse("its numbers contradict each other");
  return ledger;
}

}  // namespace tutti::internal
