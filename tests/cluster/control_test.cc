// Tests the control server with in-process members: store, refusals, restarts, foreign connections
// and certificates.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <atomic>
#include <list>

#include "cluster/control/join_job.h"
#include "cluster/grpc/grpc_server.h"
#include "cluster/grpc/job_authority.h"
#include "core/process_probe.h"
#include "tests/cluster/control_job.h"
#include "tests/cluster/proxied_ranks.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"

namespace tutti::control_test {
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using namespace control_job;

std::unique_ptr<ControlServer> server_for(int num_workers) {
  auto options = server_options();
  options.expected = tasks_of(num_workers);
  return ControlServer::start(options);
}

class Control : public ::testing::Test {
 protected:
  std::unique_ptr<ControlServer> server_ = ControlServer::start(server_options());
};

TEST_F(Control, SharesValuesAmongAllMembers) {
  EXPECT_THAT(server_->target(), HasSubstr("grpc://127.0.0.1:"));
  const auto a = join(*server_, 0), b = join(*server_, 1);
  EXPECT_EQ(a->get("k"), std::nullopt);
  const std::string large(1 << 20, '\xfe');
  for (const std::string& value : {std::string(), std::string("\0\n\xff", 3), large}) {
    a->set("k", value);
    EXPECT_EQ(b->get("k"), value);
    EXPECT_EQ(b->wait("k", in(0s)), value);
  }
  b->set("k", "x");
  EXPECT_EQ(a->get("k"), "x");
  a->set("bytes", "\xfe");
  const std::vector<std::string> keys = {"k", "none", "bytes", "k"};
  EXPECT_EQ(b->get_all(keys),
            (std::vector<std::optional<std::string>>{"x", std::nullopt, "\xfe", "x"}));
  const std::vector<std::string> bad = {"k", "a b"};
  EXPECT_INVALID(b->get_all(bad), "control store: the key 'a b'");
  EXPECT_INVALID(a->set("a b", "x"), "control store: the key 'a b'");
  EXPECT_INVALID(a->set("k", std::string((1 << 20) + 1, 'x')), "1048577");
}

TEST_F(Control, WaitReturnsValueOrTimesOut) {
  const auto a = join(*server_, 0), b = join(*server_, 1);
  const auto setter = Executor::system().start("setter", [&] {
    Clock::system().sleep_for(20ms);
    b->set("address", "here");
  });
  EXPECT_EQ(a->wait("address", late()), "here");
  EXPECT_ERROR(a->wait("missing", in(5ms)), kDeadlineExceeded,
               "worker 0: control store: no process has set 'missing'");
}

TEST_F(Control, SupportsConcurrentRequests) {
  const auto client = join(*server_, 0);
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < 4; ++t) {
    threads.push_back(Executor::system().start("asker", [&client, t] {
      for (int i = 0; i < 25; ++i) {
        client->set(concat(t, "/", i), concat(t * i));
        EXPECT_EQ(client->wait(concat((t + 1) % 4, "/", i), late()), concat((t + 1) % 4 * i));
      }
    }));
  }
}

TEST_F(Control, ReportsJoinsLeavesAndFailures) {
  server_ = server_for(3);
  auto a = join(*server_, 0), b = join(*server_, 1);
  auto members = a->members();
  ASSERT_EQ(members.size(), 3u);
  EXPECT_TRUE(members[1].is_here);
  EXPECT_FALSE(members[2].is_here);
  EXPECT_EQ(members[2].to_string(), "worker 2 (127.0.0.1:9012)");
  b->report_failure(Error(ErrorCode::kDataLoss, "a torn file"));
  ASSERT_TRUE(comes_true([&] { return a->fatal_verdict().has_value(); }));
  EXPECT_EQ(a->fatal_verdict()->message, "worker 1: a torn file");
  EXPECT_EQ(to_error(*a->fatal_verdict()).code(), ErrorCode::kDataLoss);
  b.reset();
  auto c = join(*server_, 2);
  a->report_failure(Error(ErrorCode::kInternal, "no space left"));
  c->leave();
  EXPECT_ERROR(c->get("k"), kFailedPrecondition, "worker 2 has left the job");
  ASSERT_TRUE(comes_true([&] { return a->verdicts().size() >= 6; }));
  const auto verdicts = a->verdicts();
  // The verdicts contain both failures.
  EXPECT_EQ(std::ranges::count(verdicts, VerdictKind::kFailed, &Verdict::kind), 2);
  EXPECT_EQ(verdicts.back().kind, VerdictKind::kLeft);
  EXPECT_FALSE(verdicts.back().is_fatal);
  EXPECT_THAT(verdicts.back().message, HasSubstr("worker 2 (127.0.0.1:9012, pid "));
  for (std::size_t i = 0; i < verdicts.size(); ++i) EXPECT_EQ(verdicts[i].number, i + 1);
}

