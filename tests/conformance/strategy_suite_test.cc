// Tests that the strategy suite accepts the library's strategies, and detects every planted bug.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/strategy/suite.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "strategy/replicas/strategy_mode.h"
#include "strategy/variables/mirrored_variable.h"
#include "tests/conformance/planted_bugs.h"
#include "tests/strategy/strategy_helpers.h"
#include "tests/support/thrown.h"
#include "tutti/strategy/strategies.h"
#include "tutti/strategy/strategy_extended.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::planted_bugs {

/// Mirrored storage with one faulty function.
class PlantedStorage final : public internal::MirroredStorage {
 public:
  PlantedStorage(std::uint64_t bug, const Tensor& initial_value, VariableOptions options,
                 const void* owner, std::shared_ptr<const Placement> placement)
      : MirroredStorage(initial_value, std::move(options), owner, std::move(placement), 0),
        bug_(bug) {
    if (bug_ != "OneComponentDiffers"_bug) return;
    component(1).assign(AssignOp::kAssign, Tensor::full(shape(), 7.0, dtype()));
  }

  void assign(AssignOp op, const Tensor& value, ValueOrigin origin) override {
    const bool is_outside = !replica("assign");
    if (bug_ == "WritesOneComponent"_bug && is_outside) {
      component(0).assign(op, checked_operand(op, value));
    } else {
      MirroredStorage::assign(op, value, origin);
    }
  }
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override {
    const internal::LocalReplicaContext* const context = replica("update");
    const bool is_left_out = context && context->replica_id() > 0;
    if (bug_ == "UpdatesOneComponent"_bug && is_left_out) return;
    MirroredStorage::update(rule, slots, gradient, scalars);
  }
  std::vector<NamedTensor> save() const override {
    if (bug_ == "SavesNothing"_bug) return {};
    return MirroredStorage::save();
  }
  void restore(const TensorLookup& lookup) override {
    if (bug_ != "RestoresOneComponent"_bug) return MirroredStorage::restore(lookup);
    component(0).assign(AssignOp::kAssign, checked_restore(lookup, name()));
  }

 private:
  const std::uint64_t bug_;
};

/// Operation with a bug: each buffer keeps its own value.
class KeepsItsOwn final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "keeps_its_own"; }
  bool supports(ReduceOp, DType, DeviceType) const override { return true; }

 protected:
  void all_reduce_buffers(ReduceOp, std::span<const ReplicaBuffer>) override {}
};

/// Replica context with one faulty function, for checks that use no variables.
class PlantedContext final : public ReplicaContext {
 public:
  PlantedContext(std::uint64_t bug, ReplicaContext& right) : bug_(bug), right_(right) {}
  int replica_id() const override { return right_.replica_id(); }
  int num_replicas_in_sync() const override { return right_.num_replicas_in_sync(); }
  Device device() const override { return right_.device(); }
  Strategy& strategy() const override { return right_.strategy(); }

 protected:
  int local_index() const override {
    const int last = num_replicas_in_sync() - 1;
    return bug_ == "ReversesResults"_bug ? last - replica_id() : replica_id();
  }
  std::shared_ptr<const void> merge_erased(const void* local, const std::type_info&,
                                           const ErasedMerge& merge,
                                           SourceLocation where) override {
    const auto merge_all = [&](Strategy& strategy, const PerReplica<const void*>& locals) {
      std::vector<const void*> values = locals.values();
      if (bug_ == "MergesInReverseOrder"_bug) std::ranges::reverse(values);
      if (bug_ == "MergesPerReplica"_bug) {
        for (std::size_t i = 1; i < values.size(); ++i) merge(strategy, values);
      }
      return merge(strategy, values);
    };
    const internal::StrategyModeScope mode = right_mode();
    return right_.merge_call(merge_all, local, where);
  }
  std::vector<Gradient> all_reduce_values(ReduceOp op, std::span<const Gradient> values,
                                          SourceLocation where) override {
    const bool is_wrong = bug_ == "ReturnsSumForMean"_bug && op == ReduceOp::kMean;
    const internal::StrategyModeScope mode = right_mode();
    return right_.all_reduce(is_wrong ? ReduceOp::kSum : op, values, where);
  }
  Gathered all_gather_value(const Tensor& value, int axis, SourceLocation where) override {
    const auto gather = [&](Strategy& strategy, const PerReplica<Tensor>& all) {
      std::vector<Tensor> values = all.values();
      if (bug_ == "AllGathersInReverseOrder"_bug) std::ranges::reverse(values);
      return strategy.gather(PerReplica<Tensor>(std::move(values)), axis);
    };
    const internal::StrategyModeScope mode = right_mode();
    return {right_.merge_call(gather, value, where).to(device()), 0};
  }

