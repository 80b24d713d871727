// Tests that the conformance kit detects every planted bug and accepts correct operations.
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/planted_bugs.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "gtest/gtest.h"
#include "tests/support/sanitizers.h"
#include "tutti/core/sync.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::planted_bugs::planted_bugs_test {
using conformance::Case;
using conformance::GroupShape;
using conformance::Plan;
using conformance::RankFactory;
using conformance::Report;
using conformance::Result;
using conformance::Subject;
using conformance::Verdict;

/// Storage for engines that must outlive their communicators, so that peers do not notice the
/// communicators' destruction.
struct Graveyard {
  Mutex mutex;
  std::vector<std::unique_ptr<internal::CollectiveEngine>> engines TUTTI_GUARDED_BY(mutex);
};

/// Engine that wraps a correct engine and adds a bug.
class BuggyEngine final : public internal::CollectiveEngine {
 public:
  BuggyEngine(std::unique_ptr<internal::CollectiveEngine> engine, std::string_view name,
              std::shared_ptr<Graveyard> graveyard)
      : engine_(std::move(engine)), bug_(bug(name)), graveyard_(std::move(graveyard)) {}
  ~BuggyEngine() override {
    if (bug_ != "IgnoresLostPeer"_bug) return;
    MutexLock lock(graveyard_->mutex);
    graveyard_->engines.push_back(std::move(engine_));
  }

  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  std::string_view name() const override { return engine_->name(); }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return engine_->supports(collective, op, dtype);
  }
  Determinism determinism() const override { return engine_->determinism(); }

  void run(const CollectiveCall& call, const internal::CollectiveHeader& header,
           TimePoint deadline) override {
    CollectiveCall own_call = call;
    internal::CollectiveHeader own_header = header;
    if (bug_ == "IgnoresDeadline"_bug) deadline += std::chrono::seconds(4);
    if (bug_ == "EndsBeforeDeadline"_bug) deadline -= std::chrono::milliseconds(140);
    if (bug_ == "DoesNotCompareNames"_bug) {
      own_header.name_hash = 0;
      own_header.name = {};
    }
    if (bug_ == "DoesNotCompareShapes"_bug) own_header.shape_hash = 0;
    if (bug_ == "BroadcastsFromZero"_bug && call.collective == Collective::kBroadcast) {
      own_call.root = 0;
    }
    try {
      engine_->run(own_call, own_header, deadline);
    } catch (const Error& error) {
      const bool keeps = bug_ == "KeepsErrorsFromRankZero"_bug && rank() == 0;
      if (!keeps || error.code() != ErrorCode::kInvalidArgument) throw;
    }
    if (bug_ == "LastRankGetsNothing"_bug && rank() == size() - 1 && rank() > 0) {
      for (const Elements& output : call.outputs) {
        if (output.count > 0) output.data[0] ^= std::byte{0x40};
      }
    }
  }

  void abort(const Error& reason) noexcept override {
    if (bug_ == "IgnoresAbort"_bug) return;
    if (bug_ == "LosesReason"_bug) {
      return engine_->abort(Error(ErrorCode::kAborted, "stopped"));
    }
    engine_->abort(reason);
  }

  std::unique_ptr<internal::CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                                       std::uint32_t number) override {
    return engine_->subgroup(ranks, number);
  }
  void answer_state_queries(const std::function<std::string()>& own_state) override {
    // With bug IgnoresLostPeer, the engine outlives its communicator, so it must not call
    // own_state, which uses the communicator.
    if (bug_ != "IgnoresLostPeer"_bug) engine_->answer_state_queries(own_state);
  }
  std::vector<std::string> states_of_ranks(TimePoint deadline) override {
    return engine_->states_of_ranks(deadline);
  }

 private:
  std::unique_ptr<internal::CollectiveEngine> engine_;
  const std::uint64_t bug_;
  const std::shared_ptr<Graveyard> graveyard_;
};

constexpr Planted kPlantedEngines[] = {
    {"IgnoresDeadline", "/deadline/"},     {"EndsBeforeDeadline", "/deadline/"},
    {"IgnoresAbort", "/abort/"},           {"LosesReason", "/abort/"},
    {"IgnoresLostPeer", "/peer_gone/"},    {"KeepsErrorsFromRankZero", "/mismatch/"},
    {"DoesNotCompareNames", "/mismatch/"}, {"DoesNotCompareShapes", "/mismatch/"},
    {"BroadcastsFromZero", "/broadcast/"}, {"LastRankGetsNothing", "/values/"},
};