/// Returns the progress tracker of a member that has entered `entered` and finished `finished`
/// collectives of the group "all".
std::shared_ptr<ProgressTracker> board_of(std::uint64_t entered, std::uint64_t finished) {
  auto board = std::make_shared<ProgressTracker>();
  board->watch("all", [=] { return GroupProgress{"", entered, finished, "barrier() #1", 1s}; });
  return board;
}

// On a busy machine, the latest report of a member may be older than its peer's leave message.
TEST_F(Control, LeaveAfterLastCollectiveIsNotAFailure) {
  auto options = server_options();
  options.health.heartbeat_every = 10min;  // members report only at first and before they leave
  options.health.silent_after = options.health.unreachable_after = 20min;
  server_ = ControlServer::start(options);
  const auto late = board_of(0, 0);
  ControlOptions waiting, leaving;
  waiting.progress = board_of(1, 0);
  leaving.progress = late;
  const auto waiter = join(*server_, 0, waiting);
  auto leaver = join(*server_, 1, leaving);
  Clock::system().sleep_for(200ms);  // until both members have reported once
  late->watch("all", [] { return GroupProgress{"", 1, 1, "barrier() #1", 1s}; });
  late->watch("all", {});  // as if the communicator were destroyed before the client
  leaver.reset();
  ASSERT_TRUE(comes_true([&] { return waiter->verdicts().back().kind == VerdictKind::kLeft; }));
  Clock::system().sleep_for(500ms);
  EXPECT_FALSE(waiter->fatal_verdict().has_value()) << waiter->fatal_verdict()->message;
}

TEST_F(Control, LeavingWhilePeerWaitsInCollectiveIsAFailure) {
  ControlOptions waiting, leaving;
  waiting.progress = board_of(2, 1);
  const auto board = board_of(1, 1);
  leaving.progress = board;
  const auto waiter = join(*server_, 0, waiting);
  auto leaver = join(*server_, 1, leaving);
  board->watch("all", {});
  leaver.reset();
  ASSERT_TRUE(comes_true([&] { return waiter->fatal_verdict().has_value(); }));
  EXPECT_THAT(waiter->fatal_verdict()->message, HasSubstr("worker 0 waits in barrier() #1"));
}

TEST_F(Control, RestartedProcessDoesNotLogEarlierVerdicts) {
  const auto a = join(*server_, 0);
  join(*server_, 1)->report_disconnection(a->self().task, 0, "an old story");
  ASSERT_TRUE(comes_true([&] { return a->fatal_verdict().has_value(); }));
  const thrown::LogLines lines;
  ControlOptions again;
  again.incarnation = 1;
  const auto b = join(*server_, 1, again);
  ASSERT_TRUE(comes_true([&] { return b->fatal_verdict().has_value(); }));
  EXPECT_EQ(b->fatal_verdict()->message, "worker 1 lost its connection to worker 0: an old story");
  EXPECT_THAT(lines.text(), ::testing::Not(HasSubstr("an old story")));
}

TEST_F(Control, MemberDestroyedByExceptionReportsLatestError) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{}, "worker 1: ended by an exception; see its log"},
      {{"it went on after this", "tcp: rank 0 is gone"},
       "worker 1: ended by an exception: tcp: rank 0 is gone"}};
  for (const auto& [notes, message] : cases) {
    SCOPED_TRACE(message);
    server_ = ControlServer::start(server_options());
    const auto a = join(*server_, 0);
    try {
      const auto b = join(*server_, 1);
      for (const std::string& note : notes) b->note_failure(note);
      fail(ErrorCode::kInternal, "user code");
    } catch (const Error&) {
    }
    ASSERT_TRUE(comes_true([&] { return a->fatal_verdict().has_value(); }));
    EXPECT_EQ(a->fatal_verdict()->message, message);
  }
}

