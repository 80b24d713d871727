// A broken connection between two members that live: one verdict, by which nobody is given up.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/test/default_reactor_test_peer.h>
#include <gtest/gtest.h>

#include <map>

#include "cluster/control/job_messages.h"
#include "cluster/control/job_service.h"
#include "cluster/net/handshake.h"
#include "tests/cluster/control_job.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace control_disconnections_test {
using namespace control_job;
using testing::expect_error;
using ::testing::HasSubstr;

/// Keeps what a member is told.
class ToldLink final : public internal::MemberLink {
 public:
  void send(const v1::JobEvent& event) override {
    if (event.has_joined()) number = event.joined().member();
    if (event.has_verdict()) verdicts.push_back(internal::from_proto(event.verdict()));
  }
  void close() override {}

  std::uint64_t number = 0;
  std::vector<Verdict> verdicts;
};

class ClockOfTest final : public Clock {
 public:
  TimePoint now() const override { return time; }
  void sleep_until(TimePoint until) override { time = until; }

  TimePoint time{Duration(1000s)};
};

/// The server's rules on a clock of its own. Members are of another machine.
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

  grpc::Status report(std::uint64_t member, int peer, std::uint64_t last_verdict) {
    v1::ReportDisconnectionRequest request;
    request.set_member(member);
    request.set_last_verdict(last_verdict);
    request.set_peer_job("worker");
    request.set_peer_index(static_cast<std::uint32_t>(peer));
    request.set_message("reset by peer");
    return call(&internal::JobService::ReportDisconnection, request);
  }
  /// The message of the verdict that the report led to; "": to none.
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

  ClockOfTest clock_;
  internal::JobService service_{
      ControlServerOptions{},
      [](const internal::JoiningProcess&) { return internal::ProcessState{}; }, clock_};
};

TEST_F(Disconnections, AreOneVerdictOnAllMembersAndNobodyIsGivenUp) {
  v1::JoinRequest looks_on;
  looks_on.set_observes(true);
  const auto a = come(0), b = come(1), c = come(2), observer = come(looks_on);
  // That members came since the connections were made changes nothing.
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
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "") << "the same report, made again";
  EXPECT_EQ(verdict_after_report(*b, 0, 0), "") << "its other end";
  EXPECT_EQ(verdict_after_report(*c, 0, 0), "") << "another one of the same generation";
  EXPECT_EQ(verdict_after_report(*b, 0, 4),
            "worker 1 lost its connection to worker 0: reset by peer")
      << "a connection that was made after the verdict";
  EXPECT_EQ(verdict_after_report(*a, 2, 4), "");
  // Its end is news: it has not failed.
  v1::LeaveRequest leaving;
  leaving.set_member(a->number);
  EXPECT_TRUE(call(&internal::JobService::Leave, leaving).ok());
  EXPECT_EQ(c->verdicts.back().kind, VerdictKind::kLeft);
}

TEST_F(Disconnections, AreNoNewsWhenSomethingElseHasEndedTheCollectives) {
  const auto a = come(0), b = come(1), c = come(2);
  v1::ReportFailureRequest failure;
  failure.set_member(c->number);
  failure.set_code(static_cast<std::uint32_t>(ErrorCode::kDataLoss));
  failure.set_message("a torn file");
  EXPECT_TRUE(call(&internal::JobService::ReportFailure, failure).ok());
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "");
  EXPECT_NE(verdict_after_report(*a, 1, last()), "");
}

TEST_F(Disconnections, AreNoNewsOfAPeerThatLeft) {
  const auto a = come(0), b = come(1);
  v1::LeaveRequest leaving;
  leaving.set_member(b->number);
  EXPECT_TRUE(call(&internal::JobService::Leave, leaving).ok());
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "");
  // Nor does it matter to one that has left itself.
  EXPECT_EQ(verdict_after_report(*b, 0, 0), "");
}

TEST_F(Disconnections, AreNoNewsOfAPeerThatDiedUntilANewProcessHasItsTask) {
  const auto a = come(0), b = come(1);
  service_.closed(b.get());
  clock_.time += 200ms;
  service_.tick();
  ASSERT_EQ(a->verdicts.back().kind, VerdictKind::kDead) << a->verdicts.back().message;
  EXPECT_TRUE(a->verdicts.back().loses_member());
  const std::uint64_t death = last();
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "");
  EXPECT_EQ(verdict_after_report(*a, 1, death), "");
  expect_refused(report(b->number, 0, 0), ErrorCode::kUnavailable, "was given up by the job");
  const auto successor = come(1, 1);
  EXPECT_EQ(verdict_after_report(*a, 1, 0), "") << "a connection to the one before";
  EXPECT_NE(verdict_after_report(*successor, 0, death), "");
}

