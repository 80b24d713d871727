// Tests the rules of the control plane: store, silent members, stalls, stop agreements and broken
// connections.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/test/default_reactor_test_peer.h>
#include <gtest/gtest.h>

#include <map>

#include "cluster/control/job_messages.h"
#include "cluster/control/job_service.h"
#include "cluster/control/member.h"
#include "cluster/control/stop_agreement.h"
#include "cluster/net/handshake.h"
#include "tests/cluster/control_job.h"
#include "tests/support/scopes.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"

namespace tutti::control_rules_test {
using namespace control_job;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(Duration(1000s)) + time; }

TEST(StoreTable, ReturnsLastValueOfKey) {
  internal::StoreTable store;
  EXPECT_EQ(store.find("k"), nullptr);
  store.put("k", "v");
  store.put("other", "x");
  EXPECT_EQ(*store.find("k"), "v");
  store.put("k", "w");
  EXPECT_EQ(*store.find("k"), "w");
}

TEST(StoreTable, RefusesInvalidKeysAndExcessiveData) {
  internal::StoreTable store(100);
  EXPECT_INVALID(store.put("a key", ""), "the key 'a key'");
  EXPECT_ERROR(store.put("k", std::string(200, 'x')), kResourceExhausted,
               "control store: no room for 'k'; expected at most 100 bytes in all, got 201; use "
               "files for large values");
  store.put("k", std::string(90, 'x'));
  store.put("k", std::string(95, 'x'));  // replaces the first value
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
  const std::string silent = "stopped: worker 2 (127.0.0.1:4712, pid 812) is ";
  const std::string dead = "dead: worker 2 (127.0.0.1:4712, pid 812) died: its connection closed";
  internal::MemberRecord record = record_of(2);
  EXPECT_EQ(silence_of(record, 1900ms, {Kind::kIsStopped, 'T'}), "");
  EXPECT_EQ(silence_of(record, 2100ms, {Kind::kIsStopped, 'T'}),
            silent + "stopped: state T, no heartbeat for 2.1 s; try: kill -CONT 812");
  EXPECT_EQ(silence_of(record, 4900ms, {Kind::kRuns, 'R'}), "");  // it may have just resumed
  EXPECT_EQ(silence_of(record, 5100ms, {Kind::kRuns, 'S'}),
            silent + "silent: no heartbeat for 5.1 s, though its process is in state S");
  // For a process on another machine, the state is unknown and packets may be delayed.
  EXPECT_EQ(silence_of(record, 4900ms, {Kind::kUnknown, '?'}), "");
  EXPECT_EQ(silence_of(record, 5100ms, {Kind::kUnknown, '?'}),
            silent + "silent: no heartbeat for 5.1 s, and its process is on another machine");
  record.is_connected = false;
  EXPECT_EQ(silence_of(record, 10ms, {Kind::kIsGone, 'Z'}), dead + " and the process has exited");
  EXPECT_EQ(silence_of(record, 100ms, {Kind::kUnknown, '?'}), "");
  EXPECT_EQ(silence_of(record, 200ms, {Kind::kUnknown, '?'}),
            dead + ", and it did not open a new one within 0.2 s");
  EXPECT_EQ(silence_of(record, 4900ms, {Kind::kRuns, 'S'}), "");
  EXPECT_EQ(silence_of(record, 5100ms, {Kind::kRuns, 'S'}),
            dead + ", and it did not open a new one within 5.1 s (its process is in state S)");
  EXPECT_EQ(silence_of(record, 1900ms, {Kind::kIsStopped, 'T'}), "");
  EXPECT_EQ(silence_of(record, 2100ms, {Kind::kIsStopped, 'T'}),
            dead + ", and it did not open a new one within 2.1 s (its process is in state T)");
}

