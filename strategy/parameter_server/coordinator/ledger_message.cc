// Records of the journal (u32 length, u32 CRC32C of what follows, a message ClosureEvent), and a
// ledger as bytes: what a journal begins with, and what hashes compare.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "tutti/core/byte_codec.h"
#include "tutti/core/crc32c.h"
#include "tutti/strategy/parameter_server/coordinator/closure_ledger.h"
#include "tutti/strategy/parameter_server/coordinator/report_message.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLengthAndChecksum = 8;

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

/// Nothing: no event was written so.
std::optional<ClosureEvent> event_in(std::span<const std::byte> body) {
  InArena<v1::ClosureEvent> message;
  try {
    parse(body, *message);
    return get(*message);
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct Record {
  ClosureEvent event;
  std::size_t end = 0;
};

/// Nothing, if no whole record begins there.
std::optional<Record> record_at(std::span<const std::byte> journal, std::size_t place) {
  if (journal.size() - place < kLengthAndChecksum) return std::nullopt;
  ByteReader head(journal.subspan(place, kLengthAndChecksum));
  const std::size_t length = head.number<std::uint32_t>();
  const auto checksum = head.number<std::uint32_t>();
  if (length == 0 || length > journal.size() - place - kLengthAndChecksum) return std::nullopt;
  const auto body = journal.subspan(place + kLengthAndChecksum, length);
  if (crc32c_of(body) != checksum) return std::nullopt;
  auto event = event_in(body);
  if (!event) return std::nullopt;
  return Record{std::move(*event), place + kLengthAndChecksum + length};
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

std::vector<std::byte> encode_record(const ClosureEvent& event) {
  InArena<v1::ClosureEvent> message;
  std::visit([&](const auto& each) { put(each, *message); }, event);
  std::vector<std::byte> record = serialized(*message, std::numeric_limits<std::uint32_t>::max());
  record.insert(record.begin(), kLengthAndChecksum, std::byte{0});
  const auto body = std::span(record).subspan(kLengthAndChecksum);
  ByteWriter head;
  head.number(static_cast<std::uint32_t>(body.size()));
  head.number(crc32c_of(body));
  std::ranges::copy(head.bytes(), record.begin());
  return record;
}

std::size_t read_journal(std::span<const std::byte> journal,
                         const std::function<void(const ClosureEvent&)>& take) {
  std::size_t place = 0;
  while (place < journal.size()) {
    const auto record = record_at(journal, place);
    if (!record) break;
    take(record->event);
    place = record->end;
  }
  // Nothing stands behind what was being written when a process died.
  for (std::size_t later = place + 1; later < journal.size(); ++later) {
    if (!record_at(journal, later)) continue;
    fail(ErrorCode::kDataLoss, "coordinator's journal: record at byte ", place, " of ",
         journal.size(), " is damaged; expected a known event with its checksum before the whole ",
         "record at byte ", later, ", found other bytes; try a copy of the folder");
  }
  return place;
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
