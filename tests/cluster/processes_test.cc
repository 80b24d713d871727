// Tests jobs and groups of real processes that are killed or stopped, that fail, or that arrive
// late. Prints the time until detection, but requires only that the failure is detected.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <sstream>

#include "tests/cluster/control_job.h"
#include "tests/support/chaos_proxy.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/core/executor.h"

namespace tutti::processes_test {
using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// Child process whose output is read line by line; killed by the destructor. Not thread-safe.
class LineProcess {
 public:
  /// `words` is the program's path, followed by its arguments.
  explicit LineProcess(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::array<int, 2> out{}, in{};
    if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(in.data(), O_CLOEXEC) != 0) {
      throw Error(ErrorCode::kUnavailable, "LineProcess: cannot create a pipe");
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    const int error =
        ::posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    ::close(in[0]);
    output_ = ::fdopen(out[0], "r");
    input_ = ::fdopen(in[1], "w");
    if (error != 0) throw Error(ErrorCode::kUnavailable, "LineProcess: cannot start " + words[0]);
  }
  ~LineProcess() {
    if (pid_ != 0) ::kill(pid_, SIGKILL);
    (void)exit_code();
    std::fclose(output_);
    std::fclose(input_);
  }
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  void signal(int number) { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  void tell(const std::string& line) {
    std::fputs((line + "\n").c_str(), input_);
    std::fflush(input_);
  }
  /// Returns the next line; "end" after the last line.
  std::string line() {
    std::array<char, 4096> text{};
    if (!std::fgets(text.data(), text.size(), output_)) return "end";
    std::string line = text.data();
    if (!line.empty() && line.back() == '\n') line.pop_back();
    return line;
  }
  /// Returns the next line that begins with `begin`, or "end" if there is none.
  std::string line_with(const std::string& begin) {
    for (;;) {
      std::string text = line();
      if (text.starts_with(begin) || text == "end") return text;
    }
  }
  /// Waits for the process to end. Returns its exit code, or the negated number of the signal that
  /// killed it.
  int exit_code() {
    if (pid_ == 0) return code_;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  int code_ = 0;
  std::FILE* output_ = nullptr;
  std::FILE* input_ = nullptr;
};

TimePoint now() { return Clock::system().now(); }

std::vector<std::string> words(std::vector<std::string> first,
                               const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

class MemberProcess : public LineProcess {
 public:
  MemberProcess(const std::string& target, const std::string& job, int index,
                const std::vector<std::string>& more = {"30"})
      : LineProcess(words(
            {TUTTI_CONTROL_MEMBER, target, job, concat(index), concat("127.0.0.1:90", 10 + index)},
            more)) {}
};

/// Returns options for a server that expects n workers.
ControlServerOptions server_for(int n) {
  auto options = control_job::server_options();
  options.expected = control_job::tasks_of(n);
  return options;
}

/// Job of n workers that have all joined.
struct Job {
  std::unique_ptr<ControlServer> server;
  std::vector<std::unique_ptr<MemberProcess>> workers;
};

Job job_of(int n, const HealthOptions& health = {}) {
  auto options = server_for(n);
  options.health = health;
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

/// Returns the next verdict of kind `kind` that the worker receives, and its delay after `since`.
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
                                    ") died: its connection closed and the process has exited"));
    times.push_back(heard.milliseconds);
  }
  print_time("kill -9 (goal 250)", times);
}

TEST(ControlProcesses, StoppedMemberIsReportedWithProcessState) {
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
    // When the worker is resumed, it receives the verdict about itself.
    job.workers[1]->signal(SIGCONT);
    EXPECT_THAT(hear(*job.workers[1], "stopped", begin).message, HasSubstr("worker 1"));
  }
}