 private:
  /// Makes the wrapped context current, because a context refuses calls while another context is
  /// current on the thread.
  internal::StrategyModeScope right_mode() const {
    return internal::StrategyModeScope({&right_.strategy(), &right_});
  }

  const std::uint64_t bug_;
  ReplicaContext& right_;
};

/// Strategy that mirrors variables as MirroredStrategy does, except for one bug.
class PlantedStrategy final : public Strategy {
 public:
  explicit PlantedStrategy(std::string_view name)
      : Strategy("planted", options_with(bug(name))),
        bug_(bug(name)),
        placement_(std::make_shared<const Placement>(
            Placement::mirrored({replica_devices().begin(), replica_devices().end()}))) {}

  int num_replicas_in_sync() const override {
    return Strategy::num_replicas_in_sync() + (bug_ == "ReportsOneReplicaTooMany"_bug ? 1 : 0);
  }
  CrossDeviceOps& cross_device_ops() override {
    if (bug_ == "ReduceToKeepsOwnValue"_bug) return keeps_its_own_;
    return Strategy::cross_device_ops();
  }
  void restore_state(const Json& state) override {
    if (bug_ != "IgnoresRestoredStepNumber"_bug) Strategy::restore_state(state);
  }
  const Failure& last_failure() const override {
    static const Failure none;
    return bug_ == "DropsLastFailure"_bug ? none : Strategy::last_failure();
  }

 protected:
  std::vector<Tensor> values_of_all_replicas(const PerReplica<Tensor>& local,
                                             std::string_view who) override {
    std::vector<Tensor> values = Strategy::values_of_all_replicas(local, who);
    if (bug_ == "ReducesFirstReplicaTwice"_bug) values.back() = values.front();
    if (bug_ == "GathersInReverseOrder"_bug) std::ranges::reverse(values);
    return values;
  }
  void complete_input_plan(InputPlan& plan) override {
    Strategy::complete_input_plan(plan);
    if (bug_ == "ReversesInputDevices"_bug) std::ranges::reverse(plan.replica_devices);
    if (bug_ == "DoesNotSplitInput"_bug) plan.cut = InputCut::kWhole;
    if (bug_ == "SplitsInputOfFunction"_bug) plan.cut = InputCut::kSplit;
    if (bug_ == "InputOfOneWorkerOfTwo"_bug) {
      plan.num_workers = 2;
      plan.num_replicas_in_sync *= 2;
    }
  }
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override {
    if (bug_ == "AcceptsUnknownSynchronization"_bug) options.synchronization = {};
    if (bug_ == "OnReadAsOnWrite"_bug) options.synchronization = {};
    if (bug_ == "OnReadAsOnWrite"_bug) options.trainable = options.trainable.value_or(false);
    if (extended().is_on_read(options)) {
      return extended().create_storage(initial_value, std::move(options));
    }
    const bool is_mean = options.aggregation == VariableAggregation::kMean;
    if (bug_ == "AssignsSumForMean"_bug && is_mean) {
      options.aggregation = VariableAggregation::kSum;
    }
    if (bug_ == "AssignsFirstValueToAll"_bug && is_mean) {
      options.aggregation = VariableAggregation::kOnlyFirstReplica;
    }
    const Strategy* const owner = bug_ == "VariablesWithoutOwner"_bug ? nullptr : this;
    if (bug_ == "ScopeOfLocalVariables"_bug || !owner) {
      return make_local_storage(initial_value, replica_devices().front(), std::move(options),
                                owner);
    }
    return std::make_shared<PlantedStorage>(bug_, initial_value, std::move(options), owner,
                                            placement_);
  }
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override {
    if (is_broken_.exchange(false)) fail(ErrorCode::kInternal, "broken by an earlier step");
    try {
      extended().run([&](ReplicaContext& context) { run_one(context, body); });
    } catch (const Error& error) {
      is_broken_ = bug_ == "StaysBroken"_bug;
      if (bug_ == "OmitsReplicaInError"_bug) throw Error(error.code(), without_name(error));
      if (bug_ != "SwallowsErrors"_bug) throw;
    }
  }

