// The control plane's parts without gRPC: store, rules on silence and stalls, agreements.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/control/job_service.h"
#include "cluster/control/member.h"
#include "cluster/control/stop_agreement.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace control_rules_test {
using ::testing::ElementsAre;
using testing::expect_error;
using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(Duration(1000s)) + time; }

TEST(StoreTable, SetsComparesAndRemoves) {
  internal::StoreTable store;
  EXPECT_EQ(store.find("k"), nullptr);
  store.put({3, 1}, "k", "v");
  EXPECT_EQ(*store.find("k"), "v");
  EXPECT_FALSE(store.compare_and_set({1, 4}, "k", std::nullopt, "w"));
  EXPECT_FALSE(store.compare_and_set({1, 5}, "k", "x", "w"));
  EXPECT_TRUE(store.compare_and_set({1, 6}, "k", "v", "w"));
  EXPECT_EQ(*store.find("k"), "w");
  EXPECT_TRUE(store.remove({1, 7}, "k"));
  EXPECT_FALSE(store.remove({1, 8}, "k"));
  EXPECT_TRUE(store.compare_and_set({1, 9}, "k", std::nullopt, "n"));
}

TEST(StoreTable, ARequestThatComesTwiceIsDoneOnce) {
  internal::StoreTable store;
  EXPECT_TRUE(store.compare_and_set({1, 7}, "lock", std::nullopt, "mine"));
  EXPECT_TRUE(store.compare_and_set({1, 7}, "lock", std::nullopt, "mine"));  // the same answer
  EXPECT_FALSE(store.compare_and_set({2, 7}, "lock", std::nullopt, "mine"));
  store.put({1, 8}, "k", "first");
  store.put({2, 8}, "k", "second");
  store.put({1, 8}, "k", "first");  // it came late, and was done before
  EXPECT_EQ(*store.find("k"), "second");
}

TEST(StoreTable, RefusesBadKeysAndTooMuch) {
  internal::StoreTable store(100);
  expect_error(ErrorCode::kInvalidArgument, {"the key 'a key'"}, [&] {
    store.put({1, 1}, "a key", "");
  });
  for (int time = 0; time < 2; ++time) {  // the same answer both times
    expect_error(ErrorCode::kResourceExhausted,
                 {"control store: no room for 'k'; expected at most 100 bytes in all, got 201; try "
                  "files for large values"},
                 [&] {
                   store.put({1, 2}, "k", std::string(200, 'x'));
                 });
  }
  store.put({1, 3}, "k", std::string(90, 'x'));
  store.put({1, 4}, "k", std::string(95, 'x'));  // in place of the first
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
      record, at(time), {}, [state](const internal::JoiningProcess&) { return state; });
  return finding ? concat(to_string(finding->kind), ": ", finding->message) : "";
}

TEST(HealthRules, ReportStoppedSilentAndDeadMembers) {
  using Kind = internal::ProcessState::Kind;
  internal::MemberRecord record = record_of(2);
  EXPECT_EQ(silence_of(record, 1900ms, {Kind::kIsStopped, 'T'}), "");
  EXPECT_EQ(silence_of(record, 2100ms, {Kind::kIsStopped, 'T'}),
            "stopped: worker 2 (127.0.0.1:4712, pid 812) is stopped: state T, no heartbeat for 2.1 "
            "s; try: kill -CONT 812");
  EXPECT_EQ(silence_of(record, 4900ms, {Kind::kRuns, 'R'}), "");  // it may just have been continued
  EXPECT_EQ(silence_of(record, 5100ms, {Kind::kRuns, 'S'}),
            "stopped: worker 2 (127.0.0.1:4712, pid 812) is silent: no heartbeat for 5.1 s, though "
            "its process is in state S");
  // Of another machine nothing is known: its packets may be lost for a while.
  EXPECT_EQ(silence_of(record, 4900ms, {Kind::kUnknown, '?'}), "");
  EXPECT_EQ(
      silence_of(record, 5100ms, {Kind::kUnknown, '?'}),
      "stopped: worker 2 (127.0.0.1:4712, pid 812) is silent: no heartbeat for 5.1 s, and its "
      "machine cannot be asked from here");
  record.is_connected = false;
  EXPECT_EQ(silence_of(record, 10ms, {Kind::kIsGone, 'Z'}),
            "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed and the process "
            "is gone");
  EXPECT_EQ(silence_of(record, 100ms, {Kind::kUnknown, '?'}), "");
  EXPECT_EQ(silence_of(record, 200ms, {Kind::kUnknown, '?'}),
            "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed, and it did not "
            "open a new one within 0.2 s");
  EXPECT_EQ(silence_of(record, 4900ms, {Kind::kRuns, 'S'}), "");
  EXPECT_EQ(silence_of(record, 5100ms, {Kind::kRuns, 'S'}),
            "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed, and it did not "
            "open a new one within 5.1 s (its process is in state S)");
  EXPECT_EQ(silence_of(record, 1900ms, {Kind::kIsStopped, 'T'}), "");
  EXPECT_EQ(silence_of(record, 2100ms, {Kind::kIsStopped, 'T'}),
            "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed, and it did not "
            "open a new one within 2.1 s (its process is in state T)");
}

