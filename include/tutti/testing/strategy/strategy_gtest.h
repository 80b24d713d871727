// The strategy suite as GoogleTest tests. Link tutti::testing and GTest::gtest.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tutti/testing/strategy/suite.h"

namespace tutti::conformance {

namespace internal {

class StrategyTest : public ::testing::Test {
 public:
  StrategyTest(StrategySubject subject, std::string check)
      : subject_(std::move(subject)), check_(std::move(check)) {}
  void TestBody() override { EXPECT_EQ(run_strategy_check(subject_, check_), ""); }

 private:
  StrategySubject subject_;
  std::string check_;
};

}  // namespace internal

/// Registers one test per check: "Strategy_NAME.on_write_variables". Call before RUN_ALL_TESTS().
inline void register_strategy_gtests(const StrategySubject& subject) {
  for (const std::string& check : strategy_checks()) {
    const auto make = [subject, check]() -> ::testing::Test* {
      return std::make_unique<internal::StrategyTest>(subject, check).release();
    };
    ::testing::RegisterTest(("Strategy_" + subject.name).c_str(), check.c_str(), nullptr, nullptr,
                            __FILE__, __LINE__, make);
  }
}

}  // namespace tutti::conformance
