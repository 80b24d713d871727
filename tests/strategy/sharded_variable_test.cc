// Tests ShardedVariable and row lookups: tf's examples, gradients, and checkpoints with different
// numbers of shards.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/variables/sharded_variable.h"

#include <algorithm>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/embedding_lookup.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::sharded_variable_tests {

using strategy_tests::numbers;
using strategy_tests::on_cpus;
using ::testing::ElementsAre;

Tensor rows_of_two(std::vector<float> values) {
  return Tensor::from<float>({static_cast<std::int64_t>(values.size()) / 2, 2}, values);
}

using Parts = std::vector<std::vector<float>>;

ShardedVariable sharded(const Parts& parts, Tensor (*tensor_of)(std::vector<float>) = rows_of_two) {
  std::vector<Variable> variables;
  for (const auto& part : parts) variables.emplace_back(tensor_of(part));
  return ShardedVariable(variables, "s");
}

/// Returns a variable of shape [n] whose shards have the given values.
ShardedVariable vector_in_parts(const Parts& parts) { return sharded(parts, strategy_tests::vec); }

std::vector<std::vector<double>> parts_of(const ShardedVariable& variable) {
  std::vector<std::vector<double>> values;
  for (const Variable& part : variable.variables()) values.push_back(numbers(part.value()));
  return values;
}

Tensor ids(std::vector<std::int64_t> values) {
  return Tensor::from<std::int64_t>({static_cast<std::int64_t>(values.size())}, values);
}

/// Returns the table from tf's tests: [[1,2],[3,4]], [[5,6],[7,8]], [[9,10]].
ShardedVariable table() { return sharded({{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}}); }

TEST(ShardedVariable, AssignmentsAreSplitByShard) {
  const auto expect_parts = [](const auto& assign, const std::vector<std::vector<double>>& parts) {
    ShardedVariable variable = sharded({{0, 0}, {1, 1, 2, 2}, {3, 3}});
    assign(variable);
    EXPECT_EQ(parts_of(variable), parts);
  };
  expect_parts(
      [](auto& v) {
        v.assign(rows_of_two({4, 4, 5, 5, 6, 6, 7, 7}));
      },
      {{4, 4}, {5, 5, 6, 6}, {7, 7}});
  expect_parts(
      [](auto& v) {
        v.assign_add(rows_of_two({1, 1, 1, 1, 2, 2, 2, 2}));
      },
      {{1, 1}, {2, 2, 4, 4}, {5, 5}});
  expect_parts(
      [](auto& v) {
        v.assign_sub(rows_of_two({0, 0, 1, 1, 1, 1, 3, 3}));
      },
      {{0, 0}, {0, 0, 1, 1}, {0, 0}});
}