TEST(HealthRules, StarvedProcessIsNotReportedAsSilent) {
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

/// Returns three members: workers 0 and 1 wait in collective 3, and worker 2 has finished
/// collective 2.
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

std::vector<internal::MemberRecord*> pointers_to(std::vector<internal::MemberRecord>& records) {
  std::vector<internal::MemberRecord*> pointers;
  for (auto& record : records) pointers.push_back(&record);
  return pointers;
}

std::vector<std::string> stuck_at(std::vector<internal::MemberRecord>& records, Duration time) {
  std::vector<std::string> texts;
  for (const internal::Finding& finding :
       internal::find_stuck(pointers_to(records), at(time), {})) {
    texts.push_back(
        concat(finding.is_fatal ? "fatal " : "", to_string(finding.kind), ": ", finding.message));
  }
  return texts;
}

TEST(HealthRules, WarnAboutLateRankAndAbortAtDeadline) {
  auto records = a_stall();
  EXPECT_THAT(stuck_at(records, 4s), ElementsAre());
  EXPECT_THAT(
      stuck_at(records, 4600ms),
      ElementsAre(
          "stuck: worker 2 (127.0.0.1:4712, pid 812) is late: worker 0, worker 1 have waited "
          "4.6 s in all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7 (group 'all', step "
          "12); worker 2 has been in user code for 5.0 s (training), after broadcast(float32 x 1, "
          "'b') #2 at a.cc:6"));
  EXPECT_THAT(stuck_at(records, 5s), ElementsAre());  // the warning is logged only once
  const auto at_the_end = stuck_at(records, 60s);
  ASSERT_EQ(at_the_end.size(), 1u);
  EXPECT_THAT(at_the_end[0], HasSubstr("fatal stuck: worker 2 (127.0.0.1:4712, pid 812) "
                                       "did not join: worker 0, worker 1 have waited 60"));
}

TEST(HealthRules, WarningNamesCurrentCollectiveOfLateRank) {
  auto records = a_stall();
  records[2].progress.groups.push_back({"rows", 9, 8, "barrier() #9 at b.cc:1", 1s});
  EXPECT_THAT(stuck_at(records, 5s),
              ElementsAre(HasSubstr(
                  "worker 2 has waited 6.0 s in barrier() #9 at b.cc:1 of group 'rows'")));
}

TEST(HealthRules, DepartureBeforePendingCollectiveIsReportedAtOnce) {
  auto records = a_stall();
  records[2].status = internal::MemberRecord::Status::kLeft;
  EXPECT_THAT(
      stuck_at(records, 300ms),
      ElementsAre(
          "fatal left: worker 2 (127.0.0.1:4712, pid 812) has left the job in step "
          "12, but worker 0, worker 1 wait in all_reduce(SUM, float32 x 12, 'a') #3 "
          "at a.cc:7 for it; it ended normally; expected the same number of steps on all workers"));
}

TEST(HealthRules, DoNotWarnIfNoMemberIsWaiting) {
  auto records = a_stall();
  for (int i = 0; i < 2; ++i) records[static_cast<std::size_t>(i)].progress.groups[0].finished = 3;
  EXPECT_THAT(stuck_at(records, 100s), ElementsAre());
}

using Groups = std::vector<GroupProgress>;

/// Returns records of members 0, 1, ... Both of member i's last two reports, at 0 s, list the calls
/// in groups[i].
std::vector<internal::MemberRecord> members_in(const std::vector<Groups>& groups) {
  std::vector<internal::MemberRecord> records;
  for (const Groups& each : groups) {
    records.push_back(record_of(static_cast<int>(records.size())));
    records.back().progress = {12, "training", each};
    records.back().has_stood_still = true;
  }
  return records;
}

/// Returns the verdict of the deadlock rule for `records` at time 2 s; "" if there is none.
std::string deadlock_of(std::vector<internal::MemberRecord>& records) {
  const auto finding = internal::find_deadlock(pointers_to(records), at(2s));
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

/// Returns the state of a deadlock: worker 0 reduces values and worker 1 sums gradients, so each
/// waits for the other.
std::vector<Groups> a_deadlock() {
  return {{waits("values", 3, "reduce #3 at a.cc:7"), outside("gradients", 8)},
          {outside("values", 2), waits("gradients", 9, "sum #9 at a.cc:5")}};
}

TEST(HealthRules, DeadlockIsReportedOnceWithCalls) {
  auto records = members_in(a_deadlock());
  EXPECT_EQ(deadlock_of(records),
            "worker 0, worker 1 wait for each other: worker 1 has waited 2.1 s for worker 0 "
            "in sum #9 at a.cc:5; worker 0 has waited 2.1 s for worker 1 in reduce #3 at a.cc:7; "
            "expected the same calls in the same order on every worker; make these calls on all "
            "workers, not only where is_chief() is true");
  EXPECT_EQ(deadlock_of(records), "");
}

TEST(HealthRules, DeadlockReportListsWhomEachMemberWaitsFor) {
  auto records =
      members_in({{waits("a", 1, "A"), outside("b", 0), outside("c", 1), outside("d", 4)},
                  {outside("a", 0), waits("b", 1, "B"), outside("c", 1), outside("d", 4)},
                  {outside("a", 1), outside("b", 0), waits("c", 2, "C"), outside("d", 4)},
                  {outside("a", 1), outside("b", 1), outside("c", 2), waits("d", 5, "D")}});
  // Worker 0 waits for 1, worker 1 for 0 and 2, worker 2 for 0 and 1, and worker 3 for 0, 1 and 2.
  EXPECT_THAT(deadlock_of(records),
              ::testing::AllOf(
                  HasSubstr("worker 0 has waited 2.1 s for worker 1 in A;"),
                  HasSubstr("worker 1 has waited 2.1 s for worker 0, worker 2 in B;"),
                  HasSubstr("worker 2 has waited 2.1 s for worker 0, worker 1 in C;"),
                  HasSubstr("worker 3 has waited 2.1 s for worker 0, worker 1, worker 2 in D;")));
}

TEST(HealthRules, DeadlockReportNamesAllMembersWaitingInCall) {
  auto groups = a_deadlock();
  groups.push_back(groups[1]);
  auto records = members_in(groups);
  EXPECT_THAT(
      deadlock_of(records),
      ::testing::AllOf(HasSubstr("worker 0, worker 1, worker 2 wait for each other: worker 1, "
                                 "worker 2 have waited 2.1 s for worker 0 in sum #9 at a.cc:5;"),
                       HasSubstr("worker 0 has waited 2.1 s for "),
                       HasSubstr(" in reduce #3 at a.cc:7")));
  records = members_in(groups);
  records[2].progress_at = at(1500ms);  // worker 2 entered its call slightly later
  EXPECT_THAT(
      deadlock_of(records),
      ::testing::StartsWith("worker 0, worker 1 wait for each other: worker 1 has waited "));
}

TEST(HealthRules, WaitsThatMayResolveAreNotReportedAsDeadlock) {
  using Records = std::vector<internal::MemberRecord>;
  using Status = internal::MemberRecord::Status;
  const std::pair<const char*, void (*)(Records&)> changes[] = {
      {"worker 1 computes",
       [](Records& all) { all[1].progress.groups[1] = outside("gradients", 8); }},
      // Worker 1 may still finish sum 8, enter sum 9 and then reduce.
      {"worker 1 is within an older call of the group",
       [](Records& all) {
         all[0].progress.groups = {outside("values", 2), waits("gradients", 9, "sum #9")};
         all[1].progress.groups = {waits("values", 3, "reduce #3"),
                                   waits("gradients", 8, "sum #8")};
       }},
      {"worker 0 reports changes", [](Records& all) { all[0].has_stood_still = false; }},
      {"worker 1 reports changes", [](Records& all) { all[1].has_stood_still = false; }},
      {"worker 0 has waited for 0.5 s",
       [](Records& all) { all[0].progress.groups[0].since = -1500ms; }},
      {"worker 1 left", [](Records& all) { all[1].status = Status::kLeft; }},
      {"the job has given up on worker 1", [](Records& all) { all[1].status = Status::kGivenUp; }},
  };
  for (const auto& [name, change] : changes) {
    Records records = members_in(a_deadlock());
    change(records);
    EXPECT_EQ(deadlock_of(records), "") << name;
  }
}

TEST(HealthRules, ProgressReportsWithSameCallsAreEqual) {
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

TEST(StopAgreement, ChoosesStepNotYetPassedByAnyMember) {
  internal::StopAgreement server(2s);
  internal::StopGate a, b;
  EXPECT_FALSE(a.stops_after(1, TimePoint::min()));  // continues with step 2
  EXPECT_FALSE(a.stops_after(2, TimePoint::min()));  // continues with step 3
  EXPECT_FALSE(b.stops_after(1, TimePoint::min()));
  // The server's information is outdated: it shows both workers in step 2, but worker `a` is in
  // step 3.
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
  EXPECT_EQ(proposal->step(), 4u);  // includes a margin of one step
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
    run(5);  // while the proposal is in flight
    proposal = server.answer(1, *gate.take(*proposal), at(0s));
    ASSERT_TRUE(proposal);
    EXPECT_GE(proposal->step(), gate.current_step()) << "a step that the member has passed";
  }
  EXPECT_TRUE(proposal && proposal->is_final());
  EXPECT_LT(num_rounds, 6);
}

TEST(StopAgreement, UnreachableMemberDoesNotBlockAgreement) {
  internal::StopAgreement server(2s);
  internal::StopGate a;
  const auto proposal = server.request("x", {{1, 5}, {2, 5}}, at(0s));
  EXPECT_FALSE(server.answer(1, *a.take(*proposal), at(0s)));
  EXPECT_FALSE(server.tick(at(1900ms)));
  ASSERT_TRUE(server.tick(at(2s)));
  EXPECT_FALSE(server.tick(at(3s)));
  EXPECT_TRUE(server.current()->is_final());
  // If worker 2 is known to have exited, the agreement does not wait for its reply.
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

TEST(StopGate, WaitsAtProposedStepForFinalDecision) {
  internal::StopGate gate;
  (void)gate.take(proposed(false));
  const auto server = Executor::system().start("server", [&gate] {
    Clock::system().sleep_for(20ms);
    (void)gate.take(proposed(true));
  });
  EXPECT_TRUE(gate.stops_after(1, deadline_after(Clock::system().now(), 60s)));
}

TEST(StopGate, ContinuesWithoutFinalDecision) {
  internal::StopGate gate;
  (void)gate.take(proposed(false));
  EXPECT_FALSE(gate.stops_after(1, deadline_after(Clock::system().now(), 5ms)));
  EXPECT_EQ(gate.current_step(), 2u);
}

/// Link that records the messages sent to a member.
class ToldLink final : public internal::MemberLink {
 public:
  void send(const v1::JobEvent& event) override {
    if (event.has_joined()) number = event.joined().member();
    if (event.has_history()) ++num_messages;
    for (const v1::Verdict& verdict : event.history().verdicts()) {
      verdicts.push_back(internal::from_proto(verdict));
    }
  }
  void close() override {}

  std::uint64_t number = 0;
  int num_messages = 0;  // counts only messages with verdicts
  std::vector<Verdict> verdicts;
};

/// Fixture that runs the server's rules on a simulated clock. Members are on other machines.
class Disconnections : public ::testing::Test {
 protected:
  std::shared_ptr<ToldLink> come(int index, std::uint64_t incarnation = 0) {
    v1::JoinRequest request;
    const MemberTask task{"worker", index, concat("127.0.0.1:90", 10 + index)};
    *request.mutable_member() = internal::to_proto(Member{task, incarnation, "", 800 + index});
    *request.mutable_build() = internal::make_build("", {});
    request.set_process(concat("process ", index, " ", incarnation));
    return come(request);
  }
  std::shared_ptr<ToldLink> come(const v1::JoinRequest& request) {
    const auto link = std::make_shared<ToldLink>();
    const grpc::Status status = service_.join(link, request);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return link;
  }

  template <class Request, class Reply>
  grpc::Status call(internal::JobService::Reactor* (internal::JobService::*method)(
                        grpc::CallbackServerContext*, const Request*, Reply*),
                    const Request& request) {
    grpc::CallbackServerContext context;
    const grpc::testing::DefaultReactorTestPeer peer(&context);
    Reply reply;
    (service_.*method)(&context, &request, &reply);
    EXPECT_TRUE(peer.test_status_set());
    return peer.test_status();
  }

  void leave(const ToldLink& link) {
    v1::LeaveRequest leaving;
    leaving.set_member(link.number);
    EXPECT_TRUE(call(&internal::JobService::Leave, leaving).ok());
  }

  grpc::Status report(std::uint64_t member, int peer, std::uint64_t last_verdict) {
    v1::ReportDisconnectionRequest request;
    request.set_member(member);
    request.set_last_verdict(last_verdict);
    request.set_peer_job("worker");
    request.set_peer_index(static_cast<std::uint32_t>(peer));
    request.set_message("reset by peer");
    return call(&internal::JobService::ReportDisconnection, request);
  }
  /// Makes a member report a lost connection; returns the message of the resulting verdict, or "".
  std::string verdict_after_report(const ToldLink& from, int peer, std::uint64_t last_verdict) {
    const std::uint64_t before = service_.verdicts_after(0).size();
    const grpc::Status status = report(from.number, peer, last_verdict);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const std::vector<Verdict> news = service_.verdicts_after(before);
    EXPECT_LE(news.size(), 1u);
    return news.empty() ? "" : news.front().message;
  }
  void expect_refused(const grpc::Status& status, ErrorCode code, const std::string& text) {
    EXPECT_EQ(static_cast<int>(status.error_code()), static_cast<int>(code));
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }
  std::uint64_t last() { return service_.verdicts_after(0).size(); }

  test_scopes::StepClock clock_;
  internal::JobService service_{
      ControlServerOptions{},
      [](const internal::JoiningProcess&) { return internal::ProcessState{}; }, clock_};
};

TEST_F(Disconnections, ReportCausesOneVerdictWithoutRemovingMembers) {
  v1::JoinRequest looks_on;
  looks_on.set_observes(true);
  const auto a = come(0), b = come(1), c = come(2), observer = come(looks_on);
  // Worker 2 joined after worker 0 had connected to worker 1, but worker 0's report about worker 1
  // is still valid.
  EXPECT_EQ(verdict_after_report(*a, 1, 0),
            "worker 0 lost its connection to worker 1: reset by peer");
  for (const auto& each : {a, b, c, observer}) {
    const Verdict& verdict = each->verdicts.back();
    EXPECT_EQ(verdict.number, 4u);
    EXPECT_EQ(to_string(verdict.kind), "disconnected");
    EXPECT_EQ(verdict.who.task.to_string(), "worker 0");
    EXPECT_TRUE(verdict.who.is_here);
    EXPECT_TRUE(verdict.is_fatal);
    EXPECT_FALSE(verdict.loses_member());
    EXPECT_EQ(verdict.code, ErrorCode::kUnavailable);
    EXPECT_THAT(verdict.message, HasSubstr("worker 0 lost its connection to worker 1"));
  }
  EXPECT_EQ(service_.members().size(), 3u);
  for (const Member& member : service_.members()) EXPECT_TRUE(member.is_here) << member.to_string();
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "") << "repeated report";
  EXPECT_EQ(verdict_after_report(*b, 0, 0), "") << "report from the other end of the connection";
  EXPECT_EQ(verdict_after_report(*c, 0, 0), "")
      << "report about another connection made before the verdict";
  EXPECT_EQ(verdict_after_report(*b, 0, 4),
            "worker 1 lost its connection to worker 0: reset by peer")
      << "report about a connection made after the verdict";
  EXPECT_EQ(verdict_after_report(*a, 2, 4), "");
  // The remaining members are notified that a member left, but this is not a failure.
  leave(*a);
  EXPECT_EQ(c->verdicts.back().kind, VerdictKind::kLeft);
}

TEST_F(Disconnections, ReportsAfterAnotherFailureAreIgnored) {
  const auto a = come(0), b = come(1), c = come(2);
  v1::ReportFailureRequest failure;
  failure.set_member(c->number);
  failure.set_code(static_cast<std::uint32_t>(ErrorCode::kDataLoss));
  failure.set_message("a torn file");
  EXPECT_TRUE(call(&internal::JobService::ReportFailure, failure).ok());
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "");
  EXPECT_NE(verdict_after_report(*a, 1, last()), "");
}

TEST_F(Disconnections, ReportsAboutDepartedPeerAreIgnored) {
  const auto a = come(0), b = come(1);
  leave(*b);
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "");
  // A report from a member that has left is ignored, too.
  EXPECT_EQ(verdict_after_report(*b, 0, 0), "");
}