 private:
  static LocalStrategyOptions options_with(std::uint64_t bug) {
    LocalStrategyOptions options{.devices = "cpu:0-2", .timeout = std::chrono::seconds(20)};
    // Local variables are shared by all replicas, so replicas must not run concurrently.
    if (bug == "ScopeOfLocalVariables"_bug) {
      options.execution = ReplicaExecution::kSequential;
    }
    if (bug == "ReducesInDifferentOrder"_bug) {
      options.cross_device_ops = make_cross_device_ops("ring");
      options.deterministic = false;
    }
    return options;
  }
  static std::string without_name(const Error& error) {
    return error.message().substr(error.message().rfind(": ") + 2);
  }
  bool has_wrong_context() const {
    return bug_ == "ReversesResults"_bug || bug_ == "MergesPerReplica"_bug ||
           bug_ == "MergesInReverseOrder"_bug || bug_ == "AllGathersInReverseOrder"_bug ||
           bug_ == "ReturnsSumForMean"_bug;
  }
  void run_one(ReplicaContext& context, const std::function<void(ReplicaContext&)>& body) {
    const int replica = context.replica_id();
    if (bug_ == "OmitsOneReplica"_bug && replica == 2) return;
    if (bug_ == "RunsOneReplicaTwice"_bug && replica == 0) body(context);
    if (bug_ == "ComputesOnFirstDevice"_bug) {
      const DeviceScope first(replica_devices().front());
      return body(context);
    }
    if (!has_wrong_context()) return body(context);
    PlantedContext wrong(bug_, context);
    const internal::StrategyModeScope mode({this, &wrong});
    body(wrong);
  }

  const std::uint64_t bug_;
  std::shared_ptr<const Placement> placement_;
  KeepsItsOwn keeps_its_own_;
  std::atomic<bool> is_broken_{false};  // atomic, because nested steps read it concurrently
};

}  // namespace tutti::planted_bugs