/// Job in which worker 1 reaches the server through a proxy, and workers 0 and 2 directly.
/// Certificates force TCP, as between machines.
struct ProxiedJob {
  ProxiedJob() {
    auto options = server_for(3);
    options.tls = control_job::make_certificate("proxied");
    const std::vector<std::string> more{"30", "30", options.tls.certificate,
                                        options.tls.private_key};
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

/// Makes worker 1 report a failure and expects no other fatal verdict, as if its connection had
/// never broken.
void expect_failure_as_only_verdict(ProxiedJob& job, TimePoint begin) {
  job.workers[1]->tell("fail on purpose");
  EXPECT_EQ(hear(*job.workers[0], "failed", begin).message, "worker 1: on purpose");
  for (const Verdict& verdict : job.server->verdicts()) {
    EXPECT_TRUE(!verdict.is_fatal || verdict.kind == VerdictKind::kFailed) << verdict.message;
  }
}

// The first messages of the new connection are also lost, so the member reconnects a second time.
TEST(ControlProcesses, UnansweredReconnectionIsRetried) {
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

// The member's process is visibly running: only the network path is silent, perhaps temporarily.
TEST(ControlProcesses, TotalPacketLossIsReportedOnBothSides) {
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
  EXPECT_THAT(heard.message, HasSubstr("which hosts the control server, has been silent for"));
  times.push_back(heard.milliseconds);
  print_time("half-open (goal 5500)", times);
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

TEST(ControlHeartbeats, ShortPausesOnBusyCoresAreTolerated) {
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

TEST(ControlStart, ErrorNamesUnreachableServer) {
  MemberProcess worker("grpc://127.0.0.1:1", "worker", 1, {"1"});
  const std::string line = worker.line_with("error");
  EXPECT_THAT(line, HasSubstr("control: worker 1 did not reach the control server at 127.0.0.1:1 "
                              "within 1.0 s: Connection refused; start the server, or check"));
  EXPECT_EQ(worker.exit_code(), 1);
}

/// Process that is one rank of a group whose ranks find each other through a folder.
class RankProcess : public LineProcess {
 public:
  RankProcess(const std::string& folder, int rank, int size, int peer, int timeout_ms,
              const std::vector<std::string>& more = {})
      : LineProcess(words(
            {TUTTI_TCP_RANK, folder, concat(rank), concat(size), concat(peer), concat(timeout_ms)},
            more)) {}
};

std::string fresh_folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tutti_tcp_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

void expect_code(const std::string& line, ErrorCode code, const std::string& part) {
  EXPECT_EQ(line.rfind(concat("error ", static_cast<int>(code), " "), 0), 0u) << line;
  EXPECT_THAT(line, HasSubstr(part));
}

TEST(TcpProcesses, TwoRanksMayStartInEitherOrder) {
  for (const int first : {0, 1}) {
    const std::string folder = fresh_folder(concat("first_", first));
    RankProcess early(folder, first, 2, 1 - first, 30000);
    Clock::system().sleep_for(400ms);
    RankProcess late(folder, 1 - first, 2, first, 30000);
    EXPECT_EQ(early.line(), concat("ready ", 1 - first));
    EXPECT_EQ(late.line(), concat("ready ", first));
  }
}

// Case: the arguments of two ranks, and a part of the error that rank 0 prints when rank 1 dies.
struct Death {
  const char* name;
  std::vector<std::string> more;
  const char* words;
};

class DyingProcesses : public ::testing::TestWithParam<Death> {
 protected:
  /// Two ranks that have started; rank 0 waits for at most `timeout_ms`.
  struct Ranks {
    Ranks(const std::string& folder, int timeout_ms)
        : zero(folder, 0, 2, 1, timeout_ms, GetParam().more),
          one(folder, 1, 2, 0, 30000, GetParam().more) {
      EXPECT_EQ(zero.line(), "ready 1");
      EXPECT_EQ(one.line(), "ready 0");
    }
    RankProcess zero, one;
  };
};

INSTANTIATE_TEST_SUITE_P(
    All, DyingProcesses,
    ::testing::Values(Death{"tcp_wait", {"tcp", "wait"}, "rank 1 (127.0.0.1:"},
                      Death{"tcp_stream", {"tcp", "stream"}, "rank 1 (127.0.0.1:"},
                      Death{"tcp_reduce", {"tcp", "reduce", "100000"}, "rank 1 (127.0.0.1:"},
                      Death{"shm_wait", {"shm", "wait"}, "rank 1 (pid "},
                      Death{"shm_stream", {"shm", "stream"}, "rank 1 (pid "},
                      Death{"small_reduce", {"shm", "reduce", "64"}, "rank 1 (pid "},
                      Death{"staged_reduce", {"shm", "reduce", "1000000"}, "rank 1 (pid "},
                      Death{"shared_reduce", {"shm", "shared", "1000000"}, "rank 1 (pid "}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(DyingProcesses, KilledRankIsReportedAtOnce) {
  Ranks ranks(fresh_folder(concat("dying_", GetParam().name)), 30000);
  Clock::system().sleep_for(150ms);
  const TimePoint begin = Clock::system().now();
  ranks.one.signal(SIGKILL);
  const std::string line = ranks.zero.line();
  RecordProperty("milliseconds",
                 static_cast<int>(1e3 * seconds_between(begin, Clock::system().now())));
  expect_code(line, ErrorCode::kUnavailable, GetParam().words);
  const std::string pid = concat("pid ", ranks.one.pid());
  const bool names_pid = GetParam().more[0] == "shm";
  EXPECT_EQ(line.find(pid) != std::string::npos, names_pid) << line;
}

TEST_P(DyingProcesses, StoppedRankIsReportedAtDeadline) {
  Ranks ranks(fresh_folder(concat("stopped_", GetParam().name)), 700);
  ranks.one.signal(SIGSTOP);
  const std::string line = ranks.zero.line();
  EXPECT_EQ(line.rfind("error 4 ", 0), 0u) << line;
  EXPECT_THAT(line, HasSubstr("rank"));
}

TEST(TcpProcesses, StaleStoreOfEarlierRunIsIgnored) {
  const std::string folder = fresh_folder("stale");
  for (int run = 0; run < 3; ++run) {  // higher ranks start first, so they read the old addresses
    RankProcess two(folder, 2, 3, 0, 1), one(folder, 1, 3, 0, 1);
    Clock::system().sleep_for(30ms);
    RankProcess zero(folder, 0, 3, 1, 1);
    EXPECT_EQ(zero.line(), "ready 2");
    EXPECT_EQ(one.line(), "ready 0");
    EXPECT_EQ(two.line(), "ready 1");
  }
}

}  // namespace tutti::processes_test