TEST_F(Disconnections, ReportsAboutDeadPeerAreIgnoredUntilReplacement) {
  const auto a = come(0), b = come(1);
  service_.closed(b.get());
  clock_.sleep_for(200ms);
  service_.tick();
  ASSERT_EQ(a->verdicts.back().kind, VerdictKind::kDead) << a->verdicts.back().message;
  EXPECT_TRUE(a->verdicts.back().loses_member());
  const std::uint64_t death = last();
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "");
  EXPECT_EQ(verdict_after_report(*a, 1, death), "");
  expect_refused(report(b->number, 0, 0), ErrorCode::kUnavailable, "the job has given up on");
  const auto successor = come(1, 1);
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "")
      << "report about a connection to the dead process of worker 1";
  EXPECT_NE(verdict_after_report(*successor, 0, death), "");
}

TEST_F(Disconnections, ReportsByOrAboutUnknownMembersAreRefused) {
  const auto a = come(0), b = come(1);
  const std::uint64_t before = last();
  expect_refused(report(0, 1, 0), ErrorCode::kInvalidArgument, "there is no member with number 0");
  expect_refused(report(99, 1, 0), ErrorCode::kInvalidArgument,
                 "there is no member with number 99");
  expect_refused(report(a->number, 7, 0), ErrorCode::kInvalidArgument,
                 "worker 0 reported that it lost its connection to worker 7; expected the name of "
                 "another member of the job");
  expect_refused(report(a->number, 0, 0), ErrorCode::kInvalidArgument,
                 "worker 0 reported that it lost its connection to worker 0; expected the name of "
                 "another member of the job");
  expect_refused(report(a->number, 1, before + 1), ErrorCode::kInvalidArgument,
                 "worker 0 reported last verdict number 3; expected at most 2");
  EXPECT_EQ(last(), before);
}

