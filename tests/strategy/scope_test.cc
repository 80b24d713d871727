// Tests strategy scopes, and the contexts of threads.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <optional>
#include <vector>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::strategy_tests::scope_test {

void expect_default_state() {
  EXPECT_NE(get_replica_context(), nullptr);
  EXPECT_EQ(get_cross_replica_context(), nullptr);
  EXPECT_FALSE(in_cross_replica_context());
  EXPECT_TRUE(in_replica_context());
  EXPECT_FALSE(has_strategy());
  EXPECT_EQ(&get_strategy(), &default_strategy());
}

void expect_scope_of(Strategy& strategy) {
  EXPECT_EQ(get_replica_context(), nullptr);
  EXPECT_EQ(get_cross_replica_context(), &strategy);
  EXPECT_TRUE(in_cross_replica_context());
  EXPECT_TRUE(has_strategy());
  EXPECT_EQ(&get_strategy(), &strategy);
}

/// Fixture that expects each test to leave the thread without a scope.
class Scopes : public ::testing::Test {
 protected:
  void TearDown() override { expect_default_state(); }
  const std::unique_ptr<MirroredStrategy> strategy_ = mirrored(2);
};

TEST_F(Scopes, DefaultReplicaIsCurrentWithoutStrategy) {
  expect_default_state();
  EXPECT_EQ(ReplicaContext::current().num_replicas_in_sync(), 1);
  EXPECT_EQ(&ReplicaContext::current().strategy(), &default_strategy());
  EXPECT_EQ(ReplicaContext::current().all_reduce(ReduceOp::kSum, 3.0f).item(), 3.0f);
}

TEST_F(Scopes, ScopeEntersCrossReplicaContext) {
  const auto scope = strategy_->scope();
  expect_scope_of(*strategy_);
  EXPECT_ERROR(ReplicaContext::current(), kFailedPrecondition, "cross-replica context");
  EXPECT_ERROR(ReplicaGroup::current("a layer"), kFailedPrecondition, "a layer");
}

TEST_F(Scopes, RunEntersReplicaContext) {
  const auto check = [&] {
    EXPECT_NE(get_replica_context(), nullptr);
    EXPECT_EQ(get_cross_replica_context(), nullptr);
    EXPECT_FALSE(in_cross_replica_context());
    EXPECT_TRUE(has_strategy());
    EXPECT_EQ(&get_strategy(), strategy_.get());
    EXPECT_EQ(ReplicaGroup::current("test").num_replicas(), 2);
  };
  strategy_->run(check);
  const auto scope = strategy_->scope();
  strategy_->run(check);
  expect_scope_of(*strategy_);
}

TEST_F(Scopes, ClosingInWrongOrderThrowsNestingError) {
  auto outer = strategy_->scope();
  auto inner = strategy_->scope();
  EXPECT_ERROR(outer.close(), kFailedPrecondition, "scope nesting error");
  inner.close();
  outer.close();
  expect_default_state();
  EXPECT_ERROR(outer.close(), kFailedPrecondition, "not open");
}

TEST_F(Scopes, ClosingBeforeInnerVariableCreatorScopeThrowsNestingError) {
  auto scope = strategy_->scope();
  struct Other final : VariableCreator {
    std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                            const RandomKey& key,
                                            VariableOptions options) override {
      return make_local_storage(initializer({Device{}, key}), Device{}, std::move(options));
    }
  } creator;
  {
    const VariableCreatorScope inner(creator);
    EXPECT_ERROR(scope.close(), kFailedPrecondition, "variable creator scope nesting error");
  }
  scope.close();
}

TEST_F(Scopes, ClosingBeforeInnerDeviceScopeThrowsNestingError) {
  auto scope = strategy_->scope();
  {
    const DeviceScope inner("cpu:1");
    EXPECT_ERROR(scope.close(), kFailedPrecondition, "device scope nesting error");
    expect_scope_of(*strategy_);
  }
  scope.close();
  expect_default_state();
  const DeviceScope around("cpu:1");  // these scopes nest correctly
  scope.reopen();
  scope.close();
}

TEST_F(Scopes, DestructionInWrongOrderLeavesThreadUsable) {
  std::vector<std::string> lines;
  const LogSink previous =
      set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  std::optional<Scope> outer(strategy_->scope());
  std::optional<Scope> inner(strategy_->scope());
  outer.reset();
  expect_scope_of(*strategy_);
  inner.reset();
  expect_default_state();
  {
    auto scope = std::make_optional(strategy_->scope());
    const DeviceScope device("cpu:1");
    scope.reset();
    expect_default_state();
    EXPECT_EQ(DeviceScope::current(), &device);
  }
  set_log_sink(previous);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], ::testing::HasSubstr("wrong order: scope nesting error"));
  EXPECT_THAT(lines[1], ::testing::HasSubstr("wrong order: device scope nesting error"));
}

