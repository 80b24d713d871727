// Tests launcher components without processes: job plans, output lines, restarts and exit codes.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/child_process.h"
#include "tools/launch/job_plan.h"
#include "tools/launch/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <set>

namespace tutti::launch::launcher_parts_test {

std::string value_of(const ProcessPlan& process, const std::string& name) {
  std::string value = "unset";
  int times = 0;
  for (const auto& [each, text] : process.environment) {
    if (each == name) value = text, ++times;
  }
  EXPECT_LE(times, 1) << name;
  return value;
}

TEST(Task, TfConfigContainsClusterAndOwnTask) {
  const std::vector<Task> tasks = make_tasks({1, 2, 1}, {"a:1", "b:2", "c:3", "d:4"});
  EXPECT_EQ(tasks[2].name(), "worker-1");
  EXPECT_EQ(tf_config(tasks, tasks[2]),
            R"({"cluster":{"chief":["a:1"],"worker":["b:2","c:3"],"ps":["d:4"]},)"
            R"("task":{"type":"worker","index":1}})");
  EXPECT_EQ(tf_config(make_tasks({0, 1, 0}, {"a:1"}), Task{"worker", 0, "a:1"}),
            R"({"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}})");
}

TEST(FreePorts, AreDistinctUnprivilegedPorts) {
  const std::vector<int> ports = free_ports(50);
  EXPECT_EQ(std::set<int>(ports.begin(), ports.end()).size(), 50u);
  for (const int port : ports) {
    EXPECT_GE(port, 10'000);
    EXPECT_LT(port, 61'000);
  }
}

TEST(FreePorts, AreNotAssignedToSecondJob) {
  std::set<int> seen;
  // If ports were only chosen at random, two of these 500 would be equal in 99 % of runs.
  for (int i = 0; i < 10; ++i) {
    for (const int port : free_ports(50)) EXPECT_TRUE(seen.insert(port).second) << port;
  }
}

TEST(JobPlan, CoresAreDividedEquallyAmongRanks) {
  using Cores = std::vector<int>;
  const Cores four{0, 1, 4, 5};
  EXPECT_EQ(cores_of_rank(four, 0, 2), (Cores{0, 1}));
  EXPECT_EQ(cores_of_rank(four, 1, 2), (Cores{4, 5}));
  EXPECT_EQ(cores_of_rank(four, 0, 3), (Cores{0}));
  EXPECT_EQ(cores_of_rank(four, 1, 3), (Cores{1}));
  EXPECT_EQ(cores_of_rank(four, 2, 3), (Cores{4, 5}));
  EXPECT_EQ(cores_of_rank(four, 5, 6), (Cores{1}));
}

TEST(JobPlan, UserVariablesTakePrecedence) {
  JobRequest request;
  request.counts.workers = 2;
  request.environment = {{"TUTTI_JOB_ID", "mine"}, {"A", "1"}, {"A", "2"}};
  request.cores = {0, 1, 2, 3};
  JobPlan plan = make_plan(request);
  plan.add_variable("A", "3");
  plan.add_variable("B", "4");
  for (const ProcessPlan& process : plan.processes) {
    EXPECT_EQ(value_of(process, "TUTTI_JOB_ID"), "mine");
    EXPECT_EQ(value_of(process, "A"), "2");
    EXPECT_EQ(value_of(process, "B"), "4");
    EXPECT_EQ(value_of(process, "TUTTI_RESTART"), "0");
    EXPECT_TRUE(process.cores.empty());
  }
}

TEST(JobPlan, HostsGetEqualTaskCountsAndSeparatePorts) {
  JobRequest request;
  request.counts = {0, 5, 0};
  request.hosts = {"a", "b"};
  request.first_port = 7000;
  std::vector<std::string> addresses;
  for (const ProcessPlan& process : make_plan(request).processes) {
    addresses.push_back(process.task.address);
    EXPECT_EQ(process.task.address.substr(0, 1), process.host);
  }
  EXPECT_EQ(addresses,
            (std::vector<std::string>{"a:7000", "a:7001", "a:7002", "b:7000", "b:7001"}));
}

TEST(JobPlan, JobIdsAreUnique) {
  std::set<std::string> ids;
  for (int i = 0; i < 20; ++i) ids.insert(make_job_id());
  EXPECT_EQ(ids.size(), 20u);
}

TEST(ShellQuote, QuotesOnlyWordsWithSpecialCharacters) {
  EXPECT_EQ(shell_quote("--rate=0.1,x/y"), "--rate=0.1,x/y");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's $HOME"), R"('it'\''s $HOME')");
  EXPECT_EQ(shell_quote("~"), "'~'");
}

TEST(DryRun, PrintsOneCommandPerProcess) {
  JobPlan plan;
  plan.job_id = "j";
  plan.arguments = {"./train", "a b"};
  plan.processes.push_back({{"worker", 0, "h:1"}, "h", {{"TF_CONFIG", "{}"}}, {2, 3}});
  EXPECT_EQ(
      dry_run_text(plan),
      "# Job j, processes: 1. The next command creates the job's secret; copy the file to other "
      "machines with "
      "mode 0600.\n"
      "(umask 077; mkdir -p ~/.tutti; head -c 48 /dev/urandom | base64 > ~/.tutti/j.secret)\n"
      "# worker-0 on h\n"
      "TF_CONFIG='{}' TUTTI_JOB_SECRET_FILE=~/.tutti/j.secret taskset -c 2,3 ./train 'a b'\n");
}

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Appends `pieces` one by one to a LineBuffer, then calls finish(). Returns the lines, with "|"
/// where finish() was called.
std::vector<std::string> lines_of(const std::vector<std::string>& pieces) {
  LineBuffer buffer;
  std::vector<std::string> lines;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) buffer.append(piece, add);
  lines.emplace_back("|");
  buffer.finish(add);
  buffer.finish(add);
  return lines;
}

TEST(LineBuffer, SplitsAtNewlinesForAnyChunking) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of({"a\nb\n"}), (Lines{"a", "b", "|"}));
  EXPECT_EQ(lines_of({"a", "", "b\n", "\n", "c"}), (Lines{"ab", "", "|", "c"}));
  EXPECT_EQ(lines_of({"\n\n"}), (Lines{"", "", "|"}));
  EXPECT_EQ(lines_of({}), (Lines{"|"}));
}