TEST(HealthRules, ProcessThatGetsNoProcessorIsAliveHoweverLongItIsSilent) {
  using Kind = internal::ProcessState::Kind;
  const internal::MemberRecord record = record_of(2);
  for (const char letter : {'R', 'D'}) {
    for (const Duration silence : {Duration(5100ms), Duration(60s), Duration(1h)}) {
      EXPECT_EQ(silence_of(record, silence, {Kind::kRuns, letter}), "") << letter;
    }
  }
  EXPECT_NE(silence_of(record, 60s, {Kind::kRuns, 'S'}), "");
  EXPECT_NE(silence_of(record, 60s, {Kind::kIsStopped, 'T'}), "");
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

TEST(HealthRules, WarnAboutRankInUserCodeAndAbortAtDeadline) {
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
      ElementsAre(
          "fatal left: worker 2 (127.0.0.1:4712, pid 812) has left the job in step "
          "12, but worker 0, worker 1 wait in all_reduce(SUM, float32 x 12, 'a') #3 "
          "at a.cc:7 for it; it ended normally: do all workers make the same number of steps?"));
}

TEST(HealthRules, NobodyIsLateWhenNobodyWaits) {
  auto records = a_stall();
  for (int i = 0; i < 2; ++i) records[static_cast<std::size_t>(i)].progress.groups[0].finished = 3;
  EXPECT_THAT(stuck_at(records, 100s), ElementsAre());
}

using Groups = std::vector<GroupProgress>;

/// Members 0, 1, ... whose last two reports, at 0 s, named these calls.
std::vector<internal::MemberRecord> members_in(const std::vector<Groups>& groups) {
  std::vector<internal::MemberRecord> records;
  for (const Groups& each : groups) {
    records.push_back(record_of(static_cast<int>(records.size())));
    records.back().progress = {12, "training", each};
    records.back().has_stood_still = true;
  }
  return records;
}

/// What the rule says of members with these progresses at 2 s.
std::string deadlock_of(std::vector<internal::MemberRecord>& records) {
  std::vector<internal::MemberRecord*> pointers;
  for (auto& record : records) pointers.push_back(&record);
  const auto finding = internal::find_deadlock(pointers, at(2s));
  if (!finding) return "";
  EXPECT_TRUE(finding->is_fatal);
  EXPECT_EQ(finding->code, ErrorCode::kInvalidArgument);
  return finding->message;
}

GroupProgress waits(const std::string& group, std::uint64_t call, const std::string& text) {
  return {group, call, call - 1, text, 100ms};
}
GroupProgress outside(const std::string& group, std::uint64_t calls) {
  return {group, calls, calls, "", 100ms};
}

/// Worker 0 gathers values, worker 1 sums gradients: each for the other.
std::vector<Groups> a_deadlock() {
  return {{waits("values", 3, "reduce #3 at a.cc:7"), outside("gradients", 8)},
          {outside("values", 2), waits("gradients", 9, "sum #9 at a.cc:5")}};
}

TEST(HealthRules, DeadlockedMembersAreNamedOnceWithTheirCalls) {
  auto records = members_in(a_deadlock());
  EXPECT_EQ(deadlock_of(records),
            "worker 0, worker 1 wait for each other: worker 1 waits in sum #9 at a.cc:5 since 2.1 "
            "s for worker 0; worker 0 waits in reduce #3 at a.cc:7 since 2.1 s for worker 1; "
            "expected the same calls in the same order on every worker; try to make these on all "
            "of them, not only where is_chief() says so");
  EXPECT_EQ(deadlock_of(records), "");
}

