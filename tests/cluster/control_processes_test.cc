// Members that are real processes: killed, stopped, failing, late. Prints how long each took to be
// known; asserts only that it was.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cluster/control/control_server.h"
#include "tests/cluster/tls_files.h"
#include "tests/support/chaos_proxy.h"
#include "tests/support/line_process.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace control_processes_test {
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TimePoint now() { return Clock::system().now(); }

class MemberProcess : public testing::LineProcess {
 public:
  MemberProcess(const std::string& target, const std::string& job, int index,
                const std::vector<std::string>& more = {"30"})
      : LineProcess(words(target, job, index, more)) {}

 private:
  static std::vector<std::string> words(const std::string& target, const std::string& job,
                                        int index, const std::vector<std::string>& more) {
    std::vector<std::string> all{TUTTI_CONTROL_MEMBER, target, job, std::to_string(index),
                                 concat("127.0.0.1:90", 10 + index)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

/// A job of n workers, all of which have joined.
struct Job {
  std::unique_ptr<ControlServer> server;
  std::vector<std::unique_ptr<MemberProcess>> workers;
};

Job job_of(int n, const HealthOptions& health = {}) {
  ControlServerOptions options;
  options.health = health;
  options.linger = 0s;
  for (int i = 0; i < n; ++i)
    options.expected.push_back({"worker", i, concat("127.0.0.1:90", 10 + i)});
  Job job;
  job.server = ControlServer::start(options);
  for (int i = 0; i < n; ++i) {
    job.workers.push_back(std::make_unique<MemberProcess>(job.server->target(), "worker", i,
                                                          std::vector<std::string>{"30", "30"}));
  }
  for (auto& worker : job.workers) EXPECT_EQ(worker->line_with("all"), "all");
  return job;
}

struct Heard {
  std::string message;
  double milliseconds = 0;
};

/// What a worker hears of this kind, and how long after `since`.
Heard hear(MemberProcess& worker, const std::string& kind, TimePoint since) {
  std::istringstream words(worker.line_with("verdict " + kind));
  std::string word;
  int is_fatal = 0;
  long long time = 0;
  words >> word >> word >> is_fatal >> time;
  Heard heard;
  std::getline(words >> std::ws, heard.message);
  heard.milliseconds = 1e-6 * static_cast<double>(time - since.time_since_epoch().count());
  return heard;
}

void print_time(const std::string& what, const std::vector<double>& times) {
  std::printf("detection | %-34s | %s ms\n", what.c_str(), join(times).c_str());
}

TEST(ControlProcesses, KillIsReportedToAllSurvivors) {
  Job job = job_of(4);
  const pid_t pid = job.workers[2]->pid();
  const TimePoint begin = now();
  job.workers[2]->signal(SIGKILL);
  std::vector<double> times;
  for (const int survivor : {0, 1, 3}) {
    const Heard heard = hear(*job.workers[static_cast<std::size_t>(survivor)], "dead", begin);
    EXPECT_EQ(heard.message, concat("worker 2 (127.0.0.1:9012, pid ", pid,
                                    ") died: its connection closed and the process is gone"));
    times.push_back(heard.milliseconds);
  }
  print_time("kill -9 (goal 250)", times);
}

TEST(ControlProcesses, StoppedMemberIsNamedWithItsState) {
  for (const bool fast : {false, true}) {
    Job job = job_of(3, fast ? HealthOptions::fast_detect() : HealthOptions{});
    const TimePoint begin = now();
    job.workers[1]->signal(SIGSTOP);
    std::vector<double> times;
    for (const std::size_t survivor : {0, 2}) {
      const Heard heard = hear(*job.workers[survivor], "stopped", begin);
      EXPECT_THAT(heard.message, HasSubstr("is stopped: state T, no heartbeat for"));
      EXPECT_THAT(heard.message, HasSubstr(concat("kill -CONT ", job.workers[1]->pid())));
      times.push_back(heard.milliseconds);
    }
    print_time(fast ? "SIGSTOP, fast_detect (goal 600)" : "SIGSTOP (goal 2500)", times);
    // Continued, it learns what the others think of it.
    job.workers[1]->signal(SIGCONT);
    EXPECT_THAT(hear(*job.workers[1], "stopped", begin).message, HasSubstr("worker 1"));
  }
}

/// Workers 0 and 2 reach the server, worker 1 reaches a proxy in front of it. Certificates make it
/// TCP, as between machines.
struct ProxiedJob {
  ProxiedJob() {
    ControlServerOptions options;
    options.tls = testing::make_certificate("proxied");
    const std::vector<std::string> more{"30", "30", options.tls.certificate,
                                        options.tls.private_key};
    options.linger = 0s;
    for (int i = 0; i < 3; ++i) {
      options.expected.push_back({"worker", i, concat("127.0.0.1:90", 10 + i)});
    }
    server = ControlServer::start(options);
    const std::string place = server->target().substr(7);
    proxy = std::make_unique<testing::ChaosProxy>(internal::parse_endpoint(place).value(),
                                                  testing::ChaosPlan{});
    for (int i = 0; i < 3; ++i) {
      const std::string proxied = concat("grpc://", proxy->endpoint());
      workers.push_back(
          std::make_unique<MemberProcess>(i == 1 ? proxied : server->target(), "worker", i, more));
    }
    for (auto& worker : workers) EXPECT_EQ(worker->line_with("all"), "all");
  }
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<testing::ChaosProxy> proxy;
  std::vector<std::unique_ptr<MemberProcess>> workers;
};

/// Worker 1 fails, and the job takes it as if nothing had been before.
void expect_failure_as_only_verdict(ProxiedJob& job, TimePoint begin) {
  job.workers[1]->tell("fail on purpose");
  EXPECT_EQ(hear(*job.workers[0], "failed", begin).message, "worker 1: on purpose");
  for (const Verdict& verdict : job.server->verdicts()) {
    EXPECT_TRUE(!verdict.is_fatal || verdict.kind == VerdictKind::kFailed) << verdict.message;
  }
}

TEST(ControlProcesses, ConnectionThatLosesPacketsIsReopened) {
  ProxiedJob job;
  const int before = job.proxy->num_accepted();
  const TimePoint begin = now();
  job.proxy->swallow();
  while (job.proxy->num_accepted() == before && seconds_between(begin, now()) < 30) {
    Clock::system().sleep_for(5ms);
  }
  EXPECT_GT(job.proxy->num_accepted(), before);
  print_time("half-open, one connection (goal 2500)", {1e3 * seconds_between(begin, now())});
  expect_failure_as_only_verdict(job, begin);
}

// The opening of the new connection may be damaged, or vanish: it is not all that is tried.
TEST(ControlProcesses, SilentReconnectionIsRetried) {
  ProxiedJob job;
  const int before = job.proxy->num_accepted();
  const TimePoint begin = now();
  job.proxy->swallow_next();
  job.proxy->cut_all();
  while (job.proxy->num_accepted() < before + 2 && seconds_between(begin, now()) < 30) {
    Clock::system().sleep_for(5ms);
  }
  ASSERT_GE(job.proxy->num_accepted(), before + 2);
  print_time("silent opening", {1e3 * seconds_between(begin, now())});
  expect_failure_as_only_verdict(job, begin);
}

// Its process can be seen to run: what is silent is the way to it, which may pass.
TEST(ControlProcesses, MemberThatLosesAllPacketsIsNamedOnBothSides) {
  ProxiedJob job;
  const TimePoint begin = now();
  job.proxy->swallow_for_good();
  std::vector<double> times;
  for (const std::size_t survivor : {0, 2}) {
    const Heard heard = hear(*job.workers[survivor], "stopped", begin);
    EXPECT_THAT(heard.message, HasSubstr("worker 1 ("));
    EXPECT_THAT(heard.message, HasSubstr("is silent: no heartbeat for"));
    times.push_back(heard.milliseconds);
  }
  const Heard heard = hear(*job.workers[1], "stopped", begin);
  EXPECT_THAT(heard.message, HasSubstr("which hosts the control server, is silent for"));
  times.push_back(heard.milliseconds);
  print_time("half-open (goal 5500)", times);
}

TEST(ControlProcesses, FailuresReachAllMembersAndAreKept) {
  Job job = job_of(3);
  const TimePoint begin = now();
  job.workers[1]->tell("fail the loss is NaN");
  std::vector<double> times;
  for (auto& worker : job.workers) {
    const Heard heard = hear(*worker, "failed", begin);
    EXPECT_EQ(heard.message, "worker 1: the loss is NaN");
    times.push_back(heard.milliseconds);
  }
  print_time("exception (goal 250)", times);
  job.workers[2]->tell("fail no space left");
  EXPECT_EQ(hear(*job.workers[0], "failed", begin).message, "worker 2: no space left");
  int failures = 0;
  for (const Verdict& verdict : job.server->verdicts()) {
    failures += verdict.kind == VerdictKind::kFailed;
  }
  EXPECT_EQ(failures, 2);
}

TEST(ControlProcesses, LateMemberIsNamedWithCallAndDelay) {
  HealthOptions health;
  health.abort_stuck_after = 6s;
  Job job = job_of(3, health);
  for (auto& worker : job.workers) worker->tell("enter 1");
  for (auto& worker : job.workers) worker->tell("finish 1");
  const TimePoint begin = now();
  for (const std::size_t waiter : {0, 2}) job.workers[waiter]->tell("enter 2");
  const Heard warning = hear(*job.workers[0], "stuck", begin);
  EXPECT_THAT(warning.message, HasSubstr("is late: worker 0, worker 2 wait in all_reduce(SUM, "
                                         "'gradient') #2 since 4."));
  EXPECT_THAT(warning.message, HasSubstr("worker 1 is in user code for 4."));
  const Heard end = hear(*job.workers[0], "stuck", begin);
  EXPECT_THAT(end.message, HasSubstr("did not come: worker 0, worker 2 wait in"));
  print_time("stuck: warning (goal 5000), abort", {warning.milliseconds, end.milliseconds});
}

TEST(ControlProcesses, RunningMembersStopAfterAgreedStepWhileOneIsSuspended) {
  Job job = job_of(5);
  for (std::size_t i = 0; i < 3; ++i) job.workers[i]->tell(concat("steps ", 5 + 10 * i));
  Clock::system().sleep_for(100ms);
  job.workers[4]->signal(SIGSTOP);
  const TimePoint begin = now();
  job.workers[3]->tell("stop SIGTERM");
  const std::string first = job.workers[0]->line_with("stopped");
  EXPECT_THAT(first, HasSubstr(" worker 3: SIGTERM"));
  EXPECT_EQ(job.workers[1]->line_with("stopped"), first);
  EXPECT_EQ(job.workers[2]->line_with("stopped"), first);
  print_time("agreed stop, one unreachable (goal 2000)", {1e3 * seconds_between(begin, now())});
}

TEST(ControlPulses, ShortPausesOnBusyCoresAreTolerated) {
  Job job = job_of(4);
  std::atomic<bool> done{false};
  std::vector<std::unique_ptr<Thread>> burners;
  for (int i = 0; i < num_hardware_threads(); ++i) {
    burners.push_back(Executor::system().start("burner", [&done] {
      volatile unsigned x = 0;
      while (!done) x = x + 1;
    }));
  }
  for (int pulse = 0; pulse < 4; ++pulse) {
    MemberProcess& worker = *job.workers[static_cast<std::size_t>(pulse)];
    worker.signal(SIGSTOP);
    Clock::system().sleep_for(1500ms);
    worker.signal(SIGCONT);
    Clock::system().sleep_for(500ms);
  }
  done = true;
  for (const Verdict& verdict : job.server->verdicts()) {
    EXPECT_EQ(verdict.kind, VerdictKind::kJoined) << verdict.message;
  }
}

TEST(ControlStart, MissingMemberIsNamedAndAllFail) {
  ControlServerOptions options;
  for (int i = 0; i < 4; ++i)
    options.expected.push_back({"worker", i, concat("127.0.0.1:90", 10 + i)});
  options.linger = 0s;
  const auto server = ControlServer::start(options);
  std::vector<std::unique_ptr<MemberProcess>> workers;
  for (const int i : {0, 1, 3}) {
    workers.push_back(std::make_unique<MemberProcess>(server->target(), "worker", i,
                                                      std::vector<std::string>{"30", "5"}));
  }
  for (auto& worker : workers) {
    const std::string line = worker->line_with("error");
    EXPECT_THAT(line, HasSubstr(": worker 2 (127.0.0.1:9012) did not come within 5."));
    EXPECT_THAT(line, HasSubstr("start what is missing, or check its address and its log"));
    EXPECT_EQ(worker->exit_code(), 1);
  }
}

TEST(ControlStart, MissingServerIsNamed) {
  MemberProcess worker("grpc://127.0.0.1:1", "worker", 1, {"1"});
  const std::string line = worker.line_with("error");
  EXPECT_THAT(line, HasSubstr("control: worker 1 did not reach the control server at 127.0.0.1:1 "
                              "within 1.0 s: Connection refused; start it, or check"));
  EXPECT_EQ(worker.exit_code(), 1);
}

TEST(ControlRestart, ANewProcessTakesTheTaskOfADeadOne) {
  Job job = job_of(2);
  job.workers[1]->signal(SIGKILL);
  EXPECT_THAT(hear(*job.workers[0], "dead", now()).message, HasSubstr("worker 1"));
  job.workers[1] = std::make_unique<MemberProcess>(job.server->target(), "worker", 1);
  EXPECT_EQ(job.workers[1]->line_with("joined"), "joined");
  EXPECT_THAT(hear(*job.workers[0], "joined", now()).message,
              HasSubstr(concat("pid ", job.workers[1]->pid(), ") joined")));
}

}  // namespace control_processes_test
}  // namespace tutti
