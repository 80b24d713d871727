// Tests variables that are synchronised on read.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::strategy_tests {
namespace {

class SyncOnRead : public ::testing::Test {
 protected:
  Variable make(const Tensor& initial, VariableAggregation aggregation) {
    const auto scope = strategy_->scope();
    return on_read(initial, aggregation);
  }
  Variable make(double initial, VariableAggregation aggregation) {
    return make(Tensor::scalar(initial, DType::kFloat32), aggregation);
  }
  /// In each replica, assigns its number plus `first`.
  void assign_ids(Variable v, double first = 0.0) {
    strategy_->run([&] { v.assign(num(first + replica_number())); });
  }

  testing::HangWatchdog watchdog_{"a sync-on-read variable"};
  std::unique_ptr<MirroredStrategy> strategy_ = mirrored(2);
};

std::vector<double> two(double x) { return {x, x}; }

TEST_F(SyncOnRead, WritesInReplicasAreLocalAndOthersGoToEveryComponent) {
  for (const auto aggregation :
       {VariableAggregation::kNone, VariableAggregation::kSum, VariableAggregation::kMean,
        VariableAggregation::kOnlyFirstReplica}) {
    Variable v = make(0.0, aggregation);
    EXPECT_FALSE(v.trainable());
    strategy_->run([&] { v.assign(num(1, DType::kInt32)); });
    EXPECT_EQ(components(v), two(1));
    strategy_->run([&] { v.assign_add(1.0); });
    EXPECT_EQ(components(v), two(2));
    strategy_->run([&] { v.assign_sub(-1.0); });
    EXPECT_EQ(components(v), two(3));
    if (aggregation == VariableAggregation::kSum) continue;  // tested below
    v.assign(1.0);
    EXPECT_EQ(components(v), two(1));
    v.assign_add(1.0);
    EXPECT_EQ(components(v), two(2));
    v.assign_sub(-1.0);
    EXPECT_EQ(components(v), two(3));
  }
}

// Same as tf.Variable, also in 2.21: ON_READ only changes the default of `trainable` to False.
TEST_F(SyncOnRead, IsTrainedWhereAskedAndEachComponentGetsTheSumOfTheGradients) {
  const auto scope = strategy_->scope();
  const Variable v(num(0.0), {.name = "v",
                              .trainable = true,
                              .synchronization = VariableSynchronization::kOnRead,
                              .aggregation = VariableAggregation::kMean});
  Sgd optimizer(std::vector<Variable>{v}, {.learning_rate = 0.5});
  EXPECT_TRUE(v.trainable());
  assign_ids(v);
  strategy_->run([&] {
    GradientTape tape;  // watches trainable variables
    optimizer.minimize(tape, v.value() * (1.0f + replica_number()));
  });
  EXPECT_EQ(components(v), (std::vector<double>{-1.5, -0.5}));
  EXPECT_EQ(v.value().item(), -1.0f);
}

TEST_F(SyncOnRead, AssignUnderSumDividesTheValue) {
  Variable v = make(0.0, VariableAggregation::kSum);
  v.assign(2.0);
  EXPECT_EQ(components(v), two(1));
  v.assign(6.0);
  EXPECT_EQ(components(v), two(3));
  EXPECT_EQ(v.value().item(), 6.0f);
  EXPECT_INVALID(v.assign_add(1.0), "assign_add");
  EXPECT_INVALID(v.assign_sub(1.0), "assign_sub");
}

TEST_F(SyncOnRead, IntegersUnderSumKeepTheirSum) {
  Variable v = make(Tensor::scalar(0, DType::kInt64), VariableAggregation::kSum);
  v.assign(7.0);
  EXPECT_EQ(components(v), (std::vector<double>{4, 3}));
  EXPECT_EQ(v.value().item_int(), 7);
  v.assign(-7.0);
  EXPECT_EQ(components(v), (std::vector<double>{-4, -3}));
}

TEST_F(SyncOnRead, ReadOutsideGivesTheAggregate) {
  Variable sum = make(0.0, VariableAggregation::kSum);
  assign_ids(sum);
  EXPECT_EQ(sum.value().item(), 1.0f);
  EXPECT_EQ((sum + 0.0f).item(), 1.0f);
  Variable mean = make(0.0, VariableAggregation::kMean);
  assign_ids(mean);
  EXPECT_EQ(mean.value().item(), 0.5f);
  Variable first = make(5.0, VariableAggregation::kOnlyFirstReplica);
  assign_ids(first);
  EXPECT_EQ(first.value().item(), 0.0f);
}

TEST_F(SyncOnRead, ReadWithoutAggregationIsRefusedOutsideReplicas) {
  Variable v = make(1.0, VariableAggregation::kNone);
  EXPECT_INVALID((void)v.value(), "aggregation NONE");
  EXPECT_EQ(numbers(strategy_->run([&] { return v.value(); })), two(1));
}

TEST_F(SyncOnRead, EachComponentStartsWithTheInitialValue) {
  Variable sum = make(1.0, VariableAggregation::kSum);
  EXPECT_EQ(sum.value().item(), 2.0f);
  Variable mean = make(1.0, VariableAggregation::kMean);
  EXPECT_EQ(mean.value().item(), 1.0f);
  mean.assign(6.0);
  EXPECT_EQ(mean.value().item(), 6.0f);
}

TEST_F(SyncOnRead, CheckpointHoldsAggregateAndComponents) {
  Variable sum = make(0.0, VariableAggregation::kSum);
  sum.storage().restore(lookup_in({{"v/replica_0", Tensor(4.0f)}, {"v/replica_1", Tensor(3.0f)}}));
  const auto saved_sum = sum.storage().save();
  ASSERT_EQ(saved_sum.size(), 3U);
  EXPECT_EQ(saved_sum[0].name, "v");
  EXPECT_EQ(saved_sum[0].value.item(), 7.0f);
  EXPECT_EQ(saved_sum[2].name, "v/replica_1");

  sum.assign(0.0);
  sum.storage().restore(lookup_in(saved_sum));
  EXPECT_EQ(components(sum), (std::vector<double>{4, 3}));  // exact, unlike in tf
  sum.storage().restore(lookup_in({saved_sum[0]}));
  EXPECT_EQ(components(sum), two(3.5));  // tf restores from the aggregate

  Variable mean = make(0.0, VariableAggregation::kMean);
  mean.storage().restore(lookup_in({saved_sum[1], saved_sum[2]}));
  const auto saved_mean = mean.storage().save();
  EXPECT_EQ(saved_mean[0].value.item(), 3.5f);
  mean.storage().restore(lookup_in({saved_mean[0]}));
  EXPECT_EQ(components(mean), two(3.5));

  Variable plain(Tensor(0.0f), {.name = "v"});
  plain.storage().restore(lookup_in(saved_sum));
  EXPECT_EQ(plain.value().item(), 7.0f);
  plain.storage().restore(lookup_in(saved_mean));
  EXPECT_EQ(plain.value().item(), 3.5f);
  plain.assign(2.0);
  sum.storage().restore(lookup_in(plain.storage().save()));
  EXPECT_EQ(components(sum), two(1));
  mean.storage().restore(lookup_in(plain.storage().save()));
  EXPECT_EQ(components(mean), two(2));
}

TEST_F(SyncOnRead, OtherNumberOfReplicasRestoresTheAggregate) {
  const auto three = mirrored(3);
  const auto saved = [&] {
    const auto scope = three->scope();
    return on_read(Tensor(2.0f), VariableAggregation::kSum).storage().save();
  }();
  Variable v = make(0.0, VariableAggregation::kSum);
  v.storage().restore(lookup_in(saved));
  EXPECT_EQ(components(v), two(3));
  EXPECT_ERROR(v.storage().restore(lookup_in({})), kNotFound, "'v'");
}

TEST_F(SyncOnRead, MeanWeighsReplicasByTheirUpdates) {
  Variable v = make(0.0, VariableAggregation::kMean);
  EXPECT_EQ(v.value().item(), 0.0f) << "without updates all count alike";
  const auto update_in = [&](int replica, double value) {
    strategy_->run([&] {
      if (replica_number() == replica) v.assign(value);
    });
  };
  update_in(1, 8.0);
  EXPECT_EQ(v.value().item(), 8.0f) << "replica 0 made none";
  update_in(0, 4.0);
  EXPECT_EQ(v.value().item(), 6.0f);
  update_in(1, 8.0);
  EXPECT_FLOAT_EQ(v.value().item(), (4.0f + 2.0f * 8.0f) / 3.0f);
  v.assign(1.0);  // resets all components
  update_in(0, 5.0);
  EXPECT_EQ(v.value().item(), 5.0f);
}

TEST_F(SyncOnRead, NumbersOfUpdatesAreSavedAndFilesWithoutThemAreRead) {
  Variable v = make(0.0, VariableAggregation::kMean);
  strategy_->run([&] {
    for (int i = 0; i < 1 + 2 * replica_number(); ++i) v.assign(num(4.0 + 4.0 * replica_number()));
  });
  ASSERT_EQ(v.value().item(), 7.0f);  // (4 + 3 * 8) / 4
  std::vector<NamedTensor> saved = v.storage().save();
  v.assign(0.0);
  v.storage().restore(lookup_in(saved));
  EXPECT_EQ(v.value().item(), 7.0f);
  ASSERT_EQ(saved.back().name, "v/replica_updates");
  saved.pop_back();  // format of earlier versions
  v.storage().restore(lookup_in(saved));
  EXPECT_EQ(components(v), (std::vector<double>{4, 8}));
  EXPECT_EQ(v.value().item(), 6.0f);
}

TEST_F(SyncOnRead, ScatterInReplicasIsUnimplemented) {
  using Scatter = void (Variable::*)(const IndexedSlices&);
  const std::vector<Scatter> scatters = {&Variable::scatter_sub,   &Variable::scatter_add,
                                         &Variable::scatter_div,   &Variable::scatter_mul,
                                         &Variable::scatter_min,   &Variable::scatter_max,
                                         &Variable::scatter_update};
  for (const auto aggregation : {VariableAggregation::kSum, VariableAggregation::kMean,
                                 VariableAggregation::kOnlyFirstReplica}) {
    Variable v = make(Tensor::from<float>({1}, {4}), aggregation);
    for (const Scatter scatter : scatters) {
      EXPECT_ERROR(strategy_->run([&] {
        const Device device = ReplicaContext::current().device();
        (v.*scatter)({Tensor::full({1}, 2.0, DType::kFloat32, device),
                      Tensor::from<std::int64_t>({1}, {0}, device), Shape{1}});
      }),
                   kUnimplemented, "scatter_");
    }
  }
}

TEST_F(SyncOnRead, AggregateOnReadScopeReadsTheAggregateInReplicas) {
  Variable v = make(0.0, VariableAggregation::kMean);
  const auto read = strategy_->run([&] {
    v.assign(num(replica_number()));
    const AggregateOnReadScope aggregate;
    return v.value();
  });
  EXPECT_EQ(numbers(read), two(0.5));
  EXPECT_EQ(read[1].device(), Device::parse("cpu:1"));
}

TEST_F(SyncOnRead, OneComponentPerReplicaAlsoOfSharedDevicesAndCentralStorage) {
  const std::unique_ptr<Strategy> shared = mirrored(1, 3), of_central = central(3);
  for (Strategy* const strategy : {shared.get(), of_central.get()}) {
    SCOPED_TRACE(strategy->name());
    const auto scope = strategy->scope();
    Variable v = on_read(Tensor(0.0f), VariableAggregation::kSum);
    strategy->run([&] { v.assign(num(replica_number())); });
    EXPECT_EQ(components(v), (std::vector<double>{0, 1, 2}));
    EXPECT_EQ(v.value().item(), 3.0f);
  }
}

}  // namespace
}  // namespace tutti::strategy_tests