TEST(HealthRules, DeadlockOfThreeAndItsWaitersAreNamed) {
  auto records =
      members_in({{waits("a", 1, "A"), outside("b", 0), outside("c", 1), outside("d", 4)},
                  {outside("a", 0), waits("b", 1, "B"), outside("c", 1), outside("d", 4)},
                  {outside("a", 1), outside("b", 0), waits("c", 2, "C"), outside("d", 4)},
                  {outside("a", 1), outside("b", 1), outside("c", 2), waits("d", 5, "D")}});
  // 0 waits for 1, 1 for 0 and 2, 2 for 0 and 1, 3 for all of them.
  EXPECT_THAT(deadlock_of(records),
              ::testing::AllOf(
                  ::testing::HasSubstr("worker 0 waits in A since 2.1 s for worker 1;"),
                  ::testing::HasSubstr("worker 1 waits in B since 2.1 s for worker 0, worker 2;"),
                  ::testing::HasSubstr("worker 2 waits in C since 2.1 s for worker 0, worker 1;"),
                  ::testing::HasSubstr(
                      "worker 3 waits in D since 2.1 s for worker 0, worker 1, worker 2;")));
}

TEST(HealthRules, AllWaitersOfADeadlockedCallAreNamedAfterTheTimeout) {
  auto groups = a_deadlock();
  groups.push_back(groups[1]);
  auto records = members_in(groups);
  EXPECT_THAT(
      deadlock_of(records),
      ::testing::AllOf(
          ::testing::HasSubstr("worker 0, worker 1, worker 2 wait for each other: worker 1, "
                               "worker 2 wait in sum #9 at a.cc:5 since 2.1 s for worker 0;"),
          ::testing::HasSubstr("worker 0 waits in reduce #3 at a.cc:7 since 2.1 s for ")));
  records = members_in(groups);
  records[2].progress_at = at(1500ms);  // has come a moment later
  EXPECT_THAT(deadlock_of(records),
              ::testing::StartsWith("worker 0, worker 1 wait for each other: worker 1 waits in "));
}

TEST(HealthRules, AMemberThatComputesIsInNoDeadlock) {
  auto groups = a_deadlock();
  groups[1] = {outside("values", 2), outside("gradients", 8)};
  auto records = members_in(groups);
  EXPECT_EQ(deadlock_of(records), "");
}

// Worker 1 may be late with what it has to do of sum 8: then it begins 9, and comes to reduce.
TEST(HealthRules, AMemberWithinAnOlderCallOfTheGroupIsInNoDeadlock) {
  auto records = members_in({{outside("values", 2), waits("gradients", 9, "sum #9")},
                             {waits("values", 3, "reduce #3"), waits("gradients", 8, "sum #8")}});
  EXPECT_EQ(deadlock_of(records), "");
}

TEST(HealthRules, ReportsThatStillChangeAreNoDeadlock) {
  for (const std::size_t changed : {0, 1}) {
    auto records = members_in(a_deadlock());
    records[changed].has_stood_still = false;
    EXPECT_EQ(deadlock_of(records), "") << changed;
  }
}

TEST(HealthRules, AWaitThatHasOnlyJustBegunIsNoDeadlock) {
  auto groups = a_deadlock();
  groups[0][0].since = -1500ms;  // at 2 s it has waited for 0.5 s
  auto records = members_in(groups);
  EXPECT_EQ(deadlock_of(records), "");
}

TEST(HealthRules, AMemberThatLeftOrWasGivenUpIsInNoDeadlock) {
  using Status = internal::MemberRecord::Status;
  for (const Status status : {Status::kLeft, Status::kGivenUp}) {
    auto records = members_in(a_deadlock());
    records[1].status = status;
    EXPECT_EQ(deadlock_of(records), "");
  }
}

TEST(HealthRules, ReportsAreTheSameIfTheyNameTheSameCalls) {
  MemberProgress progress{12, "training", {{"all", 5, 4, "sum #5", 3ms}, {"b", 0, 0, "", 0s}}};
  MemberProgress later = progress;
  later.groups[0].since = 400ms;
  EXPECT_TRUE(internal::has_same_calls(progress, later));
  for (const auto& change : std::vector<std::function<void(MemberProgress&)>>{
           [](MemberProgress& p) { p.groups[0].entered = 6; },
           [](MemberProgress& p) { p.groups[0].finished = 5; },
           [](MemberProgress& p) { p.groups[1].group = "c"; },
           [](MemberProgress& p) { p.groups.pop_back(); }}) {
    MemberProgress changed = later;
    change(changed);
    EXPECT_FALSE(internal::has_same_calls(progress, changed));
  }
}

