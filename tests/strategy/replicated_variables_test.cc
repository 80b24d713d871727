// Tests variables that are synchronized on write or on read.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::strategy_tests::replicated_variables_test {

constexpr VariableAggregation kAllAggregations[] = {
    VariableAggregation::kNone, VariableAggregation::kSum, VariableAggregation::kMean,
    VariableAggregation::kOnlyFirstReplica};

/// Fixture with two replicas on two devices, and variables of their strategy.
class TwoReplicas : public ::testing::Test {
 protected:
  virtual Variable new_variable(const Tensor& initial, VariableAggregation aggregation) {
    return Variable(initial, {.name = "v", .aggregation = aggregation});
  }
  Variable make(const Tensor& initial, VariableAggregation aggregation) {
    const auto scope = strategy_->scope();
    return new_variable(initial, aggregation);
  }
  Variable make(double initial, VariableAggregation aggregation) {
    return make(Tensor::scalar(initial, DType::kFloat32), aggregation);
  }

  testing::HangWatchdog watchdog_{"a variable"};
  std::unique_ptr<MirroredStrategy> strategy_ = mirrored(2);
};

class MirroredVariable : public TwoReplicas {
 protected:
  /// Returns a variable without aggregation, whose components may diverge.
  Variable make_divergent(const Tensor& initial) {
    const auto scope = strategy_->scope();
    return Variable(initial, {.name = "v", .allow_divergent = true});
  }
};

std::vector<double> both(double x) { return {x, x}; }

TEST_F(MirroredVariable, WritesReachEveryComponent) {
  struct Case {
    double before;
    std::function<void(Variable&)> write;
    double after;
  };
  const Variable source = make(2.0, VariableAggregation::kMean);
  const Case cases[] = {{0, [](Variable& v) { v.assign(1.0); }, 1},
                        {1, [](Variable& v) { v.assign_add(5.0); }, 6},
                        {5, [](Variable& v) { v.assign_sub(1.0); }, 4},
                        {0, [&](Variable& v) { v.assign(source.value()); }, 2}};
  for (const auto aggregation : kAllAggregations) {
    Variable v = make(0.0, aggregation);
    EXPECT_EQ(v.storage().devices(), strategy_->worker_devices());
    const auto expect_after = [&](const Case& each, const std::function<void()>& write) {
      SCOPED_TRACE(concat(aggregation, ": from ", each.before, " to ", each.after));
      v.assign(each.before);
      write();
      EXPECT_EQ(components(v), both(each.after));
      EXPECT_EQ(v.value().item(), static_cast<float>(each.after));
    };
    for (const Case& each : cases) {
      const auto write = [&] { each.write(v); };
      expect_after(each, write);
      expect_after(each, [&] {
        const auto scope = strategy_->scope();
        write();
      });
      // If all replicas write the same value, only kMean and kOnlyFirstReplica store that value.
      if (aggregation != VariableAggregation::kMean &&
          aggregation != VariableAggregation::kOnlyFirstReplica) {
        continue;
      }
      expect_after(each, [&] { strategy_->run(write); });
    }
  }
  const Case by_replica[] = {{1, [](Variable& v) { v.assign(num(replica_number())); }, 0.5},
                             {1, [](Variable& v) { v.assign_add(num(replica_number())); }, 1.5},
                             {5, [](Variable& v) { v.assign_sub(num(replica_number())); }, 4.5}};
  Variable mean = make(0.0, VariableAggregation::kMean);
  for (const Case& each : by_replica) {
    SCOPED_TRACE(concat("from ", each.before, " to ", each.after));
    mean.assign(each.before);
    strategy_->run([&] { each.write(mean); });
    EXPECT_EQ(components(mean), both(each.after));
  }
}

TEST_F(MirroredVariable, WriteWithoutAggregationFailsUnlessDivergenceIsPermitted) {
  Variable v = make(0.0, VariableAggregation::kNone);
  EXPECT_ERROR(strategy_->run([&] { v.assign(1.0); }), kFailedPrecondition, "Variable 'v'.assign");
  Variable permitted = make_divergent(Tensor(0.0f));
  strategy_->run([&] { permitted.assign_add(1.0); });
  EXPECT_EQ(components(permitted), both(1));
  strategy_->run([&] { permitted.assign(num(replica_number())); });
  EXPECT_EQ(components(permitted), (std::vector<double>{0, 1}));
}

