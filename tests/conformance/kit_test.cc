// The kit's own parts: names of cases, plans, reports, its numbers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <set>

#include "gtest/gtest.h"
#include "testing/cross_device_ops/checks.h"
#include "testing/cross_device_ops/expected.h"
#include "testing/cross_device_ops/problem.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {
namespace {

TEST(ConformanceCase, IsReadAgainFromItsName) {
  std::set<std::string> ids;
  const std::vector<Case> all = cases(Plan{.seed = 7, .max_count = 130});
  for (const Case& c : all) {
    ASSERT_EQ(Case::parse(c.id()), c) << c.id();
    ids.insert(c.id());
  }
  EXPECT_EQ(ids.size(), all.size());
  EXPECT_GT(all.size(), 50000u);
}

TEST(ConformanceCase, AWrongNameSaysWhichPartIsWrong) {
  const std::string good = Case{}.id();
  const auto refuses = [&](const std::string& from, const std::string& to) {
    std::string id = good;
    id.replace(id.find(from), from.size(), to);
    testing::expect_error(ErrorCode::kInvalidArgument, {to}, [&] { Case::parse(id); });
  };
  refuses("local", "global");
  refuses("all_reduce", "all_reduse");
  refuses("SUM", "SUN");
  refuses("2x0", "0x0");
  refuses("apart", "together");
  refuses("/0/1", "/9/1");
  testing::expect_error(ErrorCode::kInvalidArgument, {"ten parts"}, [] { Case::parse("local"); });
}

TEST(ConformancePlan, HasEveryOperationTypeWorldAndCheck) {
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
  EXPECT_EQ(types.size(), 6u * std::size(kAllDTypes) + 1);  // and the barrier
  EXPECT_EQ(worlds, (std::set<int>{1, 2, 3, 5, 7, 8, 16}));
  EXPECT_EQ(checks.size(), 11u);
  EXPECT_TRUE(counts.contains(0) && counts.contains(1) && counts.contains((1 << 20) + 1));
}

TEST(ConformancePlan, ASampleIsThatOfItsSeedAndHasEachGroup) {
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

/// Three ranks of four call, the second one `delay` later, and all end at 150 ms.
std::string verdict_on_deadline(Duration delay, const std::string& message, double end = 0.15) {
  const double late = seconds_between(TimePoint(), TimePoint(delay));
  const std::optional<Error> error = Error(ErrorCode::kDeadlineExceeded, message);
  const Scene scene{
      {error, error, error, std::nullopt},
      {TimePoint(Duration(1)), TimePoint(Duration(1) + delay), TimePoint(Duration(1)), TimePoint()},
      {end, end - late, end, 0}};
  Case c;
  c.world = 4;
  c.collective = Collective::kAllReduce;
  return wrong_deadline(c, scene, std::chrono::milliseconds(150));
}

TEST(ConformanceDeadline, CountsFromTheFirstCall) {
  using namespace std::chrono_literals;
  EXPECT_EQ(verdict_on_deadline(0ms, "rank 3 is missing"), "");
  EXPECT_EQ(verdict_on_deadline(126ms, "rank 3 is missing"), "");  // it gave up after 24 ms
  EXPECT_EQ(verdict_on_deadline(126ms, "rank 1 is missing"), "");  // as it was at the deadline
  EXPECT_NE(verdict_on_deadline(0ms, "rank 1 is missing"), "");
  EXPECT_NE(verdict_on_deadline(0ms, "rank 3 is missing", 0.01), "");
  EXPECT_NE(verdict_on_deadline(5ms, "rank 3 is missing", 0.02), "");
  EXPECT_NE(verdict_on_deadline(0ms, "rank 3 is missing", 4.15), "");
}

TEST(ConformanceValues, SumsOfFloatsAreBoundedAndCanonicalOnesExact) {
  const float values[] = {1.0f, 0x1p-24f, 0x1p-24f};
  const std::span<const float> span(values);
  const auto wrong = [&](Determinism grade, float got) {
    return !wrong_combination<float>(ReduceOp::kSum, grade, span, got).empty();
  };
  EXPECT_FALSE(wrong(Determinism::kNone, 1.0f));
  EXPECT_FALSE(wrong(Determinism::kNone, 1.0f + 0x1p-23f));
  EXPECT_TRUE(wrong(Determinism::kNone, 1.0f + 0x1p-20f));
  EXPECT_TRUE(wrong(Determinism::kNone, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_FALSE(wrong(Determinism::kCanonical, 1.0f));  // (1 + tiny) + tiny
  EXPECT_TRUE(wrong(Determinism::kCanonical, 1.0f + 0x1p-23f));
}

TEST(ConformanceValues, SixteenBitSumsAreRoundedOnce) {
  // 256 + 1 + 1 is 258 in float and in bfloat16; with a rounding in each step it stays 256.
  const BFloat16 values[] = {BFloat16(256), BFloat16(1), BFloat16(1)};
  const auto wrong = [&](double got) {
    return wrong_combination<BFloat16>(ReduceOp::kSum, Determinism::kNone, values, BFloat16(got));
  };
  EXPECT_EQ(wrong(258), "");
  EXPECT_NE(wrong(256), "");
}

TEST(ConformanceValues, NanAndInfinityAreWhatTheyMustBe) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto is_right = [](ReduceOp op, std::vector<double> values, double got) {
    return wrong_combination<double>(op, Determinism::kNone, values, got).empty();
  };
  EXPECT_TRUE(is_right(ReduceOp::kMin, {1, kNan}, kNan));
  EXPECT_FALSE(is_right(ReduceOp::kMin, {1, kNan}, 1));
  EXPECT_FALSE(is_right(ReduceOp::kMax, {kNan, 1}, 1));
  EXPECT_TRUE(is_right(ReduceOp::kSum, {kInfinity, -kInfinity}, kNan));
  EXPECT_TRUE(is_right(ReduceOp::kSum, {kInfinity, 1}, kInfinity));
  EXPECT_FALSE(is_right(ReduceOp::kSum, {kInfinity, 1}, -kInfinity));
}

TEST(ConformanceValues, IntegersWrapAround) {
  const std::int32_t values[] = {std::numeric_limits<std::int32_t>::max(), 1};
  const auto wrong = [&](std::int32_t got) {
    return wrong_combination<std::int32_t>(ReduceOp::kSum, Determinism::kNone, values, got);
  };
  EXPECT_EQ(wrong(std::numeric_limits<std::int32_t>::min()), "");
  EXPECT_NE(wrong(std::numeric_limits<std::int32_t>::max()), "");
}

TEST(ConformanceProblem, SeesWhatWasWrittenAroundABuffer) {
  const Case c{.world = 2, .count = 3, .offset = 1};
  const Problem problem(c);
  EXPECT_EQ(problem.check_untouched(), "");
  problem.output(1).data[-1] = std::byte{0};
  EXPECT_NE(problem.check_untouched().find("rank 1"), std::string::npos);
}

TEST(ConformanceReport, CountsAndNamesTheFirstFailureOfEachLine) {
  Report report;
  report.name = "mine";
  const Case first{.dtype = DType::kInt32, .count = 1}, second{.dtype = DType::kInt32, .count = 2};
  report.add(first, {Verdict::kFailed, "first"});
  report.add(second, {Verdict::kFailed, "second"});
  report.add(second, {});
  report.add(Case{.collective = Collective::kReduce}, {Verdict::kSkipped, "cannot"});
  report.add_not_run(Case{.collective = Collective::kBroadcast});
  EXPECT_FALSE(report.passed());
  const std::string table = report.table("tutti conform mine");
  EXPECT_NE(table.find("tutti conform mine --case " + first.id()), std::string::npos) << table;
  EXPECT_EQ(table.find(second.id()), std::string::npos);
  EXPECT_NE(table.find("skipped 1: local: cannot"), std::string::npos);
  EXPECT_NE(table.find("not run 1"), std::string::npos);
  const Json json = Json::parse(report.json().dump());
  EXPECT_EQ(json.at("total").at("failed").as_int(), 2);
  EXPECT_EQ(json.at("failures").as_array().size(), 2u);
  EXPECT_EQ(json.at("failures").as_array()[1].at("case").as_string(), second.id());
}

TEST(ConformanceReport, NothingThatRanIsNoSuccess) {
  Report report;
  report.add(Case{}, {Verdict::kSkipped, "cannot"});
  EXPECT_FALSE(report.passed());
}

TEST(ConformanceReport, ASpentBudgetShowsAsNotRun) {
  Subject subject("nothing", {});
  const Report report =
      run(Plan{.shapes = {GroupShape::kLocal}, .sample = 1}, subject, {.budget = Duration::zero()});
  EXPECT_EQ(report.total().passed + report.total().skipped, 0u);
  EXPECT_GT(report.total().not_run, 100u);
}

}  // namespace
}  // namespace tutti::conformance
