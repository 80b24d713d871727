// What the launcher does with processes that the job goes on without.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace tutti::launch {
namespace supervisor_test {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  JobOutcome outcome;
  std::string said;  // by the launcher
};

/// One worker that runs `script`, and is given up as soon as it has started.
Ended run_given_up(const std::string& script, bool is_ending, const std::string& why) {
  JobPlan plan = make_plan({.arguments = {"/bin/sh", "-c", script}, .cores = {0}});
  SupervisorOptions options;
  bool is_told = false;
  options.find_given_up = [&]() -> std::vector<GivenUp> {
    if (std::exchange(is_told, true)) return {};
    return {{"worker-0", 0, is_ending, why}};
  };
  ::testing::internal::CaptureStderr();
  Ended ended;
  {
    SignalQueue signals;
    const SecretFolder secret;
    Guard guard(secret.folder(), secret.file(), "TUTTI_JOB_ID=" + plan.job_id);
    RunReporter reporter(plan, {});
    Supervisor supervisor(plan, options, signals, guard, reporter);
    ended.outcome = supervisor.run();
    reporter.summarize(ended.outcome);
  }
  ended.said = ::testing::internal::GetCapturedStderr();
  return ended;
}

TEST(Supervisor, SaysOfAProcessThatDiesByItselfOnlyHow) {
  const Ended ended = run_given_up("sleep 0.2; exit 7", true, "worker 0 died: it is gone");
  EXPECT_EQ(ended.outcome.exit_code(), 7);
  EXPECT_THAT(ended.said, HasSubstr("tutti run: worker-0 failed first: exited with code 7 after"));
  EXPECT_THAT(ended.said, Not(HasSubstr("worker 0 died")));
}

TEST(Supervisor, KillsAProcessThatTheJobTakesForDeadAndThatStays) {
  const Ended ended = run_given_up("exec sleep 600", true, "worker 0 died: it lost its connection");
  EXPECT_EQ(ended.outcome.exit_code(), 128 + SIGKILL);
  EXPECT_THAT(ended.said, HasSubstr("tutti run: worker-0 is killed, for the job has given it up: "
                                    "worker 0 died: it lost its connection"));
}

TEST(Supervisor, KillsAStoppedProcess) {
  const Ended ended = run_given_up("kill -STOP $$", false, "worker 0 is stopped");
  EXPECT_EQ(ended.outcome.tasks[0].status, (ExitStatus{0, SIGKILL}));
  EXPECT_THAT(ended.said, HasSubstr("for the job has given it up: worker 0 is stopped"));
}

}  // namespace supervisor_test
}  // namespace tutti::launch
