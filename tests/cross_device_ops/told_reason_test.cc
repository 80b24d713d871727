// The code of an error that another rank told as text.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/collective_header.h"

#include <gtest/gtest.h>

namespace tutti::internal {
namespace {

TEST(ToldReason, AMismatchIsTheCallersMistakeOnEveryRank) {
  const std::string text = "collective mismatch (count): rank 0 calls a; rank 3 calls b";
  for (const ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kAborted}) {
    const Error error = as_it_was(Error(code, "rank 2 ended the call: " + text));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), text);
  }
}

TEST(ToldReason, WhoDidNotComeInTimeIsADeadlineOnEveryRank) {
  const std::string text = "rank 0: barrier: expected all 2 ranks before the deadline; rank 1 did";
  EXPECT_EQ(as_it_was(Error(ErrorCode::kAborted, text)).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(as_it_was(Error(ErrorCode::kAborted, text)).message(), text);
}

TEST(ToldReason, OthersStayWhatTheyAre) {
  const Error aborted(ErrorCode::kAborted, "the user gave up"),
      lost(ErrorCode::kUnavailable, "gone");
  EXPECT_EQ(as_it_was(aborted).code(), ErrorCode::kAborted);
  EXPECT_EQ(as_it_was(lost).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(as_it_was(lost).message(), "gone");
}

}  // namespace
}  // namespace tutti::internal