TEST_F(MirroredVariable, AssigningConstantUnderSumFails) {
  Variable v = make(0.0, VariableAggregation::kSum);
  EXPECT_INVALID(strategy_->run([&] { v.assign(5.0); }), "SUM");
  strategy_->run([&] { v.assign(num(5.0)); });
  EXPECT_EQ(components(v), both(10));
}

TEST_F(MirroredVariable, EachReplicaReadsItsOwnComponent) {
  for (const auto aggregation : kAllAggregations) {
    const Variable v = make(3.0, aggregation);
    const auto read = strategy_->run([&] { return v.value(); });
    EXPECT_EQ(numbers(read), both(3));
    EXPECT_EQ(read[0].device(), Device::parse("cpu:0"));
    EXPECT_EQ(read[1].device(), Device::parse("cpu:1"));
    const auto scope = strategy_->scope();
    EXPECT_EQ(v.value().item(), 3.0f);
  }
}

TEST_F(MirroredVariable, OperatorsReadVariableValue) {
  const Variable v = make(1.0, VariableAggregation::kSum);
  EXPECT_EQ((v + 1.0f).item(), 2.0f);
  EXPECT_EQ(numbers(strategy_->run([&] { return v + 1.0f; })), both(2));
}

TEST_F(MirroredVariable, SavedValueRestoresAcrossPlacements) {
  for (const auto aggregation : kAllAggregations) {
    Variable v = make(2.0, aggregation);
    const auto saved = v.storage().save();
    ASSERT_EQ(saved.size(), 1U);
    EXPECT_EQ(saved[0].name, "v");
    v.assign(9.0);
    v.storage().restore(lookup_in(saved));
    EXPECT_EQ(components(v), both(2));
    Variable plain(Tensor(0.0f), {.name = "v"});
    plain.storage().restore(lookup_in(saved));
    EXPECT_EQ(plain.value().item(), 2.0f);
    plain.assign(3.0);
    v.storage().restore(lookup_in(plain.storage().save()));
    EXPECT_EQ(components(v), both(3));
  }
}

IndexedSlices row(std::int64_t index, double value, std::int64_t rows,
                  DType dtype = DType::kFloat32) {
  return {filled({1}, value, dtype), Tensor::from<std::int64_t>({1}, {index}, here()), Shape{rows}};
}

TEST_F(MirroredVariable, LinearScatterOperationsCombineReplicaRows) {
  Variable ints = make(Tensor::from<std::int32_t>({3}, {1, 6, 1}), VariableAggregation::kSum);
  strategy_->run([&] {
    const int r = ReplicaContext::current().replica_id();
    ints.scatter_div(row(r, r + 2, 3, DType::kInt32));
  });
  EXPECT_EQ(numbers(ints.value()), (std::vector<double>{0, 2, 1}));
  Variable floats = make(Tensor::from<float>({3}, {2, 1, 1}), VariableAggregation::kMean);
  strategy_->run([&] {
    const int r = ReplicaContext::current().replica_id();
    floats.scatter_mul(row(r, r + 2, 3));
  });
  for (const Tensor& each : floats.storage().local_components()) {
    EXPECT_EQ(numbers(each), (std::vector<double>{2, 1.5, 1}));
  }
}

TEST_F(MirroredVariable, ScatterMinMaxAndUpdateRequireFirstReplicaAggregation) {
  Variable sum = make(Tensor::from<float>({3}, {0, 2, 0}), VariableAggregation::kSum);
  Variable v = make(Tensor::from<float>({3}, {0, 2, 0}), VariableAggregation::kOnlyFirstReplica);
  struct Case {
    const char* name;
    void (Variable::*scatter)(const IndexedSlices&);
    double value;
    std::vector<double> expected;
  };
  for (const Case& each : {Case{"scatter_min", &Variable::scatter_min, 1, {0, 1, 0}},
                           Case{"scatter_max", &Variable::scatter_max, 2, {0, 2, 0}},
                           Case{"scatter_update", &Variable::scatter_update, 3, {0, 3, 0}}}) {
    SCOPED_TRACE(each.name);
    EXPECT_ERROR(strategy_->run([&] { (sum.*each.scatter)(row(1, 1, 3)); }), kUnimplemented,
                 each.name);
    strategy_->run([&] { (v.*each.scatter)(row(1, each.value, 3)); });
    EXPECT_EQ(numbers(v.value()), each.expected);
  }
}