TEST_F(Control, ThrownErrorIsNotAlsoLogged) {
  const auto a = join(*server_, 0), b = join(*server_, 1);
  const thrown::LogLines lines;
  b->report_failure(Error(ErrorCode::kDataLoss, "thrown in user code"));
  b->report_failure(Error(ErrorCode::kDataLoss, "another one"));
  ASSERT_TRUE(comes_true([&] { return a->verdicts().size() == 4; }));  // two joins and two failures
  EXPECT_THAT(lines.text(), ::testing::Not(HasSubstr("thrown in user code")));
}

TEST_F(Control, ExceptionIsReportedOnceBeforeConnectionsClose) {
  const auto a = join(*server_, 0);
  struct Connections {
    ~Connections() { client.report_unwinding(); }
    ControlClient& client;
  };
  try {
    const auto b = join(*server_, 1);
    const Connections connections{*b};
    b->report_unwinding();  // no exception is in flight
    fail(ErrorCode::kInternal, "user code");
  } catch (const Error&) {
  }
  const auto count = [&](VerdictKind kind) {
    return std::ranges::count(a->verdicts(), kind, &Verdict::kind);
  };
  ASSERT_TRUE(comes_true([&] { return count(VerdictKind::kFailed) > 0; }));
  EXPECT_EQ(count(VerdictKind::kFailed), 1);
}

TEST_F(Control, JoinTimeoutNamesMissingMembers) {
  server_ = server_for(3);
  const auto a = join(*server_, 0, {.say_every = 50ms});
  const thrown::LogLines lines;
  EXPECT_ERROR(a->wait_for_members(in(1s)), kDeadlineExceeded,
               "control: worker 0: worker 1 (127.0.0.1:9011), worker 2 (127.0.0.1:9012) did not "
               "join within ",
               " s; start the missing tasks, or check their addresses and logs");
  EXPECT_THAT(lines.text(),
              ::testing::ContainsRegex("control: worker 0 has waited [0-9.]+ s for worker 1 "
                                       "\\(127.0.0.1:9011\\), worker 2 \\(127.0.0.1:9012\\)"));
  const auto b = join(*server_, 1);
  const auto waiter = Executor::system().start("waiter", [&] { a->wait_for_members(late()); });
  const auto c = join(*server_, 2);
  c->wait_for_members(late());
  waiter->join();  // so that no member leaves before the thread ends
}

TEST_F(Control, RefusesDuplicateAndUnknownTasks) {
  server_ = server_for(2);
  const auto a = join(*server_, 0);
  EXPECT_ERROR(
      join(*server_, 0), kFailedPrecondition,
      "control: worker 0 cannot join at 127.0.0.1:", "worker 0 (127.0.0.1:9010, pid ",
      ") has already joined; expected one process per task; check the task index in TF_CONFIG");
  EXPECT_ERROR(join(*server_, 7), kFailedPrecondition,
               "worker 7 is not a task of this job; expected one of worker 0, worker 1; check");
  EXPECT_EQ(a->get("still"), std::nullopt);
}

TEST_F(Control, DepartedProcessJoinsNextServerHostedByMember) {
  auto options = server_options();
  options.host = tasks_of(1).front();
  server_ = ControlServer::start(options);
  auto host = join(*server_, 0);
  join(*server_, 1)->leave();
  const std::string target = server_->target();
  EXPECT_ERROR((void)connect_control(target, tasks_of(2).back(), {.timeout = 1s}),
               kDeadlineExceeded,
               "the server of the previous strategy, which worker 0 has not left yet");
  host.reset();
  server_.reset();
  options.address = target.substr(std::string_view("grpc://").size());
  server_ = ControlServer::start(options);
  EXPECT_EQ(join(*server_, 1)->self().task.index, 1);
}

TEST_F(Control, DepartedProcessMayRejoinLauncherServer) {
  join(*server_, 1)->leave();
  EXPECT_EQ(join(*server_, 1)->self().task.index, 1);
}