TEST_F(Disconnections, OfOthersThanMembersAreRefused) {
  const auto a = come(0), b = come(1);
  const std::uint64_t before = last();
  expect_refused(report(0, 1, 0), ErrorCode::kInvalidArgument, "there is no member number 0");
  expect_refused(report(99, 1, 0), ErrorCode::kInvalidArgument, "there is no member number 99");
  expect_refused(report(a->number, 7, 0), ErrorCode::kInvalidArgument,
                 "worker 0 lost its connection to worker 7; expected another member of the job");
  expect_refused(report(a->number, 0, 0), ErrorCode::kInvalidArgument,
                 "worker 0 lost its connection to worker 0; expected another member of the job");
  expect_refused(report(a->number, 1, before + 1), ErrorCode::kInvalidArgument,
                 "came after verdict 3; expected at most 2");
  EXPECT_EQ(last(), before);
}

// A stream's report that the call Leave has overtaken: the process that has the task now counts its
// calls anew, and nothing of the one before it is missed.
TEST_F(Disconnections, AReportThatCameAfterItsMemberLeftChangesNothing) {
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
  v1::LeaveRequest leave;
  leave.set_member(leaver->number);
  EXPECT_TRUE(call(&internal::JobService::Leave, leave).ok());
  const auto successor = come(1, 1);
  EXPECT_TRUE(service_.report(leaver.get(), progress_in(1, 1)));
  const auto waiter = come(0);
  EXPECT_TRUE(service_.report(waiter.get(), progress_in(2, 1)));
  clock_.time += 1s;
  service_.tick();
  for (const Verdict& verdict : service_.verdicts_after(0)) {
    EXPECT_FALSE(verdict.is_fatal) << verdict.message;
  }
}

TEST_F(Disconnections, SilenceDoesNotCountWhileTheServerItselfGetsNoProcessor) {
  const auto member = come(0);
  const auto tick_for = [&](Duration time, Duration every) {
    for (const TimePoint end = clock_.time + time; clock_.time < end; clock_.time += every) {
      service_.tick();
    }
  };
  tick_for(10s, 170ms);  // each time it waits for a processor for 150 ms
  EXPECT_EQ(last(), 1u) << service_.verdicts_after(1).front().message;
  tick_for(6s, durations::kTryAgain);
  ASSERT_EQ(last(), 2u);
  EXPECT_THAT(member->verdicts.back().message, HasSubstr("worker 0 (127.0.0.1:9010, pid 800) is "
                                                         "silent: no heartbeat for 5.0 s"));
}

TEST(ControlDisconnections, ReachAllMembersOfARunningServer) {
  auto options = server_options();
  options.expected = tasks_of(3);
  const auto server = ControlServer::start(options);
  const auto a = join(*server, 0), b = join(*server, 1), c = join(*server, 2);
  a->wait_for_members(after(60s));
  b->report_disconnection(a->self().task, 0, "a chunk with a wrong checksum");
  a->report_disconnection(b->self().task, 0, "the peer has closed it");
  for (const auto* const each : {&a, &b, &c}) {
    ASSERT_TRUE(comes_true([&] { return (*each)->fatal_verdict().has_value(); }));
    const Verdict verdict = (*each)->fatal_verdict().value();
    EXPECT_EQ(verdict.kind, VerdictKind::kDisconnected);
    EXPECT_EQ(verdict.message,
              "worker 1 lost its connection to worker 0: a chunk with a wrong checksum");
    // Members that connect anew wait for each other, undisturbed by what they know.
    (*each)->set(concat("here/", verdict.who.task.index), "x");
    EXPECT_EQ((*each)->wait("here/1", after(60s)), "x");
  }
  for (const Member& member : c->members()) EXPECT_TRUE(member.is_here) << member.to_string();
  std::map<VerdictKind, int> counts;
  for (const Verdict& verdict : server->verdicts()) ++counts[verdict.kind];
  EXPECT_EQ(counts, (std::map<VerdictKind, int>{{VerdictKind::kJoined, 3},
                                                {VerdictKind::kDisconnected, 1}}));
  expect_error(ErrorCode::kInvalidArgument,
               {"worker 0 lost its connection to worker 7; expected another member of the job"},
               [&] {
                 a->report_disconnection({"worker", 7, ""}, 0, "nobody");
               });
}

}  // namespace control_disconnections_test
}  // namespace tutti
