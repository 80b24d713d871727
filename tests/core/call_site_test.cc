// The line of the program that messages from far below name.
// SPDX-License-Identifier: Apache-2.0
#include "core/call_site.h"

#include <gtest/gtest.h>

#include "tutti/core/executor.h"

namespace tutti {
namespace {

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

}  // namespace
}  // namespace tutti
