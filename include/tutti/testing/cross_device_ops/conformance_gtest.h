// The conformance kit as GoogleTest tests. Link tutti::testing and GTest::gtest.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {

namespace internal {

/// Test that runs all cases of one combination of shape, check and collective.
class GroupTest : public ::testing::Test {
 public:
  GroupTest(std::string name, std::vector<Case> group)
      : name_(std::move(name)), group_(std::move(group)) {}

  void TestBody() override {
    const Report report = run_cases(group_, Subject(name_), {.max_failures = 1});
    ASSERT_EQ(report.count(Verdict::kFailed), 0u) << report.table("tutti conform " + name_);
    RecordProperty("skipped", static_cast<int>(report.count(Verdict::kSkipped)));
    if (!report.passed()) GTEST_SKIP() << report.results.front().message;
  }

 private:
  std::string name_;
  std::vector<Case> group_;
};

}  // namespace internal

/// Registers one test for each shape, check and collective of `plan`:
/// "Conformance_NAME.local_values_all_reduce". The operation's name is looked up when the test
/// runs, so that main() may register it later. Call before RUN_ALL_TESTS().
inline void register_gtests(const std::string& name, const Plan& plan = {}) {
  std::map<std::string, std::vector<Case>> groups;
  for (const Case& c : cases(plan)) {
    groups[concat(to_string(c.shape), "_", to_string(c.check), "_", tutti::to_string(c.collective))]
        .push_back(c);
  }
  for (const auto& [title, group] : groups) {
    const auto make = [name, group = group]() -> ::testing::Test* {
      return std::make_unique<internal::GroupTest>(name, group).release();
    };
    ::testing::RegisterTest(("Conformance_" + name).c_str(), title.c_str(), nullptr, nullptr,
                            __FILE__, __LINE__, make);
  }
}

}  // namespace tutti::conformance
