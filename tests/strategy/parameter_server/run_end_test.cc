// When a worker or server of a coordinator's job has nothing to do any more, and with which code.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/run_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

using ::testing::HasSubstr;

Member run_member(const std::string& job, int index, std::uint64_t incarnation = 0) {
  return {{job, index, ""}, incarnation, "", 100 + index, true};
}

class RunVerdictsTest : public ::testing::Test {
 protected:
  void hear(VerdictKind kind, const Member& who) {
    const bool is_fatal =
        kind == VerdictKind::kDead || kind == VerdictKind::kStopped || kind == VerdictKind::kFailed;
    verdicts_.take({++last_, kind, who, is_fatal, ErrorCode::kUnavailable,
                    concat(who.task.to_string(), ": ", to_string(kind))});
  }
  void expect_end(const std::string& text) {
    ASSERT_TRUE(verdicts_.end().has_value());
    EXPECT_EQ(verdicts_.end()->code, 1);
    EXPECT_THAT(verdicts_.end()->text, HasSubstr(text));
  }

  const Member chief_ = run_member("chief", 0), self_ = run_member("worker", 1, 2);
  RunVerdicts verdicts_{self_};
  std::uint64_t last_ = 0;
};

TEST_F(RunVerdictsTest, AChiefThatLeavesEndsTheRunWell) {
  hear(VerdictKind::kJoined, chief_);
  hear(VerdictKind::kJoined, self_);
  EXPECT_TRUE(verdicts_.chief_is_here());
  EXPECT_FALSE(verdicts_.end().has_value());
  hear(VerdictKind::kLeft, chief_);
  EXPECT_EQ(verdicts_.end(), (RunEnd{0, ""}));
  hear(VerdictKind::kDead, chief_);  // the first end counts
  EXPECT_EQ(verdicts_.end(), (RunEnd{0, ""}));
}

TEST_F(RunVerdictsTest, AChiefThatIsLostOrFailsEndsItWithAName) {
  for (const VerdictKind kind : {VerdictKind::kDead, VerdictKind::kStopped, VerdictKind::kFailed}) {
    verdicts_ = RunVerdicts(self_);
    hear(VerdictKind::kJoined, self_);
    hear(VerdictKind::kJoined, chief_);
    hear(kind, chief_);
    expect_end(concat("the coordinator is lost: chief 0: ", to_string(kind)));
  }
}

TEST_F(RunVerdictsTest, WhatWasBeforeThisProcessEndsNothing) {
  hear(VerdictKind::kJoined, chief_);
  hear(VerdictKind::kJoined, run_member("worker", 1, 1));
  hear(VerdictKind::kDead, run_member("worker", 1, 1));
  hear(VerdictKind::kDead, chief_);
  hear(VerdictKind::kJoined, self_);
  EXPECT_FALSE(verdicts_.end().has_value());
  EXPECT_FALSE(verdicts_.chief_is_here());  // another one is waited for
  hear(VerdictKind::kJoined, run_member("chief", 0, 1));
  EXPECT_TRUE(verdicts_.chief_is_here());
  hear(VerdictKind::kLeft, run_member("chief", 0, 1));
  EXPECT_EQ(verdicts_.end(), (RunEnd{0, ""}));
}

TEST_F(RunVerdictsTest, OthersMayComeAndGo) {
  hear(VerdictKind::kJoined, self_);
  hear(VerdictKind::kJoined, chief_);
  hear(VerdictKind::kDead, run_member("worker", 0));
  hear(VerdictKind::kFailed, run_member("ps", 0));
  hear(VerdictKind::kLeft, run_member("worker", 2));
  hear(VerdictKind::kStuck, chief_);
  EXPECT_FALSE(verdicts_.end().has_value());
}

TEST_F(RunVerdictsTest, AProcessThatWasGivenUpEnds) {
  hear(VerdictKind::kJoined, self_);
  hear(VerdictKind::kStopped, self_);
  expect_end("the job gave this process up: worker 1");
}

TEST_F(RunVerdictsTest, NobodyWatchesWithoutControlServer) {
  hear(VerdictKind::kJoined, self_);
  verdicts_.take({0, VerdictKind::kDead, run_member("launcher", 0), true, ErrorCode::kUnavailable,
                  "launcher 0, which hosts the control server, died"});
  expect_end("launcher 0, which hosts the control server, died");
}

}  // namespace
}  // namespace tutti::internal
