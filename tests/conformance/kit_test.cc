// Tests components of the conformance kit: case ids, plans, reports, result bounds.
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <set>
#include <tuple>

#include "gtest/gtest.h"
#include "testing/cross_device_ops/problem.h"
#include "tests/support/thrown.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance::kit_test {

TEST(ConformanceCase, RoundTripsThroughId) {
  std::set<std::string> ids;
  const std::vector<Case> all = cases({.seed = 7, .max_count = 130});
  for (const Case& c : all) ids.insert(c.id());
  EXPECT_EQ(ids.size(), all.size());
  EXPECT_GT(all.size(), 50000u);
  for (std::size_t i = 0; i < all.size(); i += all.size() / 10) {
    EXPECT_EQ(Case::parse(all[i].id()), all[i]) << all[i].id();
  }
  EXPECT_INVALID(Case::parse("local/what"), "no case 'local/what'");
}

TEST(ConformancePlan, CoversEveryCollectiveDTypeWorldSizeAndCheck) {
  std::set<std::tuple<Collective, DType>> types;
  std::set<int> worlds;
  std::set<Check> checks;
  std::set<std::size_t> counts;
  for (const Case& c : cases(Plan{})) {
    types.emplace(c.collective, c.dtype);
    worlds.insert(c.world);
    checks.insert(c.check);
    counts.insert(c.count);
  }
  EXPECT_EQ(types.size(), 6u * std::size(kAllDTypes) + 1);  // + 1 for the barrier
  EXPECT_EQ(worlds, (std::set<int>{1, 2, 3, 5, 7, 8, 16}));
  EXPECT_EQ(checks.size(), 10u);
  EXPECT_TRUE(counts.contains(0) && counts.contains(1) && counts.contains((1 << 20) + 1));
}

TEST(ConformancePlan, SampleDependsOnSeedAndCoversEachGroup) {
  const Plan plan{.shapes = {GroupShape::kLocal}, .seed = 5, .sample = 1000};
  const std::vector<Case> sample = cases(plan);
  EXPECT_EQ(sample, cases(plan));
  EXPECT_EQ(sample.size(), 1000u);
  Plan other = plan;
  other.seed = 6;
  std::vector<Case> same_seed = cases(other);
  for (Case& c : same_seed) c.seed = 5;
  EXPECT_NE(sample, same_seed);
  std::set<std::tuple<Check, Collective, ReduceOp, DType>> all, taken;
  for (const Case& c : cases(Plan{.shapes = {GroupShape::kLocal}})) {
    all.emplace(c.check, c.collective, c.op, c.dtype);
  }
  for (const Case& c : sample) taken.emplace(c.check, c.collective, c.op, c.dtype);
  EXPECT_EQ(taken, all);
}

/// Simulates a call that only three of four ranks make. The second rank starts `delay` later
/// than the other two; all three calls end at `end`, measured from the first start. Returns the
/// kit's verdict.
std::string verdict_on_deadline(Duration delay, const std::string& message,
                                Duration end = std::chrono::milliseconds(150)) {
  const TimePoint begin(Duration(1));
  std::vector<Outcome> callers(3,
                               {Error(ErrorCode::kDeadlineExceeded, message), begin, begin + end});
  callers[1].begin += delay;
  return wrong_deadline(callers, std::chrono::milliseconds(150));
}

TEST(ConformanceDeadline, IsMeasuredFromFirstCall) {
  using namespace std::chrono_literals;
  EXPECT_EQ(verdict_on_deadline(0ms, "rank 3 is missing"), "");
  // the second rank waited only 24 ms
  EXPECT_EQ(verdict_on_deadline(126ms, "rank 3 is missing"), "");
  // the second rank was missing for 126 ms
  EXPECT_EQ(verdict_on_deadline(126ms, "rank 1 is missing"), "");
  EXPECT_NE(verdict_on_deadline(0ms, "rank 1 is missing"), "");
  EXPECT_NE(verdict_on_deadline(0ms, "rank 3 is missing", 10ms), "");
  EXPECT_NE(verdict_on_deadline(5ms, "rank 3 is missing", 20ms), "");
  EXPECT_NE(verdict_on_deadline(0ms, "rank 3 is missing", 4150ms), "");
}