// The Leave call overtakes a report on the stream. The task's new process counts its calls from
// zero, so its predecessor's progress must not be attributed to it.
TEST_F(Disconnections, ProgressReportAfterLeaveIsIgnored) {
  const auto progress_in = [](std::uint64_t entered, std::uint64_t finished) {
    v1::MemberReport report;
    v1::GroupProgress& group = *report.mutable_progress()->add_groups();
    group.set_group("group");
    group.set_entered(entered);
    group.set_finished(finished);
    group.set_call("barrier()");
    group.set_since_ns(std::chrono::nanoseconds(10s).count());
    return report;
  };
  const auto leaver = come(1);
  EXPECT_TRUE(service_.report(leaver.get(), progress_in(1, 1)));
  leave(*leaver);
  const auto successor = come(1, 1);
  EXPECT_TRUE(service_.report(leaver.get(), progress_in(1, 1)));
  const auto waiter = come(0);
  EXPECT_TRUE(service_.report(waiter.get(), progress_in(2, 1)));
  clock_.sleep_for(1s);
  service_.tick();
  for (const Verdict& verdict : service_.verdicts_after(0)) {
    EXPECT_FALSE(verdict.is_fatal) << verdict.message;
  }
}

TEST_F(Disconnections, LargeJobBatchesJoinAndLeaveMessages) {
  constexpr int kSize = 24;
  std::vector<std::shared_ptr<ToldLink>> links;
  for (int i = 0; i < kSize; ++i) links.push_back(come(i));
  const ToldLink& first = *links.front();
  EXPECT_LE(first.num_messages, 10)
      << "members that join at the same time are announced in one message";
  service_.tick();
  EXPECT_LE(first.num_messages, 10);
  clock_.sleep_for(100ms);
  service_.tick();
  EXPECT_EQ(first.verdicts.size(), 24u);
  EXPECT_LE(first.num_messages, 11);
  for (std::size_t i = 20; i < kSize; ++i) leave(*links[i]);
  EXPECT_EQ(first.verdicts.size(), 24u);
  EXPECT_NE(verdict_after_report(*links[1], 2, 0), "");
  for (const auto& link : links) {
    ASSERT_EQ(link->verdicts.size(), 29u);
    for (std::size_t i = 0; i < 29; ++i) EXPECT_EQ(link->verdicts[i].number, i + 1);
    EXPECT_EQ(link->verdicts[24].kind, VerdictKind::kLeft);
    EXPECT_EQ(link->verdicts[28].kind, VerdictKind::kDisconnected);
  }
  EXPECT_LE(first.num_messages, 12);
  leave(*links[19]);
  EXPECT_EQ(first.verdicts.size(), 29u);
  service_.announce_server_end();
  EXPECT_EQ(first.verdicts.size(), 30u) << "the pending verdict is sent before the server ends";
}

