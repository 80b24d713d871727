// Tests variables on servers in this process: placement, reads and changes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

#include <numeric>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/value_generator.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti::parameter_server_tests {

using strategy_tests::num;
using strategy_tests::numbers;
using strategy_tests::on_cpus;
using ::testing::ElementsAre;

ParameterServerOptions with_servers(int num_servers, Partitioner partitioner = {},
                                    int devices = 1) {
  return {.local = on_cpus(devices),
          .variable_partitioner = std::move(partitioner),
          .num_servers = num_servers};
}

/// Returns a tensor of this shape with elements `first`, `first` + 1, ...
Tensor counting(const Shape& shape, double first = 0.0) {
  std::vector<float> values(static_cast<std::size_t>(shape.num_elements()));
  std::iota(values.begin(), values.end(), static_cast<float>(first));
  return Tensor::from<float>(shape, values);
}

/// Returns an initializer whose values the servers generate.
Variable::Initializer generated(ValueGenerator::Kind kind, const Shape& shape, double a = 0.0,
                                double b = 1.0) {
  return generated_initializer({.kind = kind, .a = a, .b = b, .shape = shape});
}

std::string task(int server) { return concat("/job:ps/replica:0/task:", server, "/device:CPU:0"); }

std::vector<std::string> devices_of(const ParameterServerStrategy& strategy,
                                    const Variable& variable) {
  std::vector<std::string> devices;
  for (const ShardPlace& place : strategy.shards_of(variable)) devices.push_back(place.device);
  return devices;
}

std::vector<std::int64_t> rows_of(const ParameterServerStrategy& strategy,
                                  const Variable& variable) {
  std::vector<std::int64_t> rows;
  for (const ShardPlace& place : strategy.shards_of(variable)) rows.push_back(place.num_rows);
  return rows;
}

TEST(ParameterServerStrategy, VariablesArePlacedRoundRobin) {
  ParameterServerStrategy strategy(with_servers(3));
  const Variable outside(num(1.0), {.name = "outside"});
  EXPECT_ERROR((void)strategy.shards_of(outside), kInvalidArgument, "'outside'");
  const auto scope = strategy.scope();
  for (int i = 0; i < 7; ++i) {
    const Variable variable(num(i), {.name = concat("v", i)});
    EXPECT_THAT(devices_of(strategy, variable), ElementsAre(task(i % 3)));
    EXPECT_EQ(variable.value().item(), static_cast<float>(i));
  }
}

/// Creator that passes the call to `next`, if given, and otherwise puts the variable on cpu:5.
class ChoosingCreator final : public VariableCreator {
 public:
  explicit ChoosingCreator(VariableCreator* next = nullptr) : next_(next) {}
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override {
    ++num_asked;
    if (next_ != nullptr) return next_->create(initializer, key, std::move(options));
    const Device chosen{DeviceType::kCpu, 5};
    return make_local_storage(initializer({chosen, key}), chosen, std::move(options));
  }
  int num_asked = 0;

 private:
  VariableCreator* const next_;
};

TEST(ParameterServerStrategy, InnermostVariableCreatorDeterminesPlacement) {
  ParameterServerStrategy strategy(with_servers(3));
  const Device chosen{DeviceType::kCpu, 5};
  const auto make = [](const char* name) { return Variable(counting({2}), {.name = name}); };
  ChoosingCreator around;
  const VariableCreatorScope around_scope(around);
  EXPECT_THAT(make("outside").storage().devices(), ElementsAre(chosen));
  const auto scope = strategy.scope();
  EXPECT_THAT(devices_of(strategy, make("of the scope")), ElementsAre(task(0)));
  EXPECT_EQ(around.num_asked, 1) << "the strategy's scope is the inner one";
  {
    ChoosingCreator handing_on(&VariableCreator::current());
    const VariableCreatorScope inside(handing_on);
    EXPECT_THAT(devices_of(strategy, make("handed on")), ElementsAre(task(1)));
    EXPECT_EQ(handing_on.num_asked, 1);
    ChoosingCreator choosing;
    const VariableCreatorScope innermost(choosing);
    EXPECT_THAT(make("chosen").storage().devices(), ElementsAre(chosen));
  }
  const Variable last = make("last");
  EXPECT_THAT(devices_of(strategy, last), ElementsAre(task(2))) << "round robin continues";
  const ParameterServerStrategy::ColocationScope beside(strategy, last);
  EXPECT_THAT(devices_of(strategy, make("beside")), ElementsAre(task(2)));
}

