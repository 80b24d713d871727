// Errors, text and the invariant check.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

struct Spoken {
  std::string to_string() const { return "spoken"; }
};

TEST(Text, ConcatUsesStreamsAndToString) {
  EXPECT_EQ(concat("a", 1, ' ', 2.5, Spoken{}), "a1 2.5spoken");
  EXPECT_EQ(concat(), "");
}

TEST(Text, JoinSeparates) {
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}), "1, 2, 3");
  EXPECT_EQ(join(std::vector<int>{7}, "-"), "7");
  EXPECT_EQ(join(std::vector<int>{}), "");
}

TEST(ErrorTest, FailCarriesCodeAndMessage) {
  try {
    fail(ErrorCode::kNotFound, "reader: no file ", 3);
    FAIL() << "fail() returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_STREQ(error.what(), "reader: no file 3");
  }
}

TEST(ErrorTest, ContextGoesInFrontAndKeepsTheCode) {
  const Error error = Error(ErrorCode::kAborted, "peer died").with_context("replica 1");
  EXPECT_EQ(error.code(), ErrorCode::kAborted);
  EXPECT_EQ(error.message(), "replica 1: peer died");
}

TEST(ErrorTest, EveryCodeHasItsGrpcName) {
  const std::pair<int, std::string_view> grpc[] = {{0, "OK"},
                                                   {1, "CANCELLED"},
                                                   {3, "INVALID_ARGUMENT"},
                                                   {4, "DEADLINE_EXCEEDED"},
                                                   {5, "NOT_FOUND"},
                                                   {6, "ALREADY_EXISTS"},
                                                   {8, "RESOURCE_EXHAUSTED"},
                                                   {9, "FAILED_PRECONDITION"},
                                                   {10, "ABORTED"},
                                                   {11, "OUT_OF_RANGE"},
                                                   {12, "UNIMPLEMENTED"},
                                                   {13, "INTERNAL"},
                                                   {14, "UNAVAILABLE"},
                                                   {15, "DATA_LOSS"}};
  for (const auto& [code, name] : grpc) EXPECT_EQ(to_string(static_cast<ErrorCode>(code)), name);
}

TEST(ErrorTest, BrokenInvariantNamesFileConditionAndValues) {
  try {
    TUTTI_CHECK(1 + 1 == 3, "got ", 2);
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(error.message().find("error_test.cc:"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("1 + 1 == 3; got 2"), std::string::npos) << error.message();
  }
  TUTTI_CHECK(1 + 1 == 2);
}

}  // namespace
}  // namespace tutti