TEST(ShardedVariable, ReadConcatenatesShards) {
  const ShardedVariable variable = sharded({{0, 0}, {1, 1, 2, 2}, {3, 3}});
  EXPECT_EQ(variable.shape(), Shape({4, 2}));
  EXPECT_THAT(numbers(variable.value()), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
}

std::string saved(const Variable& variable) {
  return Checkpoint(std::vector<Variable>{variable}).save_to_bytes();
}

std::vector<std::vector<double>> restored(const ShardedVariable& variable,
                                          const std::string& bytes) {
  Checkpoint(std::vector<Variable>{variable}).restore_from_bytes(bytes, "a checkpoint");
  return parts_of(variable);
}

TEST(ShardedVariable, CheckpointRestoresIntoAnyNumberOfShards) {
  const std::string of_four = saved(vector_in_parts({{0}, {1}, {2}, {3}}));
  EXPECT_THAT(restored(vector_in_parts({{9, 9, 9, 9}}), of_four),
              ElementsAre(ElementsAre(0, 1, 2, 3)));
  EXPECT_THAT(restored(vector_in_parts({{9, 9}, {9, 9}}), of_four),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  const std::string of_one = saved(vector_in_parts({{5, 10, 15, 20}}));
  EXPECT_THAT(restored(vector_in_parts({{0}, {0}, {0}, {0}}), of_one),
              ElementsAre(ElementsAre(5), ElementsAre(10), ElementsAre(15), ElementsAre(20)));
}

TEST(ShardedVariable, DeferredRestoreFillsVariableCreatedLater) {
  const std::string path = ::testing::TempDir() + "tutti_four_parts.safetensors";
  Checkpoint(std::vector<Variable>{vector_in_parts({{0}, {1}, {2}, {3}})}).save(path);
  for (const auto& parts : {Parts{{9, 9, 9, 9}}, {{9, 9}, {9, 9}}}) {
    Checkpoint checkpoint;
    checkpoint.restore_deferred(path);
    const ShardedVariable variable = vector_in_parts(parts);
    checkpoint.add(std::vector<Variable>{variable});
    EXPECT_THAT(numbers(variable.value()), ElementsAre(0, 1, 2, 3));
  }
}

/// Observer that records the memory from which rows are gathered, and the largest number of rows in
/// an output.
class Gathers final : public OpObserver {
 public:
  void on_op(const OpCall& call, std::span<const Tensor> outputs) override {
    if (call.op == OpId::kGather) from_.push_back(call.inputs[0].bytes().data());
    for (const Tensor& output : outputs) {
      if (output.shape().rank() == 2) most_rows_ = std::max(most_rows_, output.shape().dim(0));
    }
  }
  /// Returns how many times rows of this shard were gathered.
  std::ptrdiff_t of(const Variable& part) const {
    return std::ranges::count(from_, part.value().bytes().data());
  }
  std::int64_t most_rows() const { return most_rows_; }

 private:
  std::vector<const std::byte*> from_;
  std::int64_t most_rows_ = 0;
  const ObserverScope scope_{*this};
};

TEST(ShardedVariable, LookupReadsEachShardOnceWithoutConcatenation) {
  const ShardedVariable variable = table();
  EXPECT_ERROR((void)embedding_lookup(variable, ids({0, 5})), kInvalidArgument,
               "expected 0 .. 4, got 5 at position 1");
  {
    const Gathers gathers;
    EXPECT_THAT(numbers(embedding_lookup(variable, ids({0, 3, 4}))),
                ElementsAre(1, 2, 7, 8, 9, 10));
    for (const Variable& part : variable.variables()) EXPECT_EQ(gathers.of(part), 1);
    EXPECT_EQ(gathers.most_rows(), 3);  // fewer than the table's five rows
  }
  const Gathers gathers;
  EXPECT_THAT(numbers(embedding_lookup(variable, ids({4, 0, 4}))), ElementsAre(9, 10, 1, 2, 9, 10));
  const auto parts = variable.variables();
  EXPECT_EQ(gathers.of(parts[0]), 1);
  EXPECT_EQ(gathers.of(parts[1]), 0);
  EXPECT_EQ(gathers.of(parts[2]), 1);
}

TEST(ShardedVariable, SparseIdsAreCombinedPerExample) {
  const SparseIds sparse{ids({0, 3, 4, 1}), ids({0, 0, 1, 2}), 3};
  EXPECT_THAT(numbers(embedding_lookup_sparse(table(), sparse)), ElementsAre(4, 5, 9, 10, 3, 4));
  EXPECT_THAT(numbers(embedding_lookup_sparse(table(), sparse, {}, Combiner::kSum)),
              ElementsAre(8, 10, 9, 10, 3, 4));
}

TEST(ShardedVariable, SafeLookupSkipsInvalidIds) {
  const SparseIds sparse{ids({0, -1, 4, 1}), ids({0, 0, 1, 2}), 4};
  const Tensor weights = Tensor::from<float>({4}, {1, 1, -1, 1});
  EXPECT_THAT(numbers(safe_embedding_lookup_sparse(table(), sparse, weights)),
              ElementsAre(1, 2, 0, 0, 3, 4, 0, 0));
}

// docs/deviations.md: functions are not traced, and a sharded variable counts as one variable.
TEST(ShardedVariable, RunArgumentKeepsVariableIdentity) {
  const ShardedVariable first = sharded({{1, 2}, {3, 4}}), second = sharded({{5, 6}, {7, 8}});
  auto strategy = strategy_tests::mirrored(2);
  int calls = 0;
  const auto sum = [&calls](const Variable& variable) {
    if (ReplicaContext::current().replica_id() == 0) ++calls;
    return reduce_sum(variable.value());
  };
  EXPECT_EQ(numbers(strategy->run(sum, first)), strategy_tests::copies_of(10, 2));
  EXPECT_EQ(numbers(strategy->run(sum, second)), strategy_tests::copies_of(26, 2));
  EXPECT_EQ(calls, 2);  // one call per run, because functions are not traced
  const auto same = strategy->run([&](const Variable& v) { return v == first; }, first);
  EXPECT_THAT(same.values(), ElementsAre(true, true));
  EXPECT_EQ(parts_of(second).size(), 2U);
  EXPECT_THAT(numbers(second.variables()[1].value()), ElementsAre(7, 8));
}

TEST(ShardedVariable, ListsShardsButSavesUnderOneName) {
  const ShardedVariable variable = sharded({{1, 2}, {3, 4}});
  EXPECT_EQ(variable.variables().size(), 2U);
  const std::vector<Variable> whole = {Variable(rows_of_two({0, 0, 0, 0}), {.name = "s"})};
  Checkpoint(whole).restore_from_bytes(saved(variable), "a checkpoint");
  EXPECT_THAT(numbers(whole.front().value()), ElementsAre(1, 2, 3, 4));
}

/// Based on tf's test_slicing; the 8 rows are in shards of 3, 3 and 2.
TEST(ShardedVariable, GetItemReadsAcrossShards) {
  const ShardedVariable variable =
      sharded({{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}, {13, 14, 15, 16}});
  const Tensor whole = variable.value();
  const std::vector<std::vector<Index>> indices = {
      {Range{}},
      {Range{2, 3}},
      {Range{1, 7}},
      {Range{6, 8}},
      {Range{{}, -1}},
      {Range{-3}},
      {Range{5, 5}},
      {Range{7, 20}},
      {0},
      {4},
      {-1},
      {2, 1},
      {5, Range{1}},
      {Range{2, 7}, -1},
      {Range{}, Range{0, 1}},
      {-8, Range{}},
  };
  for (const std::vector<Index>& each : indices) {
    const bool is_one = each.size() == 1;
    const Tensor part = is_one ? variable[each[0]] : variable[{each[0], each[1]}];
    const Tensor expected = is_one ? whole[each[0]] : whole[{each[0], each[1]}];
    EXPECT_EQ(part.shape(), expected.shape());
    EXPECT_EQ(numbers(part), numbers(expected));
  }
  EXPECT_ERROR((void)variable[8], kInvalidArgument,
               "expected an index in -8 .. 7 for axis 0 of shape [8, 2], got 8");
  EXPECT_ERROR((void)(variable[{0, 2}]), kInvalidArgument, "for axis 1");
}

TEST(ShardedVariable, GetItemGradientCoversOnlySelectedRows) {
  const ShardedVariable variable = table();
  GradientTape tape;
  const Tensor loss = reduce_sum(square(variable[{Range{1, 3}, 0}]));
  const Gradient gradient = tape.gradient(loss, std::vector<Variable>{variable})[0];
  ASSERT_TRUE(gradient.is_slices());
  EXPECT_EQ(numbers(gradient.slices().indices), (std::vector<double>{1, 2}));
  EXPECT_EQ(numbers(gradient.slices().values), (std::vector<double>{6, 0, 10, 0}));
}

TEST(ShardedVariable, GetItemReadsServerVariables) {
  const auto strategy = strategy_tests::parameter_server(2, 0, 3);
  const auto scope = strategy->scope();
  const Variable variable(rows_of_two({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), {.name = "table"});
  EXPECT_THAT(numbers(variable[{Range{1, 4}}]), ElementsAre(3, 4, 5, 6, 7, 8));
  const auto read = strategy->run([&] { return variable[{-1, 1}]; });
  EXPECT_THAT(numbers(read), ElementsAre(10, 10));
}

TEST(ShardedVariable, MismatchedShardsAreRejected) {
  EXPECT_ERROR(ShardedVariable(std::vector<Variable>{}), kInvalidArgument,
               "expected variables, got none");
  const Variable two(Tensor::zeros({3, 2}), {.name = "two"});
  const Variable four(Tensor::zeros({3, 4}), {.name = "four"});
  const Variable scalar(Tensor::zeros({}), {.name = "scalar"});
  EXPECT_ERROR(ShardedVariable({two, four}), kInvalidArgument, "part 1, 'four'");
  EXPECT_ERROR(ShardedVariable({scalar}), kInvalidArgument, "part 0, 'scalar'");
}

// tf's error: "`SaveSliceInfo` should not be set for all elements in argument `variables`".
TEST(ShardedVariable, ShardsAlreadyInUseAreRejected) {
  const Variable first(rows_of_two({1, 2}), {.name = "first"});
  const Variable second(rows_of_two({3, 4}), {.name = "second"});
  const Variable third(rows_of_two({5, 6}), {.name = "third"});
  {
    const ShardedVariable one({first, second}, "one");
    const std::vector<Variable> both = {one};
    const Adam adam(both);  // its slots are sharded, too
    EXPECT_ERROR(ShardedVariable({third, second}, "other"), kInvalidArgument,
                 "'other': 'second' is already a part of another ShardedVariable");
    const ShardedVariable refused_ones_are_free({third});
    EXPECT_THAT(numbers(one.value()), ElementsAre(1, 2, 3, 4));
  }
  EXPECT_ERROR(ShardedVariable({third, third}), kInvalidArgument,
               "expected 2 different variables, got 1");
  EXPECT_THAT(numbers(ShardedVariable({second, first}).value()), ElementsAre(3, 4, 1, 2));
}

TEST(ShardedVariable, OptimizerMatchesUnshardedVariableBitForBit) {
  const auto trained = [](const Variable& variable) {
    const std::vector<Variable> variables = {variable};
    Adam adam(variables);
    for (int step = 0; step < 3; ++step) {
      GradientTape tape;
      const Tensor rows = embedding_lookup(variable, ids({1, 3, 1}));
      adam.minimize(tape, reduce_sum(square(rows)) + reduce_sum(variable.value()));
    }
    return numbers(variable.value());
  };
  const Variable whole(rows_of_two({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), {.name = "w"});
  EXPECT_EQ(trained(table()), trained(whole));
}

TEST(ShardedVariable, SparseLookupGradientMatchesFiniteDifferences) {
  const SparseIds sparse{ids({0, 3, 3, 4, 1}), ids({0, 0, 0, 1, 1}), 2};
  const Tensor weights = Tensor::from<double>({5}, {0.5, 2.0, 1.5, 3.0, 0.25});
  const auto loss = [&](const Variable& params, Combiner combiner) {
    const Tensor y = embedding_lookup_sparse(params, sparse, weights, combiner);
    return reduce_sum(square(y));
  };
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
    Variable params(Tensor::from<double>({5, 1}, {0.3, -1.2, 0.7, 0.9, -0.4}), {.name = "p"});
    GradientTape tape;
    const Tensor value = loss(params, combiner);
    const Tensor gradient = tape.gradient(value, std::vector<Variable>{params})[0].to_dense();
    for (std::int64_t row = 0; row < 5; ++row) {
      const auto shifted = [&](double by) {
        std::vector<double> values = numbers(params.value());
        values[static_cast<std::size_t>(row)] += by;
        const Variable other(Tensor::from<double>({5, 1}, values), {.name = "q"});
        return loss(other, combiner).to_doubles()[0];
      };
      const double slope = (shifted(1e-6) - shifted(-1e-6)) / 2e-6;
      EXPECT_NEAR(numbers(gradient)[static_cast<std::size_t>(row)], slope, 1e-6);
    }
  }
}

TEST(ShardedVariable, ServerLookupsMatchLocalTrainingBitForBit) {
  const auto trained = [](Strategy& strategy) {
    const auto scope = strategy.scope();
    std::vector<float> values;
    for (int i = 0; i < 40; ++i) values.push_back(static_cast<float>(i) * 0.25F);
    const std::vector<Variable> variables = {Variable(rows_of_two(values), {.name = "table"})};
    Sgd sgd(variables, {.learning_rate = 0.1});
    for (int step = 0; step < 3; ++step) {
      strategy.run([&] {
        GradientTape tape;
        const Device device = ReplicaContext::current().device();
        const Tensor rows = embedding_lookup(variables[0], ids({3, 17, 3, step}).to(device));
        sgd.minimize(tape, reduce_sum(square(rows)));
      });
    }
    return hash_variables(variables);
  };
  ParameterServerStrategy servers(
      {.local = on_cpus(2), .variable_partitioner = FixedShardsPartitioner(4), .num_servers = 3});
  EXPECT_EQ(trained(servers), trained(*strategy_tests::mirrored(2)));
}

}  // namespace tutti::sharded_variable_tests