TEST(ParameterServerStrategy, FirstShardsReceiveRemainderRows) {
  ParameterServerStrategy strategy(with_servers(2, FixedShardsPartitioner(2)));
  const auto scope = strategy.scope();
  const Variable odd(counting({5, 2}), {.name = "odd"});
  EXPECT_THAT(devices_of(strategy, odd), ElementsAre(task(0), task(1)));
  EXPECT_THAT(rows_of(strategy, odd), ElementsAre(3, 2));
  EXPECT_EQ(numbers(odd.value()), numbers(counting({5, 2})));
  const Variable even(counting({6, 1}), {.name = "even"});
  EXPECT_THAT(rows_of(strategy, even), ElementsAre(3, 3));
  ParameterServerStrategy whole(with_servers(2));
  const auto other = [&] {
    const auto inner = whole.scope();
    return Variable(counting({5, 2}), {.name = "whole"});
  };
  EXPECT_ERROR((void)other(), kFailedPrecondition, "Mixing different strategies");
}

// The embedding of tf's parameter server tutorial has rows for 7 names and one for unknown names:
// 512 KiB in shards of at least 256 KiB.
TEST(ParameterServerStrategy, TutorialEmbeddingHasTwoShardsOfFourRows) {
  ParameterServerStrategy strategy(with_servers(2, MinSizePartitioner(256 << 10, 2)));
  const auto scope = strategy.scope();
  const Variable embedding(counting({8, 16384}), {.name = "embedding"});
  EXPECT_THAT(rows_of(strategy, embedding), ElementsAre(4, 4));
  EXPECT_THAT(devices_of(strategy, embedding), ElementsAre(task(0), task(1)));
  EXPECT_EQ(numbers(embedding.value()), numbers(counting({8, 16384})));
  const Variable kernel(counting({16384, 1}), {.name = "kernel"});  // 64 KiB
  EXPECT_THAT(rows_of(strategy, kernel), ElementsAre(16384));
  EXPECT_THAT(devices_of(strategy, kernel), ElementsAre(task(0)));
}