TEST(ConformanceValues, FloatSumErrorsAreBoundedAndCanonicalSumsAreExact) {
  const std::vector<float> values = {1.0f, 0x1p-24f, 0x1p-24f};
  const auto is_right = [&](float got, Determinism grade) {
    return wrong_combination<float>(ReduceOp::kSum, grade, values, got).empty();
  };
  EXPECT_TRUE(is_right(1.0f, Determinism::kNone));
  EXPECT_TRUE(is_right(1.0f + 0x1p-23f, Determinism::kNone));
  EXPECT_FALSE(is_right(1.0f + 0x1p-20f, Determinism::kNone));
  EXPECT_FALSE(is_right(std::numeric_limits<float>::quiet_NaN(), Determinism::kNone));
  EXPECT_TRUE(is_right(1.0f, Determinism::kCanonical));  // (1 + tiny) + tiny is 1
  EXPECT_FALSE(is_right(1.0f + 0x1p-23f, Determinism::kCanonical));
}

TEST(ConformanceValues, SumsMayDeviateByAtMostDeclaredError) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto wrong = [](float got, SumError error, float first = 1.0f) {
    const std::vector<float> values = {first, 2.0f};
    return wrong_combination<float>(ReduceOp::kSum, Determinism::kNone, values, got, &error);
  };
  EXPECT_EQ(wrong(3.09f, {.declared = 0.01, .unit = 10}), "");
  EXPECT_NE(wrong(3.11f, {.declared = 0.01, .unit = 10}), "");
  EXPECT_EQ(wrong(-100.0f, {.declared = kInfinity, .unit = 10}), "");
  for (const double declared : {0.01, static_cast<double>(kInfinity)}) {
    EXPECT_NE(wrong(std::numeric_limits<float>::quiet_NaN(), {declared, 10}), "");
    EXPECT_NE(wrong(kInfinity, {declared, 10}), "");
    // A non-finite value may make other sums non-finite, but its sum must not be finite.
    EXPECT_EQ(wrong(kInfinity, {declared, kInfinity}), "");
    EXPECT_NE(wrong(2.0f, {declared, kInfinity}, kInfinity), "");
    EXPECT_EQ(wrong(-kInfinity, {declared, kInfinity}, kInfinity), "");
  }
  SumError measured{.declared = kInfinity, .unit = 10};
  wrong_combination<float>(ReduceOp::kSum, Determinism::kNone, std::vector{1.0f, 2.0f}, 5.0f,
                           &measured);
  EXPECT_EQ(measured.largest, 0.2L);
}

TEST(ConformanceReport, ShowsCountsAndFirstFailurePerLine) {
  const Case first{.dtype = DType::kInt32, .count = 1}, second{.dtype = DType::kInt32, .count = 2};
  Report report{.name = "mine",
                .results = {{first, Verdict::kFailed, "first"},
                            {second, Verdict::kFailed, "second"},
                            {second, Verdict::kPassed},
                            {{.collective = Collective::kReduce}, Verdict::kSkipped, "cannot"},
                            {{.collective = Collective::kBroadcast}, Verdict::kNotRun}}};
  EXPECT_FALSE(report.passed());
  const std::string table = report.table("tutti conform mine");
  EXPECT_NE(table.find("tutti conform mine --case " + first.id()), std::string::npos) << table;
  EXPECT_EQ(table.find(second.id()), std::string::npos);
  EXPECT_NE(table.find("skipped 1: local: cannot"), std::string::npos);
  EXPECT_NE(table.find("not run 1"), std::string::npos);
  EXPECT_NE(table.find("mine: FAILS, 1 passed, 2 failed, 1 skipped"), std::string::npos);
  const Json json = Json::parse(report.json().dump());
  EXPECT_EQ(json.at("total").at("failed").as_int(), 2);
  EXPECT_EQ(json.at("failures").as_array()[1].at("case").as_string(), second.id());
  report.results.erase(report.results.begin(), report.results.begin() + 3);
  EXPECT_FALSE(report.passed());  // no case has run
}

TEST(ConformanceReport, CasesBeyondTimeBudgetAreNotRun) {
  const Report report = run({.shapes = {GroupShape::kLocal}, .sample = 1}, Subject("canonical"),
                            {.budget = Duration::zero()});
  EXPECT_EQ(report.count(Verdict::kNotRun), report.results.size());
}

}  // namespace tutti::conformance::kit_test
