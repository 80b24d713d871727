// Tests errors, text helpers, the invariant check, and source lines in messages.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/call_site.h"
#include "tutti/core/executor.h"
#include "tutti/core/source_location.h"

namespace tutti::error_test {

struct Spoken {
  std::string to_string() const { return "spoken"; }
};

TEST(Text, ConcatUsesStreamsAndToStringAndJoinSeparates) {
  EXPECT_EQ(concat("a", 1, ' ', 2.5, Spoken{}), "a1 2.5spoken");
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}), "1, 2, 3");
  EXPECT_EQ(join(std::vector<int>{7}, "-"), "7");
  EXPECT_EQ(join(std::vector<int>{}), "");
}

TEST(ErrorTest, FailCarriesCodeAndMessageWithTheContextInFront) {
  try {
    fail(ErrorCode::kNotFound, "reader: no file ", 3);
    FAIL() << "fail() returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_STREQ(error.what(), "reader: no file 3");
  }
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

TEST(CallSite, TheInnermostLineCountsOnItsThreadWhileItLives) {
  EXPECT_EQ(CallSite::current().line(), 0u);
  const SourceLocation outer = SourceLocation::current("train.cc", 7);
  {
    const CallSite first(outer);
    {
      const CallSite second(SourceLocation::current("step.cc", 9));
      const CallSite without(SourceLocation{});
      EXPECT_EQ(CallSite::current().line(), 9u);
      EXPECT_STREQ(CallSite::current().file_name(), "step.cc");
    }
    EXPECT_EQ(CallSite::current().line(), 7u);
    std::uint_least32_t elsewhere = 1;
    Executor::system().start("elsewhere", [&] { elsewhere = CallSite::current().line(); })->join();
    EXPECT_EQ(elsewhere, 0u);
  }
  EXPECT_EQ(CallSite::current().line(), 0u);
}

SourceLocation line_of_caller(SourceLocation where = SourceLocation::current()) { return where; }

struct LocatedNumber {
  LocatedNumber(int, SourceLocation location = SourceLocation::current()) : where(location) {}
  SourceLocation where;
};

SourceLocation line_of_conversion(const LocatedNumber& number) { return number.where; }

TEST(SourceLocationTest, IsTheLineOfTheCallerAlsoByConversion) {
  const SourceLocation here = line_of_caller();
  EXPECT_EQ(here.line(), __LINE__ - 1);
  EXPECT_TRUE(std::string(here.file_name()).ends_with("error_test.cc"));
  EXPECT_STREQ(here.function_name(), "TestBody");
  EXPECT_EQ(line_of_conversion(3).line(), __LINE__);
}

}  // namespace tutti::error_test
