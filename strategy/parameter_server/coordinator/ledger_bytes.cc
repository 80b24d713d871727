// A ledger as bytes: what a journal begins with, and what hashes compare.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/strategy/parameter_server/coordinator/closure_ledger.h"

namespace tutti::internal {
namespace {

using State = ClosureLedger::State;

constexpr std::size_t kLongestText = std::numeric_limits<std::uint32_t>::max();

void write(ByteWriter& bytes, bool value) { bytes.number(static_cast<std::uint8_t>(value)); }
void write(ByteWriter& bytes, int value) { bytes.number(static_cast<std::uint32_t>(value)); }

void write(ByteWriter& bytes, const ClosureFailure& failure) {
  bytes.number(failure.closure);
  write(bytes, failure.attempt), write(bytes, failure.worker);
  bytes.number(static_cast<std::uint8_t>(failure.origin));
  bytes.number(static_cast<std::uint8_t>(failure.code));
  bytes.text(failure.text);
}

void write(ByteWriter& bytes, const AttemptReport& report) {
  bytes.number(static_cast<std::uint8_t>(report.kind));
  write(bytes, report.worker);
  bytes.number(static_cast<std::uint8_t>(report.origin));
  bytes.number(static_cast<std::uint8_t>(report.code));
  bytes.text(report.text);
}

void write(ByteWriter& bytes, const ClosureLedger::Closure& closure) {
  bytes.number(static_cast<std::uint8_t>(closure.state));
  write(bytes, closure.attempts), write(bytes, closure.worker);
  bytes.text(closure.content);
  bytes.number(static_cast<std::uint32_t>(closure.reports.size()));
  for (const AttemptReport& report : closure.reports) write(bytes, report);
}

bool read_bool(ByteReader& bytes) { return bytes.number<std::uint8_t>() != 0; }
int read_int(ByteReader& bytes) { return static_cast<int>(bytes.number<std::uint32_t>()); }

/// `is_sound` becomes false for a number that none of them has.
template <class Enum>
Enum read_enum(ByteReader& bytes, std::uint8_t first, std::uint8_t last, bool& is_sound) {
  const auto number = bytes.number<std::uint8_t>();
  if (number < first || number > last) is_sound = false;
  return static_cast<Enum>(number);
}

ClosureFailure read_failure(ByteReader& bytes, bool& is_sound) {
  ClosureFailure failure;
  failure.closure = bytes.number<std::uint64_t>();
  failure.attempt = read_int(bytes), failure.worker = read_int(bytes);
  failure.origin = read_enum<ErrorOrigin>(bytes, 1, 4, is_sound);
  failure.code = read_enum<ErrorCode>(bytes, 0, 15, is_sound);
  failure.text = bytes.text(kLongestText);
  return failure;
}

AttemptReport read_report(ByteReader& bytes, bool& is_sound) {
  AttemptReport report;
  report.kind = read_enum<AttemptReport::Kind>(bytes, 1, 3, is_sound);
  report.worker = read_int(bytes);
  report.origin = read_enum<ErrorOrigin>(bytes, 1, 4, is_sound);
  report.code = read_enum<ErrorCode>(bytes, 0, 15, is_sound);
  report.text = bytes.text(kLongestText);
  return report;
}

ClosureLedger::Closure read_closure(ByteReader& bytes, bool& is_sound) {
  ClosureLedger::Closure closure;
  closure.state = read_enum<State>(bytes, 1, 5, is_sound);
  closure.attempts = read_int(bytes), closure.worker = read_int(bytes);
  closure.content = bytes.text(kLongestText);
  for (auto left = bytes.number<std::uint32_t>(); left > 0 && !bytes.failed(); --left) {
    closure.reports.push_back(read_report(bytes, is_sound));
  }
  return closure;
}

}  // namespace

std::vector<std::byte> ClosureLedger::bytes() const {
  ByteWriter bytes;
  write(bytes, rules_.most_attempts), write(bytes, rules_.most_workers_lost);
  bytes.number(term_), bytes.number(next_number_), bytes.number(finished_below_);
  bytes.number(last_cut_), bytes.number(last_cut_begun_);
  write(bytes, is_taking_cut_);
  bytes.number(static_cast<std::uint32_t>(closures_.size()));
  for (const auto& [number, closure] : closures_) bytes.number(number), write(bytes, closure);
  bytes.number(static_cast<std::uint32_t>(failures_.size()));
  for (const ClosureFailure& failure : failures_) write(bytes, failure);
  return std::move(bytes.bytes());
}

/// Closures are forgotten from the first one on, and those below the watermark have ended.
bool ClosureLedger::are_numbers_sound() const {
  if (closures_.size() > next_number_) return false;
  std::uint64_t number = next_number_ - closures_.size();
  std::uint64_t first_not_ended = next_number_;
  for (const auto& [own, closure] : closures_) {
    if (own != number++) return false;
    const bool has_ended = closure.state != State::kQueued && closure.state != State::kRunning;
    if (!has_ended) first_not_ended = std::min(first_not_ended, own);
  }
  return finished_below_ == first_not_ended;
}

ClosureLedger ClosureLedger::restore(std::span<const std::byte> given, LedgerRules rules) {
  ByteReader bytes(given);
  bool is_sound = true;
  ClosureLedger ledger;
  ledger.rules_.most_attempts = read_int(bytes);
  ledger.rules_.most_workers_lost = read_int(bytes);
  for (std::uint64_t* number : {&ledger.term_, &ledger.next_number_, &ledger.finished_below_,
                                &ledger.last_cut_, &ledger.last_cut_begun_}) {
    *number = bytes.number<std::uint64_t>();
  }
  ledger.is_taking_cut_ = read_bool(bytes);
  for (auto left = bytes.number<std::uint32_t>(); left > 0 && !bytes.failed(); --left) {
    const auto number = bytes.number<std::uint64_t>();
    const Closure& closure =
        ledger.closures_.emplace(number, read_closure(bytes, is_sound)).first->second;
    if (closure.state == State::kQueued) ledger.queued_.insert(number);
    if (closure.state == State::kRunning) ++ledger.num_running_;
  }
  for (auto left = bytes.number<std::uint32_t>(); left > 0 && !bytes.failed(); --left) {
    ledger.failures_.push_back(read_failure(bytes, is_sound));
  }
  is_sound = is_sound && ledger.are_numbers_sound();
  // What is read is written as the same bytes: order, flags and doubles are checked by that.
  if (!is_sound || !bytes.is_complete() || !std::ranges::equal(ledger.bytes(), given)) {
    fail(ErrorCode::kDataLoss, "coordinator's journal: ", given.size(),
         " bytes that are no state of closures");
  }
  ledger.rules_ = rules;
  return ledger;
}

}  // namespace tutti::internal