TEST(StopAgreement, ChoosesAStepThatNoMemberHasPassed) {
  internal::StopAgreement server(2s);
  internal::StopGate a, b;
  EXPECT_FALSE(a.stops_after(1, TimePoint::min()));  // works on step 2
  EXPECT_FALSE(a.stops_after(2, TimePoint::min()));  // and on step 3
  EXPECT_FALSE(b.stops_after(1, TimePoint::min()));
  // The server has old news: both in step 2. The first one is past it.
  auto proposal = server.request("worker 1: SIGTERM", {{1, 2}, {2, 2}}, at(0s));
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->step(), 2u);
  EXPECT_FALSE(server.request("again", {{1, 2}}, at(0s)));
  const auto yes = b.take(*proposal), no = a.take(*proposal);
  EXPECT_TRUE(yes->accepts());
  EXPECT_FALSE(no->accepts());
  EXPECT_FALSE(server.answer(2, *yes, at(0s)));
  proposal = server.answer(1, *no, at(0s));
  ASSERT_TRUE(proposal);
  EXPECT_EQ(proposal->step(), 4u);  // with room for one more
  EXPECT_EQ(proposal->round(), 2u);
  EXPECT_FALSE(server.answer(1, *a.take(*proposal), at(0s)));
  proposal = server.answer(2, *b.take(*proposal), at(0s));
  ASSERT_TRUE(proposal);
  EXPECT_TRUE(proposal->is_final());
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

TEST(StopAgreement, TerminatesWhenStepsAreFasterThanMessages) {
  internal::StopAgreement server(2s);
  internal::StopGate gate;
  std::uint64_t step = 0;
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) EXPECT_FALSE(gate.stops_after(++step, TimePoint::min()));
  };
  auto proposal = server.request("x", {{1, 1}}, at(0s));
  int num_rounds = 0;
  while (proposal && !proposal->is_final() && ++num_rounds < 20) {
    run(5);  // while the proposal is on its way
    proposal = server.answer(1, *gate.take(*proposal), at(0s));
    ASSERT_TRUE(proposal);
    EXPECT_GE(proposal->step(), gate.current_step()) << "a step that the member has passed";
  }
  EXPECT_TRUE(proposal && proposal->is_final());
  EXPECT_LT(num_rounds, 6);
}

TEST(StopAgreement, UnreachableMemberDoesNotBlockTheOthers) {
  internal::StopAgreement server(2s);
  internal::StopGate a;
  const auto proposal = server.request("x", {{1, 5}, {2, 5}}, at(0s));
  EXPECT_FALSE(server.answer(1, *a.take(*proposal), at(0s)));
  EXPECT_FALSE(server.tick(at(1900ms)));
  ASSERT_TRUE(server.tick(at(2s)));
  EXPECT_FALSE(server.tick(at(3s)));
  EXPECT_TRUE(server.current()->is_final());
  // Or it is known to be gone.
  internal::StopAgreement other(2s);
  EXPECT_FALSE(other.answer(1, *a.take(*other.request("x", {{1, 5}, {2, 5}}, at(0s))), at(0s)));
  EXPECT_TRUE(other.forget(2)->is_final());
}

v1::StopProposal proposed(bool is_final) {
  v1::StopProposal proposal;
  proposal.set_round(1);
  proposal.set_step(1);
  proposal.set_is_final(is_final);
  proposal.set_reason("x");
  return proposal;
}

TEST(StopGate, WaitsAtTheProposedStepForTheFinalWord) {
  internal::StopGate gate;
  (void)gate.take(proposed(false));
  const auto server = Executor::system().start("server", [&gate] {
    Clock::system().sleep_for(20ms);
    (void)gate.take(proposed(true));
  });
  EXPECT_TRUE(gate.stops_after(1, deadline_after(Clock::system().now(), 60s)));
}

TEST(StopGate, GoesOnWhenNoFinalWordComes) {
  internal::StopGate gate;
  (void)gate.take(proposed(false));
  EXPECT_FALSE(gate.stops_after(1, deadline_after(Clock::system().now(), 5ms)));
  EXPECT_EQ(gate.current_step(), 2u);
}

}  // namespace control_rules_test
}  // namespace tutti