TEST_F(Control, RestartedTaskReplacesPreviousProcess) {
  const auto a = join(*server_, 0);
  const auto old = join(*server_, 1);
  const auto young = join(*server_, 1, {.incarnation = 1});
  ASSERT_TRUE(comes_true([&] { return a->fatal_verdict().has_value(); }));
  EXPECT_THAT(a->fatal_verdict()->message, HasSubstr("died: a new process has its task"));
  young->set("k", "young");
  // The previous process of the task can no longer change anything.
  EXPECT_ERROR(old->set("k", "old"), kUnavailable);
  EXPECT_EQ(a->get("k"), "young");
  EXPECT_ERROR(join(*server_, 1), kFailedPrecondition,
               "worker 1 already runs after restart 1; this process is from restart 0");
}

TEST_F(Control, RefusesDifferentSecretsAndJobsOnBothSides) {
  auto options = server_options();
  options.secret = JobSecret::generate();
  options.job_id = "job-1";
  server_ = ControlServer::start(options);
  const thrown::LogLines lines;
  EXPECT_ERROR(join(*server_, 1, {.job_id = "job-1", .secret = JobSecret::generate()}),
               kFailedPrecondition, "worker 1 cannot join at 127.0.0.1:", "launcher 0",
               "does not know this job's secret");
  EXPECT_ERROR(join(*server_, 1, {.job_id = "job-1"}), kFailedPrecondition,
               "only one side has a job secret", "worker 1 has none", "TUTTI_JOB_SECRET_FILE");
  EXPECT_ERROR(join(*server_, 1, {.job_id = "job-2", .secret = options.secret}),
               kFailedPrecondition, "two jobs met: ", "'job-1'", "'job-2'", "TUTTI_JOB_ID");
  EXPECT_TRUE(
      comes_true([&] { return lines.text().find("refused a connection") != std::string::npos; }));
  const auto good = join(*server_, 1, {.job_id = "job-1", .secret = options.secret});
  good->set("k", "v");
}

TEST_F(Control, AcceptsAnyStringAsJobId) {
  for (const std::string& id :
       {std::string("two\nlines"), std::string("\xc3\xa4\x01"), std::string(5000, 'x')}) {
    auto options = server_options();
    options.job_id = id;
    server_ = ControlServer::start(options);
    join(*server_, 1, {.job_id = id})->set("k", "v");
    EXPECT_ERROR(join(*server_, 1, {.job_id = id + "2"}), kFailedPrecondition, "two jobs met: ");
  }
}

TEST_F(Control, ListsMissingMembersDuringWait) {
  server_ = server_for(3);
  const auto a = join(*server_, 0);
  join(*server_, 1)->leave();
  EXPECT_TRUE(server_->missing().empty());  // no member is waiting for another
  const auto waiter = Executor::system().start("waiter", [&] { a->wait_for_members(in(20s)); });
  ASSERT_TRUE(comes_true([&] { return server_->missing().size() == 2; }));
  EXPECT_EQ(server_->missing()[0].task, tasks_of(2)[1]);
  EXPECT_EQ(server_->missing()[1].task, tasks_of(3)[2]);
  const auto b = join(*server_, 1, {.incarnation = 1}), c = join(*server_, 2);
  waiter->join();
  EXPECT_TRUE(server_->missing().empty());
}

TEST_F(Control, RestartedProcessIsNotExpectedInEarlierCollectives) {
  ControlOptions waiting, leaving, again;
  leaving.progress = board_of(1, 1);
  const auto leaver = join(*server_, 1, leaving);
  leaver->leave();
  again.incarnation = 1;
  again.progress = board_of(2, 2);
  const auto successor = join(*server_, 1, again);
  waiting.progress = board_of(2, 1);
  const auto waiter = join(*server_, 0, waiting);
  Clock::system().sleep_for(500ms);  // twice the grace period of a leaving member
  EXPECT_FALSE(waiter->fatal_verdict().has_value()) << waiter->fatal_verdict()->message;
}

TEST_F(Control, UnreachableAddressFailsAtOnce) {
  // TCP cannot connect to a broadcast address, so the connection attempt fails at once.
  EXPECT_ERROR((void)connect_control("grpc://255.255.255.255:80", {}, {.timeout = 50s}),
               kUnavailable,
               "control: worker 0 cannot reach the control server at 255.255.255.255:80: ",
               "Network is unreachable; waiting longer will not help; correct TUTTI_CONTROL, or ");
}

TEST_F(Control, CallsFailWithUnavailableAfterServerShutdown) {
  server_ = ControlServer::start(server_options());
  const auto a = join(*server_, 0);
  server_.reset();
  ASSERT_TRUE(comes_true([&] {
    try {
      a->get("k");
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kUnavailable;
    }
  }));
  EXPECT_FALSE(a->fatal_verdict());
}

