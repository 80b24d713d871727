// Tests how the launcher handles early exits, first failures and processes that the job has
// abandoned.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "tutti/core/error.h"

namespace tutti::launch::supervisor_test {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  JobOutcome outcome;
  std::string said;  // output of the launcher
};

Ended run_job(const JobPlan& plan, const SupervisorOptions& options) {
  ::testing::internal::CaptureStderr();
  Ended ended;
  {
    SignalQueue signals;
    const SecretFolder secret;
    Guard guard(secret.folder(), secret.file(), "TUTTI_JOB_ID=" + plan.job_id);
    ended.outcome = supervise(plan, options, signals, guard);
  }
  ended.said = ::testing::internal::GetCapturedStderr();
  return ended;
}

/// Runs one worker, which executes `script`. The job declares the worker lost as soon as the
/// worker has started.
Ended run_given_up(const std::string& script, bool is_ending, const std::string& why) {
  const JobPlan plan = make_plan({.arguments = {"/bin/sh", "-c", script}, .cores = {0}});
  SupervisorOptions options;
  bool is_told = false;
  options.find_given_up = [&]() -> std::vector<AbandonedProcess> {
    if (std::exchange(is_told, true)) return {};
    return {{"worker-0", 0, is_ending, why}};
  };
  return run_job(plan, options);
}

/// Runs two workers. Worker 1 fails first and causes worker 0's failure, but worker 0's process
/// ends first. The job knows the order of the failures.
Ended run_two_that_fail(const std::string& end_of_worker_1) {
  const std::string script = "case \"$TF_CONFIG\" in *'\"index\":1'*) " + end_of_worker_1 +
                             ";; esac; echo rank 1 has left; exit 1";
  SupervisorOptions options;
  options.find_failed = [] { return std::vector<TaskProcess>{{"worker-1", 0}, {"worker-0", 0}}; };
  return run_job(
      make_plan({.arguments = {"/bin/sh", "-c", script}, .counts = {.workers = 2}, .cores = {0}}),
      options);
}

std::string file_of_this_process(const std::string& name) {
  const std::string own = concat("supervisor_test-", ::getpid(), "-", name);
  return (std::filesystem::path(::testing::TempDir()) / own).string();
}

/// Runs two workers. Worker 1 exits with code 0, while worker 0 waits for a file that only worker
/// 1's second process would create. The job reports `joined` in worker 1's AwaitedTask.
Ended run_early_exit(std::optional<int> joined, int max_restarts) {
  const std::string file = file_of_this_process(concat("joined-", max_restarts));
  const std::string script =
      concat("case \"$TF_CONFIG\" in *\\\"index\\\":1*) [ $TUTTI_RESTART = 0 ] || touch ", file,
             "; exit 0;; esac; while [ ! -e ", file, " ]; do sleep 0.05; done");
  const JobPlan plan =
      make_plan({.arguments = {"/bin/sh", "-c", script}, .counts = {.workers = 2}, .cores = {0}});
  SupervisorOptions options{.max_restarts = max_restarts};
  options.find_given_up = [] { return std::vector<AbandonedProcess>(); };
  options.find_waited_for = [&]() -> std::vector<AwaitedTask> {
    if (std::filesystem::exists(file)) return {};
    return {{"worker-1", joined}};
  };
  Ended ended = run_job(plan, options);
  std::filesystem::remove(file);
  return ended;
}

TEST(Supervisor, SuccessfulExitBeforeJoiningFailsJob) {
  const Ended ended = run_early_exit(std::nullopt, 0);
  EXPECT_EQ(ended.outcome.first_failure, 1);
  EXPECT_EQ(ended.outcome.exit_code(), 1);
  EXPECT_THAT(ended.said,
              HasSubstr("tutti run: worker-1 failed first: exited with code 0 before it "
                        "joined, after "));
}

TEST(Supervisor, SuccessfulExitOfAwaitedMemberFailsJob) {
  const Ended ended = run_early_exit(0, 0);
  EXPECT_EQ(ended.outcome.first_failure, 1);
  EXPECT_THAT(ended.said,
              HasSubstr("worker-1 failed first: exited with code 0 before the other tasks "
                        "finished, after "));
}

