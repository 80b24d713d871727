// Runs one rank's schedule over messages.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: steps are executed in order. A receive is *posted* before its turn, so that its
// message lands where it belongs and the next one is on its way while this one is combined: at most
// kAhead receives, and only if no step before it and no send under way touches the same memory.
// What is to be combined lands in *staging* memory.
#include "cross_device_ops/algorithms/message_run.h"

#include <algorithm>
#include <set>

#include "cross_device_ops/told_reason.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kAhead = 8;           // receives
constexpr std::size_t kLookAhead = 64;      // steps
constexpr std::size_t kSendsToForget = 16;  // so many are kept before ended ones are looked for

}  // namespace

MessageRun::MessageRun(const RankLink& link, const CallPlan& plan, const RankMemory& memory,
                       const CollectiveHeader& header, TimePoint deadline)
    : link_(link),
      plan_(plan),
      steps_(plan.schedule.steps),
      memory_(memory),
      header_(header),
      deadline_(deadline),
      own_header_(encode(header)),
      header_is_due_(link.size() > 1),
      left_is_due_(link.size() > 1 && plan.left_greets_with_data),
      verified_(link.size() == 1) {}

void MessageRun::run() {
  greet();
  for (; current_ < steps_.size(); ++current_) {
    post_ahead();
    execute(steps_[current_]);
  }
  verify();
  for (const Sent& sent : sent_) wait(*sent.work);
}

void MessageRun::greet() {
  if (link_.size() == 1) return;
  if (!greets_with_data(plan_.schedule, link_.right())) {
    sent_.push_back(
        {link_.right(), {}, link_.send(link_.right(), Purpose::kData, own_header_, {})});
    header_is_due_ = false;
  }
  if (!plan_.left_greets_with_data) {
    header_work_ = link_.recv(link_.left(), Purpose::kData, left_header_, {});
  }
}

void MessageRun::execute(const Step& step) {
  if (step.kind == StepKind::kSend) return send(step);
  if (step.kind == StepKind::kVerify) return verify();
  if (receives(step)) return receive(step);
  // In place a copy writes nothing; to wait for its readers would stop ranks that wait for us.
  if (step.kind == StepKind::kCopy && memory_.read(step.own) == memory_.write(step.range)) return;
  wait_for_readers(memory_.bytes_of(step.range));
  memory_.apply(plan_.schedule, step);
}

/// A rank that sends before it has compared headers must not seem to make another call: not every
/// call has closing rounds, which would tell. Headers go to everybody.
Purpose MessageRun::purpose(bool with_header) const {
  if (with_header) return Purpose::kData;
  return static_cast<Purpose>(static_cast<std::uint16_t>(Purpose::kDataOf) +
                              static_cast<std::uint16_t>(header_.collective));
}

void MessageRun::send(const Step& step) {
  forget_ended_sends();
  const bool with_header = header_is_due_ && step.peer == link_.right();
  if (with_header) header_is_due_ = false;
  const std::span<const std::byte> head =
      with_header ? std::span<const std::byte>(own_header_) : std::span<const std::byte>();
  const ByteRange bytes = memory_.bytes_of(step.range);
  sent_.push_back({step.peer, bytes,
                   link_.send(step.peer, purpose(with_header), head, {bytes.begin, bytes.end})});
}

void MessageRun::receive(const Step& step) {
  if (step.kind != StepKind::kReceive || received_.empty()) {
    wait_for_readers(memory_.bytes_of(step.range));
  }
  if (received_.empty()) {
    post(current_);
    next_to_post_ = current_ + 1;
  }
  Received& received = received_.front();
  TUTTI_CHECK(received.step == current_, "receives are posted in the order of steps");
  wait_for_message(received);
  if (received.staging) memory_.take(step, received.staging->data());
  received_.pop_front();
}

void MessageRun::wait_for_message(Received& received) {
  try {
    wait(*received.work);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument && !is_mismatch(error)) fail_length(error);
    throw;
  }
  if (received.brings_header && !verified_) compare_headers();
}

void MessageRun::post_ahead() {
  next_to_post_ = std::max(next_to_post_, current_);
  const std::size_t end = std::min(steps_.size(), current_ + kLookAhead);
  for (; next_to_post_ < end && received_.size() < kAhead; ++next_to_post_) {
    if (!receives(steps_[next_to_post_])) continue;
    if (is_in_the_way(next_to_post_)) return;
    post(next_to_post_);
  }
}

