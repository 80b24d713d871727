// Tests when and how a task of a parameter-server run ends, and its exit code.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/job_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/process_probe.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Member run_member(const std::string& job, int index, std::uint64_t incarnation = 0) {
  return {{job, index, ""}, incarnation, "", 100 + index, true};
}

/// Returns true if a verdict of this kind makes the control server end calls, in a job that treats
/// kStuck only as a warning.
bool ends_calls_of_run(VerdictKind kind) {
  return kind == VerdictKind::kDead || kind == VerdictKind::kStopped ||
         kind == VerdictKind::kFailed || kind == VerdictKind::kDisconnected;
}

class RunVerdictsTest : public ::testing::Test {
 protected:
  void begin(const Member& self, const RunRules& rules = {}) {
    verdicts_.emplace(self, rules);
    last_ = 0;
  }
  void hear(VerdictKind kind, const Member& who) {
    verdicts_->take({++last_, kind, who, ends_calls_of_run(kind), ErrorCode::kUnavailable,
                     concat(who.task.to_string(), ": ", to_string(kind))});
  }
  /// Returns the exit code and the message with which the run ended, or "continues".
  std::string end() const {
    return verdicts_->end() ? concat(verdicts_->end()->code, " ", verdicts_->end()->text)
                            : "continues";
  }

  std::optional<RunVerdicts> verdicts_;
  std::uint64_t last_ = 0;
};

/// Worker 1's view of a job with a coordinator.
class RunWithCoordinator : public RunVerdictsTest {
 protected:
  RunWithCoordinator() { begin(self_); }
  const Member chief_ = run_member("chief", 0), self_ = run_member("worker", 1, 2);
};

TEST_F(RunWithCoordinator, ChiefExitEndsRunSuccessfully) {
  hear(VerdictKind::kJoined, chief_);
  hear(VerdictKind::kJoined, self_);
  EXPECT_TRUE(verdicts_->has_work());
  EXPECT_EQ(end(), "continues");
  hear(VerdictKind::kLeft, chief_);
  EXPECT_EQ(end(), "0 ");
  hear(VerdictKind::kDead, chief_);  // does not change how the run ended
  EXPECT_EQ(end(), "0 ");
}

TEST_F(RunWithCoordinator, LostOrFailedChiefIsNamedInError) {
  for (const VerdictKind kind : {VerdictKind::kDead, VerdictKind::kStopped, VerdictKind::kFailed}) {
    begin(self_);
    hear(VerdictKind::kJoined, self_);
    hear(VerdictKind::kJoined, chief_);
    hear(kind, chief_);
    EXPECT_EQ(end(), concat("1 the coordinator is lost: chief 0: ", to_string(kind)));
  }
}

TEST_F(RunWithCoordinator, TaskLossesBeforeOwnJoinDoNotEndRun) {
  hear(VerdictKind::kJoined, chief_);
  hear(VerdictKind::kJoined, run_member("worker", 1, 1));
  hear(VerdictKind::kDead, run_member("worker", 1, 1));
  hear(VerdictKind::kDead, chief_);
  hear(VerdictKind::kJoined, self_);
  EXPECT_EQ(end(), "continues");
  EXPECT_FALSE(verdicts_->has_work());  // the run is waiting for a new chief
  hear(VerdictKind::kJoined, run_member("chief", 0, 1));
  EXPECT_TRUE(verdicts_->has_work());
  hear(VerdictKind::kLeft, run_member("chief", 0, 1));
  EXPECT_EQ(end(), "0 ");
}

TEST_F(RunWithCoordinator, WorkersAndServersMayJoinAndLeave) {
  hear(VerdictKind::kJoined, self_);
  hear(VerdictKind::kJoined, chief_);
  hear(VerdictKind::kDead, run_member("worker", 0));
  hear(VerdictKind::kFailed, run_member("ps", 0));
  hear(VerdictKind::kLeft, run_member("worker", 2));
  hear(VerdictKind::kStuck, chief_);
  EXPECT_EQ(end(), "continues");
}

TEST_F(RunWithCoordinator, BrokenConnectionsDoNotEndRun) {
  hear(VerdictKind::kJoined, self_);
  hear(VerdictKind::kJoined, chief_);
  hear(VerdictKind::kDisconnected, chief_);
  hear(VerdictKind::kDisconnected, self_);
  EXPECT_EQ(end(), "continues");
  EXPECT_TRUE(verdicts_->has_work());
}

TEST_F(RunWithCoordinator, ProcessExitsWhenJobGivesUpOnIt) {
  hear(VerdictKind::kJoined, self_);
  hear(VerdictKind::kStopped, self_);
  EXPECT_THAT(end(),
              AllOf(StartsWith("1 "), HasSubstr("the job declared this process lost: worker 1")));
}

TEST_F(RunWithCoordinator, LossOfControlServerEndsRun) {
  hear(VerdictKind::kJoined, self_);
  verdicts_->take({0, VerdictKind::kDead, run_member("launcher", 0), true, ErrorCode::kUnavailable,
                   "launcher 0, which hosts the control server, died"});
  EXPECT_THAT(end(), AllOf(StartsWith("1 "),
                           HasSubstr("launcher 0, which hosts the control server, died")));
}

/// Job without a coordinator: two workers and two servers, seen from one of these tasks.
class RunWithoutCoordinator : public RunVerdictsTest {
 protected:
  void begin(const Member& self, int workers_needed, bool workers_come_back = true) {
    RunVerdictsTest::begin(self, RunRules{false, 2, workers_needed, workers_come_back});
    for (const Member& each : {w0_, w1_, ps0_, ps1_}) hear(VerdictKind::kJoined, each);
  }

