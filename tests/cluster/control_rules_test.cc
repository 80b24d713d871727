// The control plane's parts without wires: messages, store, rules on silence and stalls,
// agreements.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/control/control_frame.h"
#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/control/message.h"
#include "tutti/cluster/control/stop_agreement.h"
#include "tutti/cluster/control/store_table.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace control_rules_test {

using internal::Message;
using ::testing::ElementsAre;
using testing::expect_error;
using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(Duration(1000s)) + time; }

Member some_member() { return {{"worker", 2, "127.0.0.1:4713"}, 1, "", 812, true}; }

std::vector<Message> one_of_each() {
  const Verdict verdict{3, VerdictKind::kStuck, some_member(), true, ErrorCode::kAborted, "late"};
  internal::Heartbeat heartbeat;
  heartbeat.progress = {
      7, "training", {{"all", 5, 4, "all_reduce(SUM)", 3ms}, {"b", 0, 0, "", 0s}}};
  return {{1, internal::JoinRequest{some_member(), 99, "m", "p", 4}},
          {2, internal::StoreRequest{internal::StoreRequest::Action::kCompareAndSet, "k",
                                     std::string("\0\xff", 2), "old"}},
          {3, internal::MembersRequest{true}},
          {0, heartbeat},
          {4, internal::FailureReport{ErrorCode::kInternal, "boom"}},
          {5, internal::StopRequest{"SIGTERM"}},
          {0, internal::StopAnswer{2, 9, true}},
          {6, internal::GoodBye{}},
          {1, internal::JoinReply{ErrorCode::kOk, "", some_member(), 5, "m", 250, 2000}},
          {2, internal::StoreReply{ErrorCode::kOk, "", std::string("\xfe"), true}},
          {3, internal::MembersReply{{some_member(), some_member()}}},
          {0, internal::HeartbeatReply{}},
          {0, internal::VerdictNews{verdict}},
          {0, internal::StopProposal{2, 9, true, "worker 2: SIGTERM"}},
          {0, internal::ServerLeaves{}}};
}

TEST(ControlMessage, IsReadAsItWasWritten) {
  const std::vector<Message> messages = one_of_each();
  EXPECT_EQ(messages.size(), std::variant_size_v<decltype(Message::body)>);
  for (const Message& message : messages) {
    const auto bytes = internal::encode(message);
    EXPECT_EQ(internal::decode_message(bytes), message) << message.body.index();
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      EXPECT_FALSE(internal::decode_message(std::span(bytes).first(cut)));
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(internal::decode_message(longer));
  }
}

TEST(ControlMessage, PromisesOfLengthsReserveNothing) {
  internal::MembersReply reply;
  auto bytes = internal::encode({0, reply});
  for (int i = 0; i < 4; ++i) bytes[9 + static_cast<std::size_t>(i)] = std::byte{0xff};
  EXPECT_FALSE(internal::decode_message(bytes));
}

TEST(ControlFrame, FindsMessagesHoweverTheBytesCome) {
  const Digest256 key{std::byte{7}};
  for (const std::size_t piece : {1, 3, 64, 100000}) {
    FrameSeals seals(key);
    std::vector<std::byte> bytes;
    const std::vector<Message> sent = one_of_each();
    for (const Message& message : sent) internal::append_frame(bytes, message, seals);
    internal::FrameReader reader{FrameSeals(key)};
    std::vector<Message> came;
    for (std::size_t i = 0; i < bytes.size(); i += piece) {
      reader.take(std::span(bytes).subspan(i, std::min(piece, bytes.size() - i)));
      while (auto message = reader.next()) came.push_back(*message);
    }
    EXPECT_EQ(came, sent) << piece;
  }
}

TEST(ControlFrame, G7_EveryFlippedBitIsSeen) {
  const Digest256 key{std::byte{7}};
  FrameSeals seals(key);
  std::vector<std::byte> good;
  internal::append_frame(good, one_of_each()[4], seals);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::vector<std::byte> bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    internal::FrameReader reader{FrameSeals(key)};
    reader.take(bad);
    // A length that grew, too, does not wait for more.
    expect_error(ErrorCode::kDataLoss, {"control: "}, [&] { reader.next(); });
    EXPECT_THROW(reader.next(), Error) << bit;
  }
}

internal::StoreReply only(const std::vector<internal::StoreTable::Answer>& answers) {
  EXPECT_EQ(answers.size(), 1u);
  return answers.empty() ? internal::StoreReply{} : answers.front().reply;
}