Subject subject_with(std::string_view name) {
  Subject subject;
  subject.name = "buggy";
  subject.local = [name](const std::vector<Device>& devices) {
    return std::make_unique<BuggyOps>(name, devices);
  };
  return subject;
}

Subject engines_with(std::string_view name, const std::shared_ptr<Graveyard>& graveyard) {
  Subject subject;
  subject.name = "engine";
  subject.threads = [=](int world, Duration timeout) -> RankFactory {
    auto engines = std::make_shared<std::vector<std::unique_ptr<internal::CollectiveEngine>>>();
    for (std::shared_ptr<Transport>& transport : in_process_transports(world)) {
      engines->push_back(internal::window_engine(std::move(transport)));
    }
    return [=](int rank) {
      auto& engine = (*engines)[static_cast<std::size_t>(rank)];
      return std::make_unique<Communicator>(
          std::make_unique<BuggyEngine>(std::move(engine), name, graveyard),
          CommunicatorOptions{.timeout = timeout});
    };
  };
  return subject;
}

bool names(const Case& c, const Planted& planted) {
  return c.id().find(planted.found_by) != std::string::npos;
}

// Runs fewer cases with sanitizers, which slow code down tenfold.
constexpr std::size_t kSample = testing::kIsSanitized ? 400 : 1500;

/// Returns the bugs that the kit must detect in this build. Builds with sanitizers omit some bugs,
/// because the sanitizer would end the process first.
std::vector<Planted> planted_here() {
  std::vector<Planted> planted(std::begin(kPlanted), std::end(kPlanted));
  if (!testing::kIsSanitized) return planted;
  for (const std::string_view name : {"WritesPastBuffer", "WritesBeforeBuffer", "SharesMember",
                                      "SharesScratch", "GatherEvenParts"}) {
    std::erase_if(planted, [&](const Planted& each) { return each.name == name; });
  }
  return planted;
}

class PlantedBug : public ::testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(All, PlantedBug, ::testing::ValuesIn(planted_here()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PlantedBug, IsDetectedByExpectedCase) {
  const Planted& planted = GetParam();
  const bool needs_large = planted.name == "CountsIn16Bits" || planted.name == "SharesMember";
  const Plan plan{.shapes = {GroupShape::kLocal},
                  .seed = 3,
                  // a smaller sample would lack cases with large counts
                  .sample = needs_large ? 1500 : kSample,
                  .max_count = needs_large ? std::size_t{70000} : 5000};
  const Report report = run(plan, subject_with(planted.name), {.max_failures = 1000});
  const std::string table = report.table("tutti conform buggy");
  EXPECT_FALSE(report.passed()) << table;
  const auto named = std::ranges::find_if(report.results, [&](const Result& result) {
    return result.verdict == Verdict::kFailed && names(result.of, planted);
  });
  ASSERT_NE(named, report.results.end()) << table;
  // The id in the report must reproduce the failure.
  const Case again = Case::parse(named->of.id());
  EXPECT_FALSE(run_cases({again}, subject_with(planted.name)).passed()) << again.id();
}

class PlantedEngineBug : public ::testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(All, PlantedEngineBug, ::testing::ValuesIn(kPlantedEngines),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PlantedEngineBug, IsDetectedByExpectedCases) {
  std::vector<Case> cases = conformance::cases(
      {.shapes = {GroupShape::kThreads}, .seed = 3, .sample = 1, .max_count = 5000});
  std::erase_if(cases,
                [](const Case& c) { return c.dtype != DType::kFloat32 || !names(c, GetParam()); });
  const auto graveyard = std::make_shared<Graveyard>();
  const Subject subject = engines_with(GetParam().name, graveyard);
  EXPECT_EQ(run_cases(cases, subject, {.max_failures = 1}).count(Verdict::kFailed), 1u);
}

TEST(ConformanceKit, ReportsNoFailureForCorrectOperation) {
  const Plan plan{.shapes = {GroupShape::kLocal}, .sample = 2 * kSample, .max_count = 5000};
  const Report report = run(plan, subject_with("none"));
  EXPECT_EQ(report.count(Verdict::kPassed), report.results.size()) << report.table("kit");
}

TEST(ConformanceKit, ReportsNoFailureForCorrectEngines) {
  const Plan plan{.shapes = {GroupShape::kThreads}, .sample = kSample, .max_count = 5000};
  const Report report = run(plan, engines_with("none", std::make_shared<Graveyard>()));
  EXPECT_EQ(report.count(Verdict::kPassed), report.results.size()) << report.table("kit");
}

}  // namespace tutti::planted_bugs::planted_bugs_test
