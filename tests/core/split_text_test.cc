// Lists between separators.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(SplitText, PartsStandBetweenSeparators) {
  using ::testing::ElementsAre;
  EXPECT_THAT(split_text(""), ElementsAre());
  EXPECT_THAT(split_text("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(split_text("a:1,b:2"), ElementsAre("a:1", "b:2"));
  EXPECT_THAT(split_text(",a,,b,"), ElementsAre("", "a", "", "b"));
  EXPECT_THAT(split_text("/bin:/usr/bin", ':'), ElementsAre("/bin", "/usr/bin"));
}

}  // namespace
}  // namespace tutti