TEST_F(Scopes, UsingDifferentStrategyInsideScopeFails) {
  const auto b = mirrored(2);
  const auto scope = strategy_->scope();
  EXPECT_ERROR((void)b->scope(), kFailedPrecondition, "Mixing different strategies");
  EXPECT_ERROR(b->run([] {}), kFailedPrecondition, "Mixing different strategies");
  EXPECT_ERROR(b->reduce(ReduceOp::kMean, Tensor(1.0f)), kFailedPrecondition,
               "Mixing different strategies");
  expect_scope_of(*strategy_);
}

TEST_F(Scopes, ScopeMayBeReentered) {
  auto scope = strategy_->scope();
  scope.reopen();
  auto second = strategy_->scope();
  scope.strategy();
  second.close();
  scope.close();
  expect_scope_of(*strategy_);
  scope.close();
  expect_default_state();
  scope.reopen();
  expect_scope_of(*strategy_);
  scope.close();
}

// Corresponds to tf's testSetStrategy.
TEST_F(Scopes, SetStrategyOpensScopeUntilReset) {
  const auto second = mirrored(1);
  set_strategy(strategy_.get());
  expect_scope_of(*strategy_);
  const Variable made(num(1.0), {.name = "made"});
  EXPECT_TRUE(strategy_->variable_created_in_scope(made));
  EXPECT_EQ(numbers(strategy_->run([&] { return made.value(); })), copies_of(1.0, 2));
  {
    const auto again = strategy_->scope();
    expect_scope_of(*strategy_);
  }
  expect_scope_of(*strategy_);
  EXPECT_ERROR((void)second->scope(), kFailedPrecondition, "Mixing different strategies");
  Executor::system().start("another", &expect_default_state);  // joined at the end of the statement
  set_strategy(second.get());
  expect_scope_of(*second);
  set_strategy(nullptr);
  expect_default_state();
  set_strategy(nullptr);
}

// Corresponds to tf's testSetStrategyInScope.
TEST_F(Scopes, SetStrategyInsideScopeOrReplicaFails) {
  auto other = mirrored(1);
  const auto expect_refusal = [&] {
    for (Strategy* each :
         {static_cast<Strategy*>(other.get()), static_cast<Strategy*>(strategy_.get()),
          static_cast<Strategy*>(nullptr)}) {
      EXPECT_ERROR(set_strategy(each), kFailedPrecondition,
                   "inside a scope or a replica of 'mirrored'");
    }
  };
  const auto expect_refusals = [&] {
    {
      const auto scope = strategy_->scope();
      expect_refusal();
      expect_scope_of(*strategy_);
    }
    strategy_->run([&] {
      if (ReplicaContext::current().replica_id() == 0) expect_refusal();
    });
  };
  expect_refusals();
  expect_default_state();
  set_strategy(strategy_.get());
  expect_refusals();
  expect_scope_of(*strategy_);
  set_strategy(nullptr);
}

TEST_F(Scopes, DefaultStrategyScopeChangesNothing) {
  {
    const auto before = strategy_->scope();
    const Variable variable(Tensor(1.0f));
    EXPECT_TRUE(strategy_->variable_created_in_scope(variable));
  }
  {
    const auto scope = default_strategy().scope();
    expect_default_state();
    EXPECT_ERROR((void)strategy_->scope(), kFailedPrecondition, "Mixing different strategies");
    const Variable variable(Tensor(1.0f));
    EXPECT_TRUE(default_strategy().variable_created_in_scope(variable));
  }
  const auto after = strategy_->scope();
  EXPECT_TRUE(strategy_->variable_created_in_scope(Variable(Tensor(1.0f))));
}

TEST_F(Scopes, ContextsArePerThread) {
  const auto scope = strategy_->scope();
  Executor::system().start("other", [] { expect_default_state(); })->join();
}

TEST_F(Scopes, ScopeInsideRunKeepsReplicaContext) {
  strategy_->run([&] {
    const auto scope = strategy_->scope();
    EXPECT_NE(get_replica_context(), nullptr);
    EXPECT_EQ(ReplicaContext::current().all_reduce(ReduceOp::kSum, num(1)).item(), 2.0f);
  });
}

using ScopesOnEveryStrategy = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, ScopesOnEveryStrategy, ::testing::ValuesIn(all_strategies()), case_name);

/// Returns the sum of all elements in the batches of `data`.
double sum_over_batches(Strategy& strategy, const Dataset& data) {
  double sum = 0;
  for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data.batch(4))) {
    for (const Batch& part : batch) sum += reduce_sum(part.features()).item_double();
  }
  return sum;
}