TEST_F(Control, PortInUseErrorNamesOwningProcess) {
  auto options = server_options();
  options.address = server_->target().substr(server_->target().rfind('/') + 1);
  EXPECT_ERROR((void)ControlServer::start(options), kUnavailable,
               concat("listening on ", options.address, " failed: Address already in use by pid ",
                      ::getpid(), " ("),
               "end that process or try another port");
}

/// Each server removes socket files of dead servers but must keep those of live servers.
TEST_F(Control, ServersStartedConcurrentlyAllListen) {
  std::vector<std::unique_ptr<Thread>> threads;
  std::atomic<int> num_claims{0};
  for (int t = 0; t < 4; ++t) {
    threads.push_back(Executor::system().start("claims", [&, t] {
      try {
        for (int i = 0; i < 400; ++i) {
          const internal::LocalSocketClaim claim({"127.0.0.1", 2000 + t});
          ++num_claims;
        }
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(num_claims, 1600);
}

TEST_F(Control, NetworkAddressRequiresSecret) {
  auto options = server_options();
  options.address = "10.1.2.3:0";
  EXPECT_INVALID((void)ControlServer::start(options),
                 "ControlServer: other machines reach '10.1.2.3'", "TUTTI_JOB_SECRET_FILE");
}

TEST(ControlTargets, InvalidTargetsAreRejected) {
  for (const char* target : {"", "127.0.0.1:4711", "http://127.0.0.1:4711", "grpc://", "grpc://x:0",
                             "grpc://10.0.0.300:4711", "tcp://127.0.0.1:4711"}) {
    EXPECT_INVALID((void)connect_control(target, {}, {.timeout = 0s}),
                   concat("control: expected a target grpc://host:port, got '", target, "'"));
  }
  EXPECT_INVALID((void)ControlServer::start({.address = "localhost"}),
                 "expected an address host:port, got 'localhost'");
}

TEST(ControlJoin, FirstTaskHostsServerAtItsOwnAddress) {
  // This port was free a moment ago.
  const int port = internal::listen_at({"127.0.0.1", 0}).endpoint.port;
  std::vector<MemberTask> tasks{{"chief", 0, concat("127.0.0.1:", port)},
                                {"worker", 0, "127.0.0.1:2"}};
  std::string seen;
  const auto worker = Executor::system().start("worker", [&] {
    const ControlPlane plane = join_job(tasks, 1);
    EXPECT_EQ(plane.server, nullptr);
    seen = plane.client->wait("k", late());
  });
  const ControlPlane plane = join_job(tasks, 0);
  EXPECT_EQ(plane.server->target(), concat("grpc://127.0.0.1:", port));
  plane.client->wait_for_members(late());
  plane.client->set("k", "v");
  worker->join();
  EXPECT_EQ(seen, "v");
}

TEST(ProcessProbe, DistinguishesRunningAndExitedProcesses) {
  const internal::ProcessIdentity& self = internal::this_process();
  using Kind = internal::ProcessState::Kind;
  EXPECT_EQ(internal::inspect_process(self.pid, self.start_time).kind, Kind::kRuns);
  EXPECT_EQ(internal::inspect_process(self.pid, self.start_time + 1).kind, Kind::kIsGone);
  EXPECT_EQ(internal::inspect_process(1 << 30, 0).kind, Kind::kIsGone);
  EXPECT_EQ(internal::owner_of_port(1), "");
}

TEST(ProcessProbe, DetectsRunningThreadWhileMainThreadSleeps) {
  const internal::ProcessIdentity& self = internal::this_process();
  internal::ProcessState state;
  const auto thread = Executor::system().start(
      "looks", [&] { state = internal::inspect_process(self.pid, self.start_time); });
  thread->join();  // the main thread sleeps in join()
  EXPECT_EQ(state.letter, 'R');
  EXPECT_TRUE(state.is_busy());
}

internal::Endpoint place_of(const ControlServer& server) {
  return internal::parse_endpoint(server.target().substr(server.target().rfind('/') + 1)).value();
}

TEST(ControlUnknownClients, HundredsOfUnknownConnectionsDoNotDisturbMembers) {
  auto options = server_options();
  options.tls = control_job::make_certificate("strangers");
  const auto server = ControlServer::start(options);
  const auto member = join(*server, 0, {.tls = options.tls});
  const std::size_t before = proxied_ranks::num_descriptors();
  std::list<internal::FileDescriptor> crowd;
  const std::vector<std::string> words{"",
                                       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                       std::string("\x16\x03\x01\x02\x00\x01", 6),
                                       "SSH-2.0-x\r\n",
                                       std::string(5000, '\xff')};
  for (int i = 0; i < 400; ++i) {
    crowd.push_back(internal::start_connecting(place_of(*server)));
    proxied_ranks::say(crowd.back(), words[static_cast<std::size_t>(i) % words.size()]);
    if (i % 50 == 0) member->set("k", concat(i));  // the member still works
  }
  EXPECT_EQ(member->get("k"), "350");
  const auto late = join(*server, 1, {.tls = options.tls});
  // Connections that do not use TLS are closed at once; silent or slow connections, after 5 s.
  const TimePoint begin = Clock::system().now();
  EXPECT_TRUE(comes_true([&] {
    std::erase_if(crowd, [](const internal::FileDescriptor& socket) {
      return proxied_ranks::is_closed(socket);
    });
    return crowd.empty();
  })) << crowd.size()
      << " connections are still open";
  std::printf("unknown clients: all 400 connections closed after %.1f s\n",
              seconds_between(begin, Clock::system().now()));
  EXPECT_EQ(late->get("k"), "350");
  EXPECT_TRUE(comes_true([&] { return proxied_ranks::num_descriptors() <= before + 4; }))
      << proxied_ranks::num_descriptors();
  for (const Verdict& verdict : member->verdicts()) EXPECT_EQ(verdict.kind, VerdictKind::kJoined);
}

TEST(ControlUnknownClients, LoopbackServerUsesPrivateUnixSocket) {
  const auto server = ControlServer::start(server_options());
  const std::filesystem::path path = internal::local_socket_path(place_of(*server));
  EXPECT_TRUE(std::filesystem::is_socket(path));
  for (const auto& folder : {path.parent_path(), path.parent_path().parent_path()}) {
    EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms::owner_all);
  }
  const auto opened = internal::connect_until(place_of(*server), in(5s));
  EXPECT_FALSE(opened.socket.is_open());
  EXPECT_TRUE(opened.is_connection_refused) << opened.reason;
}

// A killed process leaves its socket file behind. The next server at the same address replaces it,
// but would never replace the socket of a live process.
TEST(ControlUnknownClients, SocketOfDeadProcessIsReplaced) {
  std::string target;
  std::filesystem::path path, kept;
  {
    const auto server = ControlServer::start(server_options());
    target = server->target();
    path = internal::local_socket_path(place_of(*server));
    kept = path.string() + ".kept";
    std::filesystem::create_hard_link(path, kept);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::rename(kept, path);
  EXPECT_ERROR((void)connect_control(target, {}, {.timeout = 2s}), kDeadlineExceeded,
               "Connection refused");
  auto options = server_options();
  options.address = target.substr(target.rfind('/') + 1);
  const auto server = ControlServer::start(options);
  join(*server, 0)->set("k", "v");
}

TEST(ControlConnection, MemberReconnectsAfterResetsAndCorruption) {
  auto options = server_options();
  options.tls = control_job::make_certificate("resets");
  options.health.unreachable_after = 20s;  // on a busy machine, a reconnection may take seconds
  const auto server = ControlServer::start(options);
  testing::ChaosPlan plan;
  plan.cut_every = 20'000;
  plan.flip_every = 30'000;
  plan.most_events = 6;
  testing::ChaosProxy proxy(place_of(*server), plan);
  try {
    const auto member = connect_control(concat("grpc://", proxy.endpoint().to_string()),
                                        {"worker", 0, ""}, {.tls = options.tls, .timeout = 60s});
    const auto other = join(*server, 1, {.tls = options.tls});
    // The number of bytes per call varies, so the loop continues until three faults have occurred.
    const auto num_faults = [&] { return proxy.num_cuts() + proxy.num_flips(); };
    for (int i = 0; i < 300 || (num_faults() < 3 && i < 10'000); ++i) {
      const std::string key = concat("k/", i);
      member->set(key, "mine");
      EXPECT_EQ(member->get(key), "mine") << i;
    }
    for (const Verdict& verdict : other->verdicts()) {
      EXPECT_EQ(verdict.kind, VerdictKind::kJoined) << verdict.message;
    }
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
  EXPECT_GE(proxy.num_cuts() + proxy.num_flips(), 3);
}

// A damaged length field has the same effect as packet loss: one end waits for data that never
// arrives, and receives no error.
TEST(ControlConnection, MemberInServerProcessReconnectsAfterPacketLoss) {
  auto options = server_options();
  options.tls = control_job::make_certificate("vanished");
  const auto server = ControlServer::start(options);
  testing::ChaosProxy proxy(place_of(*server), {});
  const auto member = connect_control(concat("grpc://", proxy.endpoint().to_string()),
                                      {"worker", 0, ""}, {.tls = options.tls, .timeout = 60s});
  member->set("k", "before");
  proxy.swallow();
  EXPECT_EQ(member->get("k"), "before");
  member->set("k", "after");
  EXPECT_EQ(member->get("k"), "after");
  for (const Verdict& verdict : member->verdicts()) EXPECT_EQ(verdict.kind, VerdictKind::kJoined);
}

TEST(ControlTls, RefusesClientsWithoutCertificateFromAuthority) {
  auto options = server_options();
  options.tls = control_job::make_certificate("job");
  const auto server = ControlServer::start(options);
  const auto member = join(*server, 0, {.tls = options.tls});
  member->set("k", "v");
  EXPECT_EQ(member->get("k"), "v");
  ControlOptions stranger{.timeout = 500ms};
  EXPECT_ERROR((void)connect_control(server->target(), {"worker", 1, ""}, stranger),
               kDeadlineExceeded, "worker 1 did not reach the control server at");
  stranger.tls = control_job::make_certificate("other");
  stranger.timeout = 60s;
  EXPECT_ERROR((void)connect_control(server->target(), {"worker", 1, ""}, stranger),
               kFailedPrecondition,
               "worker 1 cannot join at 127.0.0.1:", "the TLS handshake fails");
}

// The address 0.0.0.0 is not a loopback address, but this machine can be reached through it.
TEST(ControlTls, JobSecretSufficesForNetworkAddress) {
  auto options = server_options();
  options.address = "0.0.0.0:0";
  options.allow_any_address = true;
  options.secret = JobSecret::generate();
  const auto server = ControlServer::start(options);
  EXPECT_THAT(server->target(), ::testing::StartsWith("grpc://0.0.0.0:"));
  const auto far = join(*server, 0, {.secret = options.secret});
  far->set("k", "v");
  // Processes on this machine can also connect through the loopback address.
  const std::string port = server->target().substr(server->target().rfind(':'));
  const auto near =
      connect_control("grpc://127.0.0.1" + port, {"worker", 1, ""}, {.secret = options.secret});
  EXPECT_EQ(near->get("k"), "v");
  EXPECT_ERROR(join(*server, 2, {.secret = JobSecret::generate()}), kFailedPrecondition,
               "the TLS handshake fails", "expected a server that knows this job's secret");
}

std::string text_file(const std::string& name, const std::string& text) {
  const std::string path = concat(::testing::TempDir(), "/tutti_authority_", name, "_", ::getpid());
  std::ofstream(path) << text;
  return path;
}

bool openssl_verifies(const internal::TlsIdentity& shown, const internal::TlsIdentity& known) {
  const std::string certificate = text_file("certificate", shown.certificate);
  const std::string authority = text_file("authority", known.authorities);
  return std::system(concat("openssl verify -x509_strict -purpose sslserver -CAfile ", authority,
                            " ", certificate, " > /dev/null 2>&1")
                         .c_str()) == 0;
}

TEST(JobAuthority, SameSecretYieldsSameAuthority) {
  const JobSecret secret = JobSecret::generate();
  const auto a = internal::derive_identity(secret), b = internal::derive_identity(secret);
  EXPECT_NE(a.certificate, b.certificate);
  EXPECT_NE(a.private_key, b.private_key);
  EXPECT_TRUE(openssl_verifies(a, b));
  EXPECT_TRUE(openssl_verifies(b, a));
  const auto other = internal::derive_identity(JobSecret::generate());
  EXPECT_FALSE(openssl_verifies(a, other));
  EXPECT_FALSE(openssl_verifies(other, a));
}

}  // namespace tutti::control_test