TEST(StoreTable, SetsComparesRemovesAndAnswersWaiters) {
  using Action = internal::StoreRequest::Action;
  internal::StoreTable store;
  EXPECT_TRUE(store.apply(1, 1, {Action::kWait, "k", "", {}}).empty());
  EXPECT_TRUE(store.apply(2, 1, {Action::kWait, "k", "", {}}).empty());
  EXPECT_TRUE(store.apply(2, 1, {Action::kCancelWait, "", "", {}}).empty());
  const auto answers = store.apply(3, 1, {Action::kSet, "k", "v", {}});
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1].member, 1u);
  EXPECT_EQ(answers[1].reply.value, "v");
  EXPECT_EQ(store.num_waiting(), 0u);
  EXPECT_EQ(only(store.apply(1, 2, {Action::kGet, "k", "", {}})).value, "v");
  EXPECT_EQ(only(store.apply(1, 3, {Action::kWait, "k", "", {}})).value, "v");
  EXPECT_FALSE(only(store.apply(1, 4, {Action::kCompareAndSet, "k", "w", {}})).changed);
  EXPECT_FALSE(only(store.apply(1, 5, {Action::kCompareAndSet, "k", "w", "x"})).changed);
  EXPECT_TRUE(only(store.apply(1, 6, {Action::kCompareAndSet, "k", "w", "v"})).changed);
  EXPECT_TRUE(only(store.apply(1, 7, {Action::kRemove, "k", "", {}})).changed);
  EXPECT_FALSE(only(store.apply(1, 8, {Action::kRemove, "k", "", {}})).changed);
  EXPECT_TRUE(only(store.apply(1, 9, {Action::kCompareAndSet, "k", "n", {}})).changed);
}

TEST(StoreTable, AQuestionAskedTwiceIsDoneOnce) {
  using Action = internal::StoreRequest::Action;
  internal::StoreTable store;
  const internal::StoreRequest take{Action::kCompareAndSet, "lock", "mine", {}};
  EXPECT_TRUE(only(store.apply(1, 7, take)).changed);
  EXPECT_TRUE(only(store.apply(1, 7, take)).changed);  // the same answer, not a second try
  EXPECT_FALSE(only(store.apply(2, 7, take)).changed);
}

