// The line of the caller as a default argument.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/source_location.h"

#include <gtest/gtest.h>

#include <string>

namespace tutti {
namespace {

SourceLocation line_of_caller(SourceLocation where = SourceLocation::current()) { return where; }

struct LocatedNumber {
  LocatedNumber(int, SourceLocation location = SourceLocation::current()) : where(location) {}
  SourceLocation where;
};

SourceLocation line_of_conversion(const LocatedNumber& number) { return number.where; }

TEST(SourceLocationTest, IsTheLineOfTheCaller) {
  const SourceLocation here = line_of_caller();
  EXPECT_EQ(here.line(), __LINE__ - 1);
  EXPECT_TRUE(std::string(here.file_name()).ends_with("source_location_test.cc"));
  EXPECT_STREQ(here.function_name(), "TestBody");
}

TEST(SourceLocationTest, AnImplicitConversionKnowsItsLineToo) {
  EXPECT_EQ(line_of_conversion(3).line(), __LINE__);
}

}  // namespace
}  // namespace tutti