TEST_F(Disconnections, ServerStarvationDoesNotCountAsSilence) {
  const auto member = come(0);
  const auto tick_for = [&](Duration time, Duration every) {
    for (const TimePoint end = clock_.now() + time; clock_.now() < end; clock_.sleep_for(every)) {
      service_.tick();
    }
  };
  tick_for(10s, 170ms);  // each tick is 150 ms late, as if the server had to wait for a processor
  EXPECT_EQ(last(), 1u) << service_.verdicts_after(1).front().message;
  tick_for(6s, durations::kTryAgain);
  ASSERT_EQ(last(), 2u);
  EXPECT_THAT(member->verdicts.back().message, HasSubstr("worker 0 (127.0.0.1:9010, pid 800) is "
                                                         "silent: no heartbeat for 5.0 s"));
}

TEST(ControlDisconnections, ReportReachesAllMembersOfRunningServer) {
  auto options = server_options();
  options.expected = tasks_of(3);
  const auto server = ControlServer::start(options);
  const auto a = join(*server, 0), b = join(*server, 1), c = join(*server, 2);
  a->wait_for_members(late());
  b->report_disconnection(a->self().task, 0, "a chunk with a wrong checksum");
  a->report_disconnection(b->self().task, 0, "the peer has closed it");
  for (const auto* const each : {&a, &b, &c}) {
    ASSERT_TRUE(comes_true([&] { return (*each)->fatal_verdict().has_value(); }));
    const Verdict verdict = (*each)->fatal_verdict().value();
    EXPECT_EQ(verdict.kind, VerdictKind::kDisconnected);
    EXPECT_EQ(verdict.message,
              "worker 1 lost its connection to worker 0: a chunk with a wrong checksum");
    // Despite the verdict, members can still use the store, through which they reconnect.
    (*each)->set(concat("here/", verdict.who.task.index), "x");
    EXPECT_EQ((*each)->wait("here/1", late()), "x");
  }
  for (const Member& member : c->members()) EXPECT_TRUE(member.is_here) << member.to_string();
  std::map<VerdictKind, int> counts;
  for (const Verdict& verdict : server->verdicts()) ++counts[verdict.kind];
  EXPECT_EQ(counts, (std::map<VerdictKind, int>{{VerdictKind::kJoined, 3},
                                                {VerdictKind::kDisconnected, 1}}));
  EXPECT_INVALID(a->report_disconnection({"worker", 7, ""}, 0, "reset by peer"),
                 "worker 0 reported that it lost its connection to worker 7; expected the name of "
                 "another member of the job");
}

}  // namespace tutti::control_rules_test