TEST(StoreTable, RefusesBadKeysAndTooMuch) {
  using Action = internal::StoreRequest::Action;
  internal::StoreTable store(100);
  EXPECT_EQ(only(store.apply(1, 1, {Action::kSet, "a key", "", {}})).code,
            ErrorCode::kInvalidArgument);
  const auto reply = only(store.apply(1, 2, {Action::kSet, "k", std::string(200, 'x'), {}}));
  EXPECT_EQ(reply.code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(reply.text,
            "control store: no room for 'k'; expected at most 100 bytes in all, got 201; try files "
            "for large values");
  EXPECT_EQ(only(store.apply(1, 3, {Action::kSet, "k", std::string(90, 'x'), {}})).code,
            ErrorCode::kOk);
  EXPECT_EQ(only(store.apply(1, 4, {Action::kSet, "k", std::string(95, 'x'), {}})).code,
            ErrorCode::kOk);  // in place of the first
}

internal::MemberRecord record_of(int index) {
  internal::MemberRecord record;
  record.number = static_cast<std::uint64_t>(index) + 1;
  record.joined.who = {{"worker", index, concat("127.0.0.1:471", index)}, 0, "", 810 + index, true};
  record.last_heard = record.progress_at = record.disconnected_at = at(0s);
  return record;
}

std::string silence_of(const internal::MemberRecord& record, Duration time,
                       internal::ProcessState state) {
  const auto finding = internal::judge_silence(
      record, at(time), {}, [state](const internal::JoinRequest&) { return state; });
  return finding ? concat(to_string(finding->kind), ": ", finding->message) : "";
}

TEST(HealthRules, G1_SayWhoIsStoppedSilentOrDead) {
  using Kind = internal::ProcessState::Kind;
  internal::MemberRecord record = record_of(2);
  EXPECT_EQ(silence_of(record, 1900ms, {Kind::kIsStopped, 'T'}), "");
  EXPECT_EQ(silence_of(record, 2100ms, {Kind::kIsStopped, 'T'}),
            "stopped: worker 2 (127.0.0.1:4712, pid 812) is stopped: state T, no heartbeat for 2.1 "
            "s; try: kill -CONT 812");
  EXPECT_EQ(silence_of(record, 2100ms, {Kind::kRuns, 'R'}), "");  // it may just have been continued
  EXPECT_EQ(silence_of(record, 4100ms, {Kind::kRuns, 'D'}),
            "stopped: worker 2 (127.0.0.1:4712, pid 812) is silent: no heartbeat for 4.1 s, though "
            "its process is in state D");
  EXPECT_EQ(
      silence_of(record, 2100ms, {Kind::kUnknown, '?'}),
      "stopped: worker 2 (127.0.0.1:4712, pid 812) is silent: no heartbeat for 2.1 s, and its "
      "machine cannot be asked from here");
  record.is_connected = false;
  EXPECT_EQ(silence_of(record, 10ms, {Kind::kIsGone, 'Z'}),
            "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed and the process "
            "is gone");
  EXPECT_EQ(silence_of(record, 100ms, {Kind::kUnknown, '?'}), "");
  EXPECT_EQ(silence_of(record, 200ms, {Kind::kUnknown, '?'}),
            "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed, and it did not "
            "open a new one within 0.2 s");
  EXPECT_EQ(silence_of(record, 1900ms, {Kind::kRuns, 'S'}), "");
  EXPECT_EQ(silence_of(record, 2100ms, {Kind::kRuns, 'S'}),
            "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed, and it did not "
            "open a new one within 2.1 s (its process is in state S)");
}

/// Workers 0 and 1 wait in collective 3; worker 2 has finished 2.
std::vector<internal::MemberRecord> a_stall() {
  std::vector<internal::MemberRecord> records;
  for (int i = 0; i < 3; ++i) {
    records.push_back(record_of(i));
    GroupProgress group{"all", 3, 2, "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7", 0s};
    if (i == 2) group = {"all", 2, 2, "broadcast(float32 x 1, 'b') #2 at a.cc:6", 400ms};
    records.back().progress = {12, "training", {group}};
  }
  return records;
}

std::vector<std::string> stuck_at(std::vector<internal::MemberRecord>& records, Duration time) {
  std::vector<internal::MemberRecord*> pointers;
  for (auto& record : records) pointers.push_back(&record);
  std::vector<std::string> texts;
  for (const internal::Finding& finding : internal::find_stuck(pointers, at(time), {})) {
    texts.push_back(
        concat(finding.is_fatal ? "fatal " : "", to_string(finding.kind), ": ", finding.message));
  }
  return texts;
}

TEST(HealthRules, G1b_WarnOfARankInUserCodeAndAbortAtTheDeadline) {
  auto records = a_stall();
  EXPECT_THAT(stuck_at(records, 4s), ElementsAre());
  EXPECT_THAT(
      stuck_at(records, 4600ms),
      ElementsAre(
          "stuck: worker 2 (127.0.0.1:4712, pid 812) is late: worker 0, worker 1 wait in "
          "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7 since 4.6 s (group 'all', step "
          "12); worker 2 is in user code for 5.0 s (training), after broadcast(float32 x 1, "
          "'b') #2 at a.cc:6"));
  EXPECT_THAT(stuck_at(records, 5s), ElementsAre());  // said once
  const auto at_the_end = stuck_at(records, 60s);
  ASSERT_EQ(at_the_end.size(), 1u);
  EXPECT_THAT(at_the_end[0], ::testing::HasSubstr("fatal stuck: worker 2 (127.0.0.1:4712, pid 812) "
                                                  "did not come: worker 0, worker 1 wait in"));
}

TEST(HealthRules, NameTheOtherCollectiveOfALateRank) {
  auto records = a_stall();
  records[2].progress.groups.push_back({"rows", 9, 8, "barrier() #9 at b.cc:1", 1s});
  EXPECT_THAT(stuck_at(records, 5s),
              ElementsAre(::testing::HasSubstr(
                  "worker 2 waits in barrier() #9 at b.cc:1 of group 'rows' since 6.0 s")));
}

TEST(HealthRules, AMemberThatLeftWhileOthersWaitIsMissedAtOnce) {
  auto records = a_stall();
  records[2].status = internal::MemberRecord::Status::kLeft;
  EXPECT_THAT(
      stuck_at(records, 300ms),
      ElementsAre("fatal left: worker 2 (127.0.0.1:4712, pid 812) has left the job in step "
                  "12, but worker 0, worker 1 wait in all_reduce(SUM, float32 x 12, 'a') #3 "
                  "at a.cc:7 for it; every member makes the same calls"));
}

TEST(HealthRules, NobodyIsLateWhenNobodyWaits) {
  auto records = a_stall();
  for (int i = 0; i < 2; ++i) records[static_cast<std::size_t>(i)].progress.groups[0].finished = 3;
  EXPECT_THAT(stuck_at(records, 100s), ElementsAre());
}

TEST(StopAgreement, G17_OneStepThatNobodyHasPassed) {
  internal::StopAgreement server(2s);
  internal::StopGate a, b;
  EXPECT_FALSE(a.stops_after(1, TimePoint::min()));  // works on step 2
  EXPECT_FALSE(a.stops_after(2, TimePoint::min()));  // and on step 3
  EXPECT_FALSE(b.stops_after(1, TimePoint::min()));
  // The server has old news: both in step 2. The first one is past it.
  auto proposal = server.request("worker 1: SIGTERM", {{1, 2}, {2, 2}}, at(0s));
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->step, 2u);
  EXPECT_FALSE(server.request("again", {{1, 2}}, at(0s)));
  const auto yes = b.take(*proposal), no = a.take(*proposal);
  EXPECT_TRUE(yes->accepts);
  EXPECT_FALSE(no->accepts);
  EXPECT_FALSE(server.answer(2, *yes, at(0s)));
  proposal = server.answer(1, *no, at(0s));
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->step, 4u);  // with room for one more
  EXPECT_EQ(proposal->round, 2u);
  EXPECT_FALSE(server.answer(1, *a.take(*proposal), at(0s)));
  proposal = server.answer(2, *b.take(*proposal), at(0s));
  ASSERT_TRUE(proposal);
  EXPECT_TRUE(proposal->is_final);
  for (internal::StopGate* gate : {&a, &b}) {
    EXPECT_FALSE(gate->final_step());
    EXPECT_FALSE(gate->take(*proposal));
    EXPECT_EQ(gate->final_step(), 4u);
  }
  EXPECT_EQ(a.reason(), "worker 1: SIGTERM");
  for (internal::StopGate* gate : {&a, &b}) {
    EXPECT_FALSE(gate->stops_after(3, TimePoint::min()));
    EXPECT_TRUE(gate->stops_after(4, TimePoint::min()));
  }
}