TEST_P(ScopesOnEveryStrategy, MethodsWorkInsideAndOutsideScope) {
  const std::vector<Device> destinations = strategy_->parameter_devices();
  const auto use_methods = [&](const Variable& variable) {
    const PerReplica<Tensor> ones(
        std::vector<Tensor>(static_cast<std::size_t>(replicas()), Tensor(1.0f)));
    EXPECT_EQ(strategy_->reduce(ReduceOp::kSum, ones).item(), static_cast<float>(replicas()));
    EXPECT_EQ(strategy_->reduce_to(ReduceOp::kMean, ones, destinations)[0].item(), 1.0f);
    const std::vector<std::pair<PerReplica<Tensor>, std::vector<Device>>> pairs = {
        {ones, destinations}, {ones, destinations}};
    EXPECT_EQ(strategy_->batch_reduce_to(ReduceOp::kSum, pairs)[1][0].item(),
              static_cast<float>(replicas()));
    EXPECT_EQ(strategy_->broadcast_to(Tensor(4.0f), destinations)[0].item(), 4.0f);
    strategy_->update(
        variable, [](Variable& each, const Tensor& value) { each.assign(value); }, Tensor(5.0f));
    EXPECT_EQ(components(variable),
              copies_of(5.0, static_cast<int>(variable.storage().devices().size())));
    // Corresponds to tf's make_numpy_dataset(); see docs/deviations.md.
    EXPECT_EQ(sum_over_batches(*strategy_, Dataset::from_tensor_slices({Tensor::ones({10})})), 10);
  };
  Variable variable, count;
  // Corresponds to tf's update_non_slot(), since the count is not a slot; see docs/deviations.md.
  const auto add_one = [&] {
    strategy_->update(
        count, [](Variable& each, const Tensor& one) { each.assign_add(one); },
        Tensor::scalar(1, DType::kInt64));
  };
  {
    const auto scope = strategy_->scope();
    variable = Variable(Tensor(1.0f));
    count = Variable(Tensor::scalar(0, DType::kInt64), {.trainable = false});
    use_methods(variable);
    add_one();
  }
  use_methods(variable);
  add_one();
  EXPECT_EQ(components(count), copies_of(2.0, static_cast<int>(count.storage().devices().size())));
}

TEST_P(ScopesOnEveryStrategy, ReduceAcceptsOpNameInEitherCase) {
  const PerReplica<Tensor> twos(
      std::vector<Tensor>(static_cast<std::size_t>(replicas()), Tensor(2.0f)));
  for (const char* mean : {"mean", "MEAN"}) EXPECT_EQ(strategy_->reduce(mean, twos).item(), 2.0f);
  for (const char* sum : {"sum", "SUM"}) {
    EXPECT_EQ(strategy_->reduce(sum, twos).item(), 2.0f * static_cast<float>(replicas()));
  }
  EXPECT_INVALID(strategy_->reduce("average", twos), "average");
  EXPECT_INVALID(strategy_->reduce("max", twos), "SUM or MEAN");
}

TEST(DefaultStrategy, UpdatePassesItsArgumentsUnchanged) {
  const Variable weight(Tensor(1.0f));
  const Variable count(Tensor::scalar(0, DType::kInt64), {.trainable = false});  // not a slot
  for (const Variable& variable : {weight, count}) {
    const Tensor argument = Tensor::scalar(2, variable.dtype());
    int calls = 0;
    default_strategy().update(
        variable,
        [&](Variable& each, const Tensor& value) {
          ++calls;
          EXPECT_EQ(each, variable);
          EXPECT_EQ(value.id(), argument.id());
          each.assign_add(value);
        },
        argument);
    EXPECT_EQ(calls, 1);
  }
  EXPECT_EQ(weight.value().item(), 3.0f);
  EXPECT_EQ(count.value().item_int(), 2);
}

TEST(DefaultStrategy, RunMergeAndReduceActAsIdentity) {
  Strategy& strategy = default_strategy();
  const PerReplica<int> result = strategy.run([](int x) { return x + 1; }, 4);
  EXPECT_EQ(result.values(), std::vector<int>{5});
  const float merged = ReplicaContext::current().merge_call(
      [](Strategy& merging, const PerReplica<float>& values) {
        EXPECT_TRUE(in_cross_replica_context());
        EXPECT_FALSE(has_strategy());
        EXPECT_EQ(&merging, &default_strategy());
        return values.map([](float x) { return 2 * x; });
      },
      3.0f);
  EXPECT_EQ(merged, 6.0f);
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, Tensor(3.0f)).item(), 3.0f);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, PerReplica<Tensor>({Tensor(3.0f)})).item(), 3.0f);
}

// If a replica could write such a variable, each replica would add the sum of all gradients to it.
TEST(VariableOutsideScope, CannotBeWrittenInReplicas) {
  Variable w(vec({1}));
  Sgd optimizer(std::vector{w}, {.learning_rate = 1.0});
  const std::vector<std::function<void()>> writes = {
      [&] { w.assign_add(1.0); }, [&] { w.assign(vec({2})); },
      [&] { optimizer.apply_gradients(std::vector{Gradient(vec({1}))}); }};
  for (const auto& write : writes) {
    EXPECT_ERROR(mirrored(2)->run(write), kFailedPrecondition,
                 "of a strategy that did not create the variable");
    EXPECT_EQ(w.value().item(), 1.0f);
  }
  mirrored(1)->run([&] { w.assign_add(1.0); });
  EXPECT_EQ(w.value().item(), 2.0f);
  Variable own(vec({1}), {.allow_divergent = true});
  mirrored(2)->run([&] {
    if (ReplicaContext::current().replica_id() == 0) own.assign_add(1.0);
  });
  EXPECT_EQ(own.value().item(), 2.0f);
}

}  // namespace tutti::strategy_tests::scope_test