TEST_F(MirroredVariable, ScatterWithoutAggregationIsLocal) {
  Variable refused = make(Tensor::from<float>({1}, {4}), VariableAggregation::kNone);
  EXPECT_ERROR(strategy_->run([&] { refused.scatter_sub(row(0, 2, 1)); }), kFailedPrecondition,
               "allow_divergent");
  Variable v = make_divergent(Tensor::from<float>({1}, {4}));
  const auto expect_after = [&](void (Variable::*scatter)(const IndexedSlices&), double expected) {
    strategy_->run([&] { (v.*scatter)(row(0, 2, 1)); });
    EXPECT_EQ(components(v), both(expected));
  };
  expect_after(&Variable::scatter_sub, 2);
  expect_after(&Variable::scatter_add, 4);
  expect_after(&Variable::scatter_max, 4);
  expect_after(&Variable::scatter_min, 2);
  expect_after(&Variable::scatter_mul, 4);
  expect_after(&Variable::scatter_div, 2);
  expect_after(&Variable::scatter_update, 2);
}

TEST_F(MirroredVariable, MeanOfIntegersRequiresEqualValues) {
  Variable v = make(Tensor::scalar(1, DType::kInt32), VariableAggregation::kMean);
  EXPECT_INVALID(strategy_->run([&] { v.assign(num(replica_number(), DType::kInt32)); }),
                 "Variable 'v'");
  strategy_->run([&] { v.assign(num(7, DType::kInt32)); });
  EXPECT_EQ(components(v), both(7));
  strategy_->run([&] { v.assign_add(1.0); });
  EXPECT_EQ(components(v), both(8));
}

TEST_F(MirroredVariable, UpdateIsCalledPerComponent) {
  Variable v = make(0.0, VariableAggregation::kNone);
  const PerReplica<Tensor> values({Tensor(1.0f), Tensor(2.0f)});
  using Update = std::function<void(Variable&, const Tensor&)>;
  const auto updated = [&](const Update& update) {
    strategy_->update(v, update, values);
    return components(v);
  };
  using Numbers = std::vector<double>;
  EXPECT_EQ(updated([](auto& each, auto& x) { each.assign(x); }), (Numbers{1, 2}));
  EXPECT_EQ(updated([](auto& each, auto& x) { each.assign_add(x); }), (Numbers{2, 4}));
  EXPECT_EQ(updated([](auto& each, auto& x) { each.assign_sub(x); }), (Numbers{1, 2}));
  EXPECT_EQ(updated([](auto& each, auto&) { each.assign_add(each.value() + each.value()); }),
            (Numbers{3, 6}));
  std::vector<std::string> names;
  updated([&](auto& each, auto&) { names.push_back(each.name()); });
  EXPECT_EQ(names, (std::vector<std::string>{"v", "v/replica_1"}));
}

TEST_F(MirroredVariable, ReadSeesOnlyEarlierWrites) {
  Variable v = make(1.0, VariableAggregation::kMean);
  const auto reads = strategy_->run([&] {
    const Tensor before = v.value();
    v.assign_add(1.0);
    return std::pair(before, v.value());
  });
  for (const auto& [before, after] : reads) {
    EXPECT_EQ(before.item(), 1.0f);
    EXPECT_EQ(after.item(), 2.0f);
  }
}

TEST_F(MirroredVariable, ShapeErrorNamesVariable) {
  Variable v = make(1.0, VariableAggregation::kMean);
  EXPECT_INVALID(strategy_->run([&] { v.assign(Tensor::ones({2})); }), "Variable 'v'.assign");
}

TEST_F(MirroredVariable, ReplicaOfDifferentStrategyCannotWrite) {
  Variable v = make(1.0, VariableAggregation::kMean);
  auto other = mirrored(2);
  EXPECT_ERROR(other->run([&] { v.assign(2.0); }), kFailedPrecondition,
               "Mixing different strategies");
}