TEST(StopAgreement, G17_EndsThoughMembersAreFasterThanMessages) {
  internal::StopAgreement server(2s);
  internal::StopGate gate;
  std::uint64_t step = 0;
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) EXPECT_FALSE(gate.stops_after(++step, TimePoint::min()));
  };
  auto proposal = server.request("x", {{1, 1}}, at(0s));
  int num_rounds = 0;
  while (proposal && !proposal->is_final && ++num_rounds < 20) {
    run(5);  // while the proposal is on its way
    proposal = server.answer(1, *gate.take(*proposal), at(0s));
  }
  EXPECT_TRUE(proposal && proposal->is_final);
  EXPECT_LT(num_rounds, 6);
}

TEST(StopAgreement, G17_AnUnreachableMemberHoldsNobodyUp) {
  internal::StopAgreement server(2s);
  internal::StopGate a;
  const auto proposal = server.request("x", {{1, 5}, {2, 5}}, at(0s));
  EXPECT_FALSE(server.answer(1, *a.take(*proposal), at(0s)));
  EXPECT_FALSE(server.tick(at(1900ms)));
  ASSERT_TRUE(server.tick(at(2s)));
  EXPECT_FALSE(server.tick(at(3s)));
  EXPECT_TRUE(server.current()->is_final);
  // Or it is known to be gone.
  internal::StopAgreement other(2s);
  EXPECT_FALSE(other.answer(1, *a.take(*other.request("x", {{1, 5}, {2, 5}}, at(0s))), at(0s)));
  EXPECT_TRUE(other.forget(2)->is_final);
}

TEST(StopGate, WaitsAtTheProposedStepForTheFinalWord) {
  const testing::HangWatchdog watchdog("stop gate", std::chrono::seconds(30));
  internal::StopGate gate;
  (void)gate.take({1, 1, false, "x"});
  const auto server = Executor::system().start("server", [&gate] {
    Clock::system().sleep_for(20ms);
    (void)gate.take({1, 1, true, "x"});
  });
  EXPECT_TRUE(gate.stops_after(1, deadline_after(Clock::system().now(), 20s)));
}

TEST(StopGate, GoesOnWhenNoFinalWordComes) {
  internal::StopGate gate;
  (void)gate.take({1, 1, false, "x"});
  EXPECT_FALSE(gate.stops_after(1, deadline_after(Clock::system().now(), 5ms)));
  EXPECT_EQ(gate.current_step(), 2u);
}

}  // namespace control_rules_test
}  // namespace tutti