// Whether posting a receive now would change what an earlier step or a send still needs.
bool MessageRun::is_in_the_way(std::size_t step) const {
  if (steps_[step].kind != StepKind::kReceive) return false;  // lands in staging memory
  const ByteRange into = memory_.bytes_of(steps_[step].range);
  const auto touches = [&](const Range& range) { return memory_.bytes_of(range).overlaps(into); };
  for (std::size_t i = current_; i < step; ++i) {
    if (touches(steps_[i].range) || touches(steps_[i].own)) return true;
    if (std::ranges::any_of(plan_.schedule.operands_of(steps_[i]), touches)) return true;
  }
  return std::ranges::any_of(
      sent_, [&](const Sent& s) { return s.bytes.overlaps(into) && !s.work->test(); });
}

void MessageRun::post(std::size_t index) {
  const Step& step = steps_[index];
  Received received;
  received.step = index;
  const std::size_t num_bytes = memory_.num_bytes(step.range);
  std::byte* into = nullptr;
  if (num_bytes > 0 && step.kind == StepKind::kReceive) into = memory_.write(step.range);
  if (num_bytes > 0 && step.kind != StepKind::kReceive) {
    received.staging = BufferRef::allocate(num_bytes);
    into = received.staging->data();
  }
  const bool with_header = left_is_due_ && step.peer == link_.left();
  if (with_header) left_is_due_ = false;
  const std::span<std::byte> head =
      with_header ? std::span<std::byte>(left_header_) : std::span<std::byte>();
  received.work = link_.recv(step.peer, purpose(with_header), head, {into, num_bytes});
  received.brings_header = with_header;
  received_.push_back(std::move(received));
}

void MessageRun::wait_for_readers(const ByteRange& range) {
  for (Sent& sent : sent_) {
    if (!sent.bytes.overlaps(range)) continue;
    wait(*sent.work);
    sent.bytes = {};
  }
}

void MessageRun::forget_ended_sends() {
  if (sent_.size() < kSendsToForget) return;
  std::erase_if(sent_, [](const Sent& sent) { return sent.work->test(); });
}

// The left neighbour's header comes first: it is sent before its rank waits for anything, and a
// mismatch may be why another message does not come.
void MessageRun::wait(Work& work) {
  Work* const header = verified_ ? nullptr : header_work();
  if (header != nullptr && header != &work) verify();
  work.wait(deadline_);
}

Work* MessageRun::header_work() {
  if (header_work_) return header_work_.get();
  for (Received& received : received_) {
    if (received.brings_header) return received.work.get();
  }
  return nullptr;
}

void MessageRun::verify() {
  if (verified_) return;
  Work* const work = header_work();
  TUTTI_CHECK(work != nullptr, "a schedule verifies before it receives from the left");
  try {
    work->wait(deadline_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) fail_length(error);
    throw;
  }
  compare_headers();
}

void MessageRun::compare_headers() {
  const CollectiveHeader left = decode_header(left_header_);
  if (header_.difference(left)) fail(ErrorCode::kInvalidArgument, mismatch_message(left, header_));
  verified_ = true;
}

// A message has another length. Its cause shows in the headers: in those that this rank compares,
// or in those that others do, who then abort.
void MessageRun::fail_length(const Error& error) {
  if (!verified_) {
    if (Work* const work = header_work(); work != nullptr) {
      try {
        work->wait(deadline_);
      } catch (const Error& reason) {
        if (reason.code() != ErrorCode::kInvalidArgument) throw;
      }
    }
    compare_headers();
  }
  const bool lengths_are_own = header_.collective == Collective::kAllToAll;
  // Another rank says that calls differ, when only a length shows it here.
  const TimePoint verdict =
      lengths_are_own ? deadline_after(Clock::system().now(), durations::kLastWords) : deadline_;
  try {
    link_.recv(link_.left(), Purpose::kNothing, {}, {})->wait(std::min(verdict, deadline_));
  } catch (const Error& reason) {
    if (reason.code() != ErrorCode::kDeadlineExceeded) throw;
  }
  fail(ErrorCode::kInvalidArgument, "collective mismatch (count): rank ", link_.rank, " calls ",
       header_.describe(), "; ", error.message());
}

std::vector<int> MessageRun::awaited() const {
  std::set<int> ranks;
  for (const Received& received : received_) {
    bool came = false;
    try {
      came = received.work->test();
    } catch (const Error&) {
    }
    if (!came) ranks.insert(steps_[received.step].peer);
  }
  if (!verified_) ranks.insert(link_.left());
  if (ranks.empty()) {
    for (const Sent& sent : sent_) ranks.insert(sent.peer);
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace tutti::internal