TEST_F(MirroredVariable, AllReplicasMustWriteTheSameVariable) {
  Variable v = make(1.0, VariableAggregation::kMean);
  const auto scope = strategy_->scope();
  Variable w(Tensor(1.0f), {.name = "w", .aggregation = VariableAggregation::kMean});
  const auto write = [&] { (replica_number() == 0 ? v : w).assign(2.0); };
  EXPECT_ERROR(strategy_->run(write), kFailedPrecondition,
               "replica 0 waits in Variable 'v'.assign; replica 1 waits in Variable "
               "'w'.assign");
}

TEST(CentralVariable, ReadCopiesValueToReplicaDevice) {
  auto strategy = central(2);
  const auto scope = strategy->scope();
  Variable v(Tensor(1.0f), {.aggregation = VariableAggregation::kMean});
  EXPECT_EQ(v.storage().devices(), std::vector<Device>{Device::parse("cpu:0")});
  const auto read = strategy->run([&] {
    v.assign_add(num(replica_number()));
    return v.value();
  });
  EXPECT_EQ(numbers(read), both(1.5));
  EXPECT_EQ(read[1].device(), Device::parse("cpu:1"));
  EXPECT_EQ(strategy->parameter_devices(), std::vector<Device>{Device::parse("cpu:0")});
}

using VariablesOnEveryStrategy = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, VariablesOnEveryStrategy, ::testing::ValuesIn(all_strategies()),
                         case_name);

TEST_P(VariablesOnEveryStrategy, MayOutliveStrategy) {
  Variable v;
  {
    const auto scope = strategy_->scope();
    v = Variable(Tensor(1.0f));
  }
  strategy_.reset();
  v.assign(2.0);
  EXPECT_EQ(v.value().item(), 2.0f);
}

class SyncOnRead : public TwoReplicas {
 protected:
  Variable new_variable(const Tensor& initial, VariableAggregation aggregation) override {
    return on_read(initial, aggregation);
  }
  /// Assigns, in each replica, the replica's number plus `first`.
  void assign_ids(Variable v, double first = 0.0) {
    strategy_->run([&] { v.assign(num(first + replica_number())); });
  }
};

TEST_F(SyncOnRead, ReplicaWritesAreLocalAndCrossReplicaWritesAreGlobal) {
  for (const auto aggregation : kAllAggregations) {
    Variable v = make(0.0, aggregation);
    EXPECT_FALSE(v.trainable());
    strategy_->run([&] { v.assign(num(1, DType::kInt32)); });
    EXPECT_EQ(components(v), both(1));
    strategy_->run([&] { v.assign_add(1.0); });
    EXPECT_EQ(components(v), both(2));
    strategy_->run([&] { v.assign_sub(-1.0); });
    EXPECT_EQ(components(v), both(3));
    if (aggregation == VariableAggregation::kSum)
      continue;  // see AssignUnderSumDividesValueAmongReplicas
    v.assign(1.0);
    EXPECT_EQ(components(v), both(1));
    v.assign_add(1.0);
    EXPECT_EQ(components(v), both(2));
    v.assign_sub(-1.0);
    EXPECT_EQ(components(v), both(3));
  }
}

