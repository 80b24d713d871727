// The conformance kit as GoogleTest tests. Link tutti::testing and GTest::gtest.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {

namespace internal {

/// The cases of one shape, check and collective.
class GroupTest : public ::testing::Test {
 public:
  GroupTest(std::string name, std::vector<Case> group)
      : name_(std::move(name)), group_(std::move(group)) {}

  void TestBody() override {
    Subject subject(name_);
    std::string reason;
    std::size_t num_skipped = 0;
    for (const Case& c : group_) {
      const Result result = run(c, subject);
      if (result.verdict == Verdict::kSkipped) {
        ++num_skipped;
        reason = result.message;
      }
      ASSERT_NE(result.verdict, Verdict::kFailed) << result.message << "\n  case " << c.id();
    }
    RecordProperty("skipped", static_cast<int>(num_skipped));
    if (num_skipped == group_.size()) GTEST_SKIP() << reason;
  }

 private:
  std::string name_;
  std::vector<Case> group_;
};

}  // namespace internal

/// Registers one test for each shape, check and collective of `plan`, for the operation of that
/// name: "Conformance_NAME.local_values_all_reduce". The name is looked up when the test runs, so
/// it may be registered by main() later. Call before RUN_ALL_TESTS().
inline void register_gtests(const std::string& name, const Plan& plan = {}) {
  std::vector<std::pair<std::string, std::vector<Case>>> groups;
  for (const Case& c : cases(plan)) {
    const std::string title =
        concat(to_string(c.shape), "_", to_string(c.check), "_", tutti::to_string(c.collective));
    auto group = groups.begin();
    while (group != groups.end() && group->first != title) ++group;
    if (group == groups.end()) group = groups.insert(group, {title, {}});
    group->second.push_back(c);
  }
  for (const auto& [title, group] : groups) {
    ::testing::RegisterTest(("Conformance_" + name).c_str(), title.c_str(), nullptr, nullptr,
                            __FILE__, __LINE__, [name, group = group]() -> ::testing::Test* {
                              return std::make_unique<internal::GroupTest>(name, group).release();
                            });
  }
}

}  // namespace tutti::conformance