TEST(ParameterServerStrategy, MoreShardsThanServersArePlacedRoundRobin) {
  ParameterServerStrategy strategy(with_servers(2, FixedShardsPartitioner(4)));
  const auto scope = strategy.scope();
  const Variable variable(counting({10}), {.name = "v"});
  EXPECT_THAT(rows_of(strategy, variable), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(devices_of(strategy, variable), ElementsAre(task(0), task(1), task(0), task(1)));
  EXPECT_EQ(numbers(variable.value()), numbers(counting({10})));
}

TEST(ParameterServerStrategy, ColocatedVariableIsStoredUnshardedOnShardServer) {
  ParameterServerStrategy strategy(with_servers(3, FixedShardsPartitioner(2)));
  const auto scope = strategy.scope();
  const Variable variable(counting({4, 2}), {.name = "v"});
  for (const int shard : {0, 1}) {
    const ParameterServerStrategy::ColocationScope beside(strategy, variable, shard);
    const Variable other(counting({6, 3}), {.name = concat("beside ", shard)});
    EXPECT_THAT(devices_of(strategy, other), ElementsAre(task(shard)));
  }
  const Variable after(counting({4}), {.name = "after"});
  EXPECT_THAT(devices_of(strategy, after), ElementsAre(task(2), task(0)));
  EXPECT_ERROR(ParameterServerStrategy::ColocationScope(strategy, variable, 2), kInvalidArgument,
               "expected 0 .. 1");
}

TEST(ParameterServerStrategy, ReplicaAssignmentsAreSummed) {
  const testing::HangWatchdog watchdog("assignments in replicas");
  for (const int replicas : {1, 2, 3}) {
    ParameterServerStrategy strategy(with_servers(2, FixedShardsPartitioner(3), replicas));
    const auto scope = strategy.scope();
    Variable v(Tensor::zeros({8}), {.name = "v", .aggregation = VariableAggregation::kSum});
    strategy.run([&] {
      const auto replica = static_cast<float>(ReplicaContext::current().replica_id());
      v.assign(Tensor::from<float>({8}, {replica + 10, 1, 2, 3, 4, 5, 6, 7},
                                   ReplicaContext::current().device()));
    });
    std::vector<double> expected;
    for (int i = 0; i < 8; ++i) expected.push_back(i * replicas);
    for (int r = 0; r < replicas; ++r) expected[0] += r + 10;
    EXPECT_EQ(numbers(v.value()), expected) << replicas << " replicas";
  }
}

TEST(ParameterServerStrategy, InitialValuesDoNotDependOnShardCount) {
  const Shape shape{4, 4};
  using Kind = ValueGenerator::Kind;
  const std::vector<std::pair<const char*, Variable::Initializer>> initializers = {
      {"constant", generated(Kind::kConstant, shape, 2.5)},
      {"uniform", generated(Kind::kUniform, shape, -1.0, 1.0)},
      {"normal", generated(Kind::kNormal, shape)},
      {"truncated normal", generated(Kind::kTruncatedNormal, shape)},
      {"identity", generated(Kind::kIdentity, shape, 1.0)},
      {"a function", [](const InitializerContext&) {
         return counting({4, 4});
       }}};
  const auto values = [](const Variable::Initializer& initializer, std::int64_t shards) {
    set_random_seed(7);
    ParameterServerStrategy strategy(with_servers(2, FixedShardsPartitioner(shards)));
    const auto scope = strategy.scope();
    return numbers(Variable(initializer, {.name = "v"}).value());
  };
  const auto local = [](const Variable::Initializer& initializer) {
    set_random_seed(7);
    return numbers(Variable(initializer, {.name = "v"}).value());
  };
  for (const auto& [name, initializer] : initializers) {
    SCOPED_TRACE(name);
    const std::vector<double> expected = local(initializer);
    for (const std::int64_t shards : {1, 2, 3}) EXPECT_EQ(values(initializer, shards), expected);
  }
  EXPECT_THAT(values(initializers[4].second, 2),
              ElementsAre(1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1));
}

TEST(ParameterServerStrategy, AssignmentsAreSplitByShard) {
  ParameterServerStrategy strategy(with_servers(2, FixedShardsPartitioner(3)));
  const auto scope = strategy.scope();
  const Variable variable(Tensor::from<float>({4, 2}, {0, 0, 1, 1, 2, 2, 3, 3}), {.name = "v"});
  EXPECT_THAT(rows_of(strategy, variable), ElementsAre(2, 1, 1));
  Variable written = variable;
  written.assign_add(Tensor::from<float>({4, 2}, {1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_THAT(numbers(variable.value()), ElementsAre(1, 1, 2, 2, 4, 4, 5, 5));
  written.assign_sub(Tensor::from<float>({4, 2}, {0, 0, 1, 1, 1, 1, 3, 3}));
  EXPECT_THAT(numbers(variable.value()), ElementsAre(1, 1, 1, 1, 3, 3, 2, 2));
  written.assign(Tensor::from<float>({4, 2}, {4, 4, 5, 5, 6, 6, 7, 7}));
  EXPECT_THAT(numbers(variable.value()), ElementsAre(4, 4, 5, 5, 6, 6, 7, 7));
}

TEST(ParameterServerStrategy, RowsAreScatteredToTheirShards) {
  ParameterServerStrategy strategy(with_servers(2, FixedShardsPartitioner(3)));
  const auto scope = strategy.scope();
  Variable variable(counting({5, 1}), {.name = "v"});
  const Tensor rows = Tensor::from<std::int64_t>({3}, {4, 0, 4});
  variable.scatter_add({Tensor::from<float>({3, 1}, {10, 20, 30}), rows, {5, 1}});
  EXPECT_THAT(numbers(variable.value()), ElementsAre(20, 1, 2, 3, 44));
  const Tensor outside = Tensor::from<std::int64_t>({1}, {5});
  EXPECT_ERROR(variable.scatter_add({Tensor::from<float>({1, 1}, {1}), outside, {5, 1}}),
               kInvalidArgument, "expected 0 .. 4, got 5");
}

TEST(ParameterServerStrategy, VariablesWithEqualNamesAreIndependent) {
  ParameterServerStrategy strategy(with_servers(1));
  const auto scope = strategy.scope();
  Variable first(num(1.0), {.name = "w"});
  const Variable second(num(2.0), {.name = "w"});
  first.assign(5.0);
  EXPECT_EQ(first.value().item(), 5.0F);
  EXPECT_EQ(second.value().item(), 2.0F);
}

TEST(ParameterServerStrategy, ShardedUpdateEqualsUnshardedUpdateBitForBit) {
  const auto trained = [](Strategy& strategy, const OptimizerSpec& spec) {
    set_random_seed(3);
    const auto scope = strategy.scope();
    const std::vector<Variable> variables = {
        Variable(generated(ValueGenerator::Kind::kUniform, {7, 5}, -0.5, 0.5), {.name = "w"}),
        Variable(generated(ValueGenerator::Kind::kNormal, {5}), {.name = "b"})};
    const auto optimizer = make_optimizer(spec, variables);
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        GradientTape tape;
        const Tensor y =
            matmul(counting({2, 7}, step), variables[0].value()) + variables[1].value();
        optimizer->minimize(tape, reduce_mean(square(y)));
      });
    }
    return hash_variables(variables);
  };
  for (const char* name : {"sgd", "adam", "adamw", "adagrad", "rmsprop", "ftrl", "lion"}) {
    SCOPED_TRACE(name);
    OneDeviceStrategy alone("cpu:0");
    ParameterServerStrategy whole(with_servers(2));
    ParameterServerStrategy cut(with_servers(2, FixedShardsPartitioner(3)));
    const std::string expected = trained(alone, name);
    EXPECT_EQ(trained(whole, name), expected);
    EXPECT_EQ(trained(cut, name), expected);
  }
}

TEST(ParameterServerStrategy, NormBasedRuleRejectsShardedVariable) {
  ParameterServerStrategy strategy(with_servers(2, FixedShardsPartitioner(2)));
  const auto scope = strategy.scope();
  const std::vector<Variable> variables = {Variable(counting({4, 2}), {.name = "w"})};
  Lamb optimizer(variables);
  const auto step = [&] {
    GradientTape tape;
    optimizer.minimize(tape, reduce_sum(square(variables[0].value())));
  };
  EXPECT_ERROR(strategy.run(step), kUnimplemented, "norms of the whole variable");
}

TEST(ParameterServerStrategy, RejectedChangeDoesNotAffectLaterChanges) {
  ParameterServerStrategy strategy(with_servers(1));
  const auto scope = strategy.scope();
  Variable counts(Tensor::full({2}, 6.0, DType::kInt64), {.name = "counts"});
  const auto divide_by = [&](std::int64_t divisor) {
    counts.scatter_div({Tensor::from<std::int64_t>({1}, {divisor}),
                        Tensor::from<std::int64_t>({1}, {1}), Shape{2}});
  };
  EXPECT_ERROR(divide_by(0), kInvalidArgument, "by zero");
  divide_by(3);
  EXPECT_THAT(numbers(counts.value()), ElementsAre(6, 2));
}

TEST(ParameterServerStrategy, ReadAfterAssignmentSeesSumOverReplicas) {
  ParameterServerStrategy strategy(with_servers(2, {}, 2));
  const auto scope = strategy.scope();
  Variable counter(num(0.0), {.name = "n", .aggregation = VariableAggregation::kSum});
  for (int step = 0; step < 5; ++step) {
    const PerReplica<Tensor> seen = strategy.run([&] {
      const Tensor before = counter.value();
      counter.assign_add(before * 0.0F + 1.0F);
      return counter.value() - before;
    });
    EXPECT_THAT(numbers(seen), ElementsAre(2, 2));
  }
  EXPECT_EQ(counter.value().item(), 10.0F);
}

}  // namespace tutti::parameter_server_tests