  const Member w0_ = run_member("worker", 0), w1_ = run_member("worker", 1);
  const Member ps0_ = run_member("ps", 0), ps1_ = run_member("ps", 1);
};

TEST_F(RunWithoutCoordinator, LostServerIsReportedOnEveryTask) {
  for (const VerdictKind kind : {VerdictKind::kDead, VerdictKind::kStopped, VerdictKind::kFailed}) {
    for (const Member& self : {w0_, w1_, ps0_}) {
      begin(self, 0);
      hear(kind, ps1_);
      EXPECT_EQ(end(), concat("1 ps 1: ", to_string(kind)));
    }
  }
}

TEST_F(RunWithoutCoordinator, DisconnectedTasksDoNotCountAsLost) {
  for (const Member& self : {w0_, w1_, ps0_}) {
    begin(self, 2);
    for (const Member& who : {w1_, w0_, ps1_}) hear(VerdictKind::kDisconnected, who);
    EXPECT_EQ(end(), "continues");
    EXPECT_TRUE(verdicts_->has_work());
    EXPECT_THAT(verdicts_->awaited_servers(), ::testing::IsEmpty());
  }
}

// Servers rely on these reports to drop the unfinished work of a lost worker.
TEST(JobWatch, ReportsLostTasksButNotDisconnections) {
  JobWatch watch({"ps", 0}, {}, RunRules{false, 2, 2, true});
  std::vector<std::string> told;
  const auto subscription = watch.when_lost(
      {"worker", 1}, [&](std::uint64_t, const Error& error) { told.push_back(error.message()); });
  const Member self{{"ps", 0, ""}, 0, "", this_process().pid, true};
  std::uint64_t number = 0;
  const auto hear = [&](VerdictKind kind, const Member& who) {
    (void)watch.evaluate({++number, kind, who, ends_calls_of_run(kind), ErrorCode::kUnavailable,
                          std::string(to_string(kind))});
  };
  hear(VerdictKind::kJoined, run_member("worker", 1));
  hear(VerdictKind::kJoined, self);
  hear(VerdictKind::kDisconnected, run_member("worker", 1));
  EXPECT_THAT(told, ::testing::IsEmpty());
  hear(VerdictKind::kDead, run_member("worker", 1));
  EXPECT_THAT(told, ::testing::ElementsAre("dead"));
}

TEST_F(RunWithoutCoordinator, LostWorkerEndsRunWhenTooFewRemain) {
  for (const int needed : {0, 1, 2}) {
    for (const Member& self : {w0_, ps0_}) {
      begin(self, needed);
      hear(VerdictKind::kDead, w1_);
      EXPECT_EQ(end(), needed == 2 ? "1 worker 1: dead" : "continues") << needed;
    }
  }
  // A restarted worker counts as present.
  begin(ps0_, 1);
  hear(VerdictKind::kDead, w1_);
  hear(VerdictKind::kJoined, run_member("worker", 1, 1));
  hear(VerdictKind::kDead, w0_);
  EXPECT_EQ(end(), "continues");
  hear(VerdictKind::kStopped, run_member("worker", 1, 1));
  EXPECT_EQ(end(), "1 worker 1: stopped");
}

TEST_F(RunWithoutCoordinator, ServersSucceedAfterWorkersLeave) {
  begin(ps0_, 0);
  hear(VerdictKind::kLeft, w0_);
  EXPECT_EQ(end(), "continues");
  EXPECT_TRUE(verdicts_->has_work());
  hear(VerdictKind::kDead, w1_);
  EXPECT_EQ(end(), "continues");  // worker 1 will be restarted
  EXPECT_FALSE(verdicts_->has_work());
  hear(VerdictKind::kJoined, run_member("worker", 1, 1));
  hear(VerdictKind::kLeft, run_member("worker", 1, 1));
  EXPECT_EQ(end(), "0 ");
}

TEST_F(RunWithoutCoordinator, LostWorkersWithoutRestartAreNotAwaited) {
  begin(ps0_, 0, false);
  hear(VerdictKind::kDead, w1_);
  EXPECT_EQ(end(), "continues");
  hear(VerdictKind::kLeft, w0_);
  EXPECT_EQ(end(), "0 ");
  begin(ps0_, 0, false);
  hear(VerdictKind::kDead, w1_);
  hear(VerdictKind::kStopped, w0_);
  EXPECT_EQ(end(), "1 every worker is lost");
}

/// Server ps 1 is lost and restarted; the remaining tasks end later, at different times.
TEST_F(RunWithoutCoordinator, LateExitsDoNotEndNextRun) {
  const Member new_ps1 = run_member("ps", 1, 1), new_ps0 = run_member("ps", 0, 1);
  begin(new_ps1, 2);
  hear(VerdictKind::kDead, ps1_);
  EXPECT_THAT(verdicts_->awaited_servers(), ::testing::ElementsAre("ps 0", "ps 1"));
  hear(VerdictKind::kJoined, new_ps1);
  hear(VerdictKind::kFailed, w0_);
  hear(VerdictKind::kDead, w1_);
  EXPECT_THAT(verdicts_->awaited_servers(), ::testing::ElementsAre("ps 0"));
  hear(VerdictKind::kLeft, ps0_);
  EXPECT_EQ(end(), "continues");
  for (const Member& each : {run_member("worker", 0, 1), run_member("worker", 1, 1), new_ps0}) {
    hear(VerdictKind::kJoined, each);
  }
  EXPECT_THAT(verdicts_->awaited_servers(), ::testing::IsEmpty());
  EXPECT_EQ(end(), "continues");
  hear(VerdictKind::kDead, new_ps0);  // new_ps0 belongs to the new run
  EXPECT_EQ(end(), "1 ps 0: dead");
}

}  // namespace
}  // namespace tutti::internal