// In tf 2.21, too, an ON_READ variable may be trainable: ON_READ only changes the default of
// `trainable` to False.
TEST_F(SyncOnRead, TrainableComponentsGetSumOfGradients) {
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

TEST_F(SyncOnRead, AssignUnderSumDividesValueAmongReplicas) {
  Variable v = make(0.0, VariableAggregation::kSum);
  v.assign(2.0);
  EXPECT_EQ(components(v), both(1));
  v.assign(6.0);
  EXPECT_EQ(components(v), both(3));
  EXPECT_EQ(v.value().item(), 6.0f);
  EXPECT_INVALID(v.assign_add(1.0), "assign_add");
  EXPECT_INVALID(v.assign_sub(1.0), "assign_sub");
}

TEST_F(SyncOnRead, IntegerAssignUnderSumPreservesTotal) {
  Variable v = make(Tensor::scalar(0, DType::kInt64), VariableAggregation::kSum);
  v.assign(7.0);
  EXPECT_EQ(components(v), (std::vector<double>{4, 3}));
  EXPECT_EQ(v.value().item_int(), 7);
  v.assign(-7.0);
  EXPECT_EQ(components(v), (std::vector<double>{-4, -3}));
}

TEST_F(SyncOnRead, ReadOutsideReplicasReturnsAggregate) {
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

TEST_F(SyncOnRead, ReadWithoutAggregationFailsOutsideReplicas) {
  Variable v = make(1.0, VariableAggregation::kNone);
  EXPECT_INVALID((void)v.value(), "aggregation NONE");
  EXPECT_EQ(numbers(strategy_->run([&] { return v.value(); })), both(1));
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
  EXPECT_EQ(components(sum), both(3.5));  // without components, the aggregate is divided, as in tf

  Variable mean = make(0.0, VariableAggregation::kMean);
  mean.storage().restore(lookup_in({saved_sum[1], saved_sum[2]}));
  const auto saved_mean = mean.storage().save();
  EXPECT_EQ(saved_mean[0].value.item(), 3.5f);
  mean.storage().restore(lookup_in({saved_mean[0]}));
  EXPECT_EQ(components(mean), both(3.5));

  Variable plain(Tensor(0.0f), {.name = "v"});
  plain.storage().restore(lookup_in(saved_sum));
  EXPECT_EQ(plain.value().item(), 7.0f);
  plain.storage().restore(lookup_in(saved_mean));
  EXPECT_EQ(plain.value().item(), 3.5f);
  plain.assign(2.0);
  sum.storage().restore(lookup_in(plain.storage().save()));
  EXPECT_EQ(components(sum), both(1));
  mean.storage().restore(lookup_in(plain.storage().save()));
  EXPECT_EQ(components(mean), both(2));
}

TEST_F(SyncOnRead, RestoreWithDifferentReplicaCountUsesAggregate) {
  const auto three = mirrored(3);
  const auto saved = [&] {
    const auto scope = three->scope();
    return on_read(Tensor(2.0f), VariableAggregation::kSum).storage().save();
  }();
  Variable v = make(0.0, VariableAggregation::kSum);
  v.storage().restore(lookup_in(saved));
  EXPECT_EQ(components(v), both(3));
  EXPECT_ERROR(v.storage().restore(lookup_in({})), kNotFound, "'v'");
}

TEST_F(SyncOnRead, MeanIsWeightedByReplicaUpdateCounts) {
  Variable v = make(0.0, VariableAggregation::kMean);
  EXPECT_EQ(v.value().item(), 0.0f) << "without updates, all replicas have equal weights";
  const auto update_in = [&](int replica, double value) {
    strategy_->run([&] {
      if (replica_number() == replica) v.assign(value);
    });
  };
  update_in(1, 8.0);
  EXPECT_EQ(v.value().item(), 8.0f) << "replica 0 made no update";
  update_in(0, 4.0);
  EXPECT_EQ(v.value().item(), 6.0f);
  update_in(1, 8.0);
  EXPECT_FLOAT_EQ(v.value().item(), (4.0f + 2.0f * 8.0f) / 3.0f);
  v.assign(1.0);  // also resets the update counts
  update_in(0, 5.0);
  EXPECT_EQ(v.value().item(), 5.0f);
}

TEST_F(SyncOnRead, UpdateCountsAreSavedButOptionalOnRestore) {
  Variable v = make(0.0, VariableAggregation::kMean);
  strategy_->run([&] {
    for (int i = 0; i < 1 + 2 * replica_number(); ++i) v.assign(num(4.0 + 4.0 * replica_number()));
  });
  ASSERT_EQ(v.value().item(), 7.0f);  // mean of 4, 8, 8 and 8
  std::vector<NamedTensor> saved = v.storage().save();
  v.assign(0.0);
  v.storage().restore(lookup_in(saved));
  EXPECT_EQ(v.value().item(), 7.0f);
  ASSERT_EQ(saved.back().name, "v/replica_updates");
  saved.pop_back();  // earlier versions did not save counts
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
      EXPECT_ERROR(strategy_->run([&] { (v.*scatter)(row(0, 2.0, 1)); }), kUnimplemented,
                   "scatter_");
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
  EXPECT_EQ(numbers(read), both(0.5));
  EXPECT_EQ(read[1].device(), Device::parse("cpu:1"));
}

TEST_F(SyncOnRead, HasOneComponentPerReplicaOnSharedDevices) {
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

}  // namespace tutti::strategy_tests::replicated_variables_test