TEST(LineBuffer, SplitsLongLines) {
  constexpr std::size_t kMax = LineBuffer::kMaxLine;
  for (const std::size_t step : {std::size_t{1000}, kMax, 3 * kMax}) {
    const std::string text(2 * kMax + 7, 'x');
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size(); at += step) pieces.push_back(text.substr(at, step));
    pieces.push_back("\nend");
    std::vector<std::size_t> sizes;
    for (const std::string& line : lines_of(pieces)) sizes.push_back(line.size());
    EXPECT_EQ(sizes, (std::vector<std::size_t>{kMax, kMax, 7, 1, 3})) << step;
  }
  EXPECT_EQ(lines_of({std::string(kMax, 'x') + "\n"}).size(), 2u);
}

TEST(ExitStatus, HasDescriptionAndShellExitCode) {
  EXPECT_EQ((ExitStatus{0, 0}.to_string()), "exited with code 0");
  EXPECT_EQ((ExitStatus{0, SIGKILL}.to_string()), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ((ExitStatus{0, SIGRTMIN + 3}.to_string()).substr(0, 16), "killed by signal");
  EXPECT_EQ((ExitStatus{3, 0}.shell_code()), 3);
  EXPECT_EQ((ExitStatus{0, SIGTERM}.shell_code()), 143);
  EXPECT_EQ(exit_status_of(W_EXITCODE(7, 0)), (ExitStatus{7, 0}));
  EXPECT_EQ(exit_status_of(W_EXITCODE(0, SIGSEGV)), (ExitStatus{0, SIGSEGV}));
}

TEST(RestartCount, RefusesRestartBeyondLimit) {
  RestartCount count(2);
  const ExitStatus failed{1, 0};
  EXPECT_EQ(count.refusal(failed, seconds(9)), std::nullopt);
  EXPECT_EQ(count.refusal(failed, seconds(9)), std::nullopt);
  EXPECT_EQ(count.refusal(failed, seconds(9)), "it was already restarted 2 times");
  EXPECT_EQ(count.restarts(), 2);
}

TEST(RestartCount, RefusesRestartAfterFiveImmediateFailuresInARow) {
  RestartCount count(100);
  for (const int lived : {5000, 1, 1, 1, 1, 5000, 1, 1, 1, 1}) {
    EXPECT_EQ(count.refusal(ExitStatus{1, 0}, milliseconds(lived)), std::nullopt);
  }
  EXPECT_EQ(count.refusal(ExitStatus{1, 0}, milliseconds(1)),
            "it failed within a second 5 times in a row");
}

TEST(RestartCount, ExternalKillsAreNotImmediateFailures) {
  RestartCount count(100);
  for (int kill = 0; kill < 20; ++kill) {
    const ExitStatus status{0, kill % 2 == 0 ? SIGKILL : SIGTERM};
    EXPECT_EQ(count.refusal(status, milliseconds(1)), std::nullopt);
  }
  for (int crash = 0; crash < 4; ++crash) {
    const ExitStatus status{0, crash % 2 == 0 ? SIGSEGV : SIGABRT};
    EXPECT_EQ(count.refusal(status, milliseconds(1)), std::nullopt);
  }
  EXPECT_EQ(count.refusal(ExitStatus{0, SIGKILL}, milliseconds(1)), std::nullopt);
  EXPECT_EQ(count.refusal(ExitStatus{1, 0}, milliseconds(1)),
            "it failed within a second 5 times in a row");
}

TEST(RestartCount, RefusesRestartAfterUsageError) {
  RestartCount count(5);
  EXPECT_EQ(count.refusal(ExitStatus{2, 0}, seconds(9)), "wrong usage would fail again");
  EXPECT_EQ(count.refusal(ExitStatus{0, 2}, seconds(9)), std::nullopt);
  RestartCount none(0);
  EXPECT_EQ(none.refusal(ExitStatus{1, 0}, seconds(9)), "");
}

JobOutcome outcome_of(StopReason reason, const std::vector<ExitStatus>& in_order_of_ends) {
  JobOutcome outcome;
  outcome.reason = reason;
  for (const ExitStatus& status : in_order_of_ends) {
    TaskOutcome& task = outcome.tasks.emplace_back();
    task.status = status;
    task.order = static_cast<int>(outcome.tasks.size()) - 1;
  }
  return outcome;
}

TEST(JobOutcome, ExitCodeIs75IfTaskStoppedOnRequestAndNoneFailed) {
  const ExitStatus done{0, 0}, stopped{75, 0}, failed{3, 0}, killed{0, SIGKILL};
  for (const StopReason reason : {StopReason::kSignal, StopReason::kTaskAsked}) {
    EXPECT_EQ(outcome_of(reason, {stopped, stopped}).exit_code(), 75);
    EXPECT_EQ(outcome_of(reason, {done, stopped}).exit_code(), 75);
    EXPECT_EQ(outcome_of(reason, {done, done}).exit_code(), 0);
    EXPECT_EQ(outcome_of(reason, {stopped, failed, killed}).exit_code(), 3);
    EXPECT_EQ(outcome_of(reason, {killed, stopped, failed}).exit_code(), 137);
  }
  // The launcher's stop signal may kill a task that is exiting and has already restored the default
  // signal handler.
  for (const ExitStatus& asked : {ExitStatus{0, SIGTERM}, ExitStatus{0, SIGINT}}) {
    JobOutcome outcome = outcome_of(StopReason::kTaskAsked, {stopped, asked, done});
    outcome.stop_signal = asked.signal;
    EXPECT_EQ(outcome.exit_code(), 75);
    TaskOutcome& last = outcome.tasks.emplace_back();
    last.status = failed;
    last.order = 3;
    EXPECT_EQ(outcome.exit_code(), 3);
    outcome.stop_signal = SIGHUP;  // so that it differs from the second task's signal
    EXPECT_EQ(outcome.exit_code(), 128 + asked.signal);
    outcome = outcome_of(StopReason::kSignal, {done, asked});  // no checkpoint was saved
    outcome.stop_signal = asked.signal;
    EXPECT_EQ(outcome.exit_code(), 128 + asked.signal);
  }
  EXPECT_EQ(outcome_of(StopReason::kTimeout, {killed}).exit_code(), 124);
  EXPECT_EQ(outcome_of(StopReason::kFinished, {done, killed}).exit_code(), 0);
  JobOutcome first_failed = outcome_of(StopReason::kFailure, {killed, failed});
  first_failed.first_failure = 1;
  EXPECT_EQ(first_failed.exit_code(), 3);
}

}  // namespace tutti::launch::launcher_parts_test