namespace tutti::conformance {
inline void PrintTo(const StrategySubject& subject, std::ostream* out) { *out << subject.name; }

namespace strategy_suite_test {
using planted_bugs::PlantedStrategy;
using ::testing::HasSubstr;

struct PlantedStrategyBug {
  const char* name;
  const char* found_by;  // name of the check
  const char* said;      // fragment of the check's message
};
void PrintTo(const PlantedStrategyBug& planted, std::ostream* out) { *out << planted.name; }

constexpr PlantedStrategyBug kPlantedStrategies[] = {
    {"OmitsOneReplica", "replicas", "got replica 0 of 3 on cpu:0, tensors on cpu:0; replica 1"},
    {"RunsOneReplicaTwice", "replicas", "got replica 0 of 3 on cpu:0, tensors on cpu:0; replica 0"},
    {"ReportsOneReplicaTooMany", "replicas", "num_replicas_in_sync()"},
    {"ComputesOnFirstDevice", "replicas", "replica 1 of 3 on cpu:1, tensors on cpu:0"},
    {"ReversesResults", "results", "its argument + the common argument"},
    {"MergesPerReplica", "merge_call", "calls of the function: expected 1, got 3"},
    {"MergesInReverseOrder", "merge_call", "results in the replicas"},
    {"AllGathersInReverseOrder", "collectives", "all_gather()"},
    {"ReturnsSumForMean", "collectives", "all_reduce(MEAN)"},
    {"ReducesInDifferentOrder", "collectives", "expected the bits"},
    {"ReducesFirstReplicaTwice", "reduce", "reduce(SUM)"},
    {"GathersInReverseOrder", "gather", "in replica order"},
    {"ReduceToKeepsOwnValue", "copies", "reduce_to(SUM)"},
    {"ReversesInputDevices", "input", "batch of replica 0: device: expected cpu:0, got cpu:2"},
    {"InputOfOneWorkerOfTwo", "input", "rows"},
    {"DoesNotSplitInput", "input", "one for each global batch"},
    {"SplitsInputOfFunction", "input_from_function", "rows of a batch: expected 2, got 1"},
    {"VariablesWithoutOwner", "scope", "variable_created_in_scope()"},
    {"ScopeOfLocalVariables", "on_write_variables",
     "of a strategy that did not create the variable"},
    {"OneComponentDiffers", "new_variables", "components"},
    {"AssignsSumForMean", "on_write_variables", "ON_WRITE, MEAN"},
    {"AssignsFirstValueToAll", "on_write_variables", "ON_WRITE, MEAN"},
    {"WritesOneComponent", "on_write_variables", "components"},
    {"OnReadAsOnWrite", "on_read_variables", "value() in replicas"},
    {"AcceptsUnknownSynchronization", "unknown_use", "got no error"},
    {"SavesNothing", "saved_variables", "a tensor called 'w'"},
    {"RestoresOneComponent", "saved_variables", "restore()"},
    {"SwallowsErrors", "failures", "got no error"},
    {"OmitsReplicaInError", "failures", "with 'replica 0', got DATA_LOSS: the planted reason"},
    {"StaysBroken", "failures", "broken by an earlier step"},
    {"DropsLastFailure", "failures", "last_failure().replica"},
    {"IgnoresRestoredStepNumber", "random_numbers", "restore_state()"},
    {"UpdatesOneComponent", "training", "components of"},
};

StrategySubject with_ring() {
  const auto make = [] {
    return std::make_unique<MirroredStrategy>(
        LocalStrategyOptions{.devices = "cpu:0-2",
                             .cross_device_ops = make_cross_device_ops("ring"),
                             .deterministic = false});
  };
  return {.name = "mirrored_3_ring", .make = make, .is_canonical = false};
}

StrategySubject planted(const char* name) {
  return {"planted", [name] { return std::make_unique<PlantedStrategy>(name); }};
}

/// Returns the library's strategies, a strategy with the ring operation, and PlantedStrategy
/// without a bug.
std::vector<StrategySubject> correct_strategies() {
  std::vector<StrategySubject> all{with_ring(), planted("None")};
  for (const strategy_tests::StrategyCase& each : strategy_tests::all_strategies()) {
    all.push_back({each.name, each.make});
  }
  return all;
}

class CorrectStrategy : public ::testing::TestWithParam<StrategySubject> {};
INSTANTIATE_TEST_SUITE_P(All, CorrectStrategy, ::testing::ValuesIn(correct_strategies()),
                         [](const auto& info) { return info.param.name; });

TEST_P(CorrectStrategy, PassesEveryCheck) {
  const StrategyReport report = run_strategy_suite(GetParam());
  EXPECT_TRUE(report.passed()) << report.text();
  EXPECT_EQ(report.num_checks, strategy_checks().size());
}

class StrategyWithBug : public ::testing::TestWithParam<PlantedStrategyBug> {};
INSTANTIATE_TEST_SUITE_P(All, StrategyWithBug, ::testing::ValuesIn(kPlantedStrategies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(StrategyWithBug, IsDetectedByExpectedCheck) {
  const std::string message = run_strategy_check(planted(GetParam().name), GetParam().found_by);
  EXPECT_THAT(message, HasSubstr(GetParam().said));
}

TEST(StrategySuite, EveryCheckHasPlantedBug) {
  for (const std::string& check : strategy_checks()) {
    EXPECT_TRUE(std::ranges::any_of(kPlantedStrategies, [&](const auto& each) {
      return each.found_by == check;
    })) << check;
  }
}

TEST(StrategySuite, ReportsMissingReplicasWithoutFollowUpFailures) {
  const StrategyReport report = run_strategy_suite(planted("OmitsOneReplica"));
  ASSERT_EQ(report.failures.size(), 1u) << report.text();
  EXPECT_EQ(report.failures[0].first, "replicas");
  EXPECT_THAT(report.text(), HasSubstr("FAILED replicas: calls of the step function"));
  EXPECT_THAT(report.text(), HasSubstr("planted: 0 of 1 checks passed"));
}

TEST(StrategySuite, TerminatesProcessWhenReplicasDeadlock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto make = []() -> std::unique_ptr<Strategy> {
    Clock::system().sleep_for(std::chrono::minutes(10));
    return nullptr;
  };
  const StrategySubject subject{"slow", make, true, std::chrono::milliseconds(50)};
  EXPECT_EXIT(run_strategy_check(subject, "reduce"), ::testing::ExitedWithCode(1),
              "strategy 'slow': check 'replicas' did not end in time");
}

TEST(StrategySuite, RefusesUnknownChecks) {
  const std::string message =
      thrown::error_of([] { run_strategy_check(planted("None"), "speed"); });
  EXPECT_THAT(message,
              HasSubstr("no check of strategies is named 'speed'; expected one of replicas"));
}

}  // namespace strategy_suite_test
}  // namespace tutti::conformance