TEST(Supervisor, SuccessfulExitBeforeJoiningCausesRestart) {
  const Ended ended = run_early_exit(std::nullopt, 1);
  EXPECT_EQ(ended.outcome.exit_code(), 0);
  EXPECT_EQ(ended.outcome.tasks[1].restarts, 1);
  EXPECT_THAT(ended.said, HasSubstr("worker-1: exited with code 0 before it joined, after "));
  EXPECT_THAT(ended.said, HasSubstr("restarting it (restart 1 of 1)"));
}

// Both workers fail once. After their restart, worker 1 finishes and worker 0 waits for it.
TEST(Supervisor, AwaitedMemberWithoutRemainingRestartsFailsJob) {
  const std::string file = file_of_this_process("waiting");
  const std::string script = concat(
      "[ $TUTTI_RESTART = 1 ] || exit 9; case \"$TF_CONFIG\" in *'\"index\":1'*) exit 0;; esac; ",
      "touch ", file, "; exec sleep 600");
  SupervisorOptions options{.max_restarts = 1};
  options.find_given_up = [] { return std::vector<AbandonedProcess>(); };
  options.find_waited_for = [&]() -> std::vector<AwaitedTask> {
    if (!std::filesystem::exists(file)) return {};
    return {{"worker-1", 1}};
  };
  const Ended ended = run_job(
      make_plan({.arguments = {"/bin/sh", "-c", script}, .counts = {.workers = 2}, .cores = {0}}),
      options);
  std::filesystem::remove(file);
  EXPECT_EQ(ended.outcome.first_failure, 0);
  EXPECT_EQ(ended.outcome.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(ended.said,
              HasSubstr("worker-1 has finished and cannot repeat the last steps with it: it was "
                        "already restarted once"));
}

TEST(Supervisor, LogsOnlyExitStatusOfDeadProcess) {
  const Ended ended = run_given_up("sleep 0.2; exit 7", true, "worker 0 died: it is gone");
  EXPECT_EQ(ended.outcome.exit_code(), 7);
  EXPECT_THAT(ended.said, HasSubstr("tutti run: worker-0 failed first: exited with code 7 after"));
  EXPECT_THAT(ended.said, Not(HasSubstr("worker 0 died")));
}

TEST(Supervisor, KillsRunningProcessThatIsReportedDead) {
  const Ended ended = run_given_up("exec sleep 600", true, "worker 0 died: it lost its connection");
  EXPECT_EQ(ended.outcome.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(ended.said, HasSubstr("tutti run: worker-0 was killed because the job gave up on it: "
                                    "worker 0 died: it lost its connection"));
}

TEST(Supervisor, ReportsSuccessfulExitThatCausedAnotherFailure) {
  const Ended ended = run_two_that_fail("exit 0");
  EXPECT_EQ(ended.outcome.first_failure, 1);
  EXPECT_EQ(ended.outcome.exit_code(), 1);
  EXPECT_THAT(ended.said,
              HasSubstr("worker-1 failed first: exited with code 0 before the other tasks "
                        "finished, after "));
}

TEST(Supervisor, ReportsFirstFailureEvenIfItsProcessExitsLater) {
  const Ended ended = run_two_that_fail("sleep 0.3; echo my own bug; exit 3");
  EXPECT_EQ(ended.outcome.first_failure, 1);
  EXPECT_EQ(ended.outcome.exit_code(), 3);
  EXPECT_THAT(ended.said, HasSubstr("tutti run: worker-1 failed first: exited with code 3 after"));
  EXPECT_THAT(ended.said, HasSubstr("    [worker-1]: my own bug"));
}

TEST(Supervisor, ReportsFirstExitIfFirstFailedProcessNeverExits) {
  const Ended ended = run_two_that_fail("exec sleep 600");
  EXPECT_EQ(ended.outcome.first_failure, 0);
  EXPECT_EQ(ended.outcome.exit_code(), 1);
}

TEST(Supervisor, KillsSuspendedProcess) {
  const Ended ended = run_given_up("kill -STOP $$", false, "worker 0 is stopped");
  EXPECT_EQ(ended.outcome.tasks[0].status, (ExitStatus{0, SIGKILL}));
  EXPECT_THAT(ended.said, HasSubstr("because the job gave up on it: worker 0 is stopped"));
}

}  // namespace tutti::launch::supervisor_test
