// Tests variables that are synchronised on write.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti::strategy_tests {
namespace {

constexpr VariableAggregation kAllAggregations[] = {
    VariableAggregation::kNone, VariableAggregation::kSum, VariableAggregation::kMean,
    VariableAggregation::kOnlyFirstReplica};

/// Two replicas on two devices, and variables of their strategy.
class MirroredVariable : public ::testing::Test {
 protected:
  Variable make(const Tensor& initial, VariableAggregation aggregation,
                bool allow_divergent = false) {
    const auto scope = strategy_->scope();
    VariableOptions options;
    options.name = "v";
    options.aggregation = aggregation;
    options.allow_divergent = allow_divergent;
    return Variable(initial, options);
  }
  Variable make(double initial, VariableAggregation aggregation) {
    return make(Tensor::scalar(initial, DType::kFloat32), aggregation);
  }

  testing::HangWatchdog watchdog_{"a mirrored variable"};
  std::unique_ptr<MirroredStrategy> strategy_ = mirrored(2);
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
      // A plain value is written once.
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
  Variable permitted = make(Tensor(0.0f), VariableAggregation::kNone, true);
  strategy_->run([&] { permitted.assign_add(1.0); });
  EXPECT_EQ(components(permitted), both(1));
  strategy_->run([&] { permitted.assign(num(replica_number())); });
  EXPECT_EQ(components(permitted), (std::vector<double>{0, 1}));
}

TEST_F(MirroredVariable, PlainConstantCannotBeSummed) {
  Variable v = make(0.0, VariableAggregation::kSum);
  EXPECT_INVALID(strategy_->run([&] { v.assign(5.0); }), "SUM");
  strategy_->run([&] { v.assign(num(5.0)); });
  EXPECT_EQ(components(v), both(10));
}

TEST_F(MirroredVariable, ReplicasReadTheirOwnComponent) {
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

TEST_F(MirroredVariable, OperatorsReadTheVariable) {
  const Variable v = make(1.0, VariableAggregation::kSum);
  EXPECT_EQ((v + 1.0f).item(), 2.0f);
  EXPECT_EQ(numbers(strategy_->run([&] { return v + 1.0f; })), both(2));
}

TEST_F(MirroredVariable, SavedAndRestoredAcrossPlacements) {
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
  const Device device = ReplicaContext::current().device();
  return {Tensor::full({1}, value, dtype, device), Tensor::from<std::int64_t>({1}, {index}, device),
          Shape{rows}};
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

TEST_F(MirroredVariable, ScatterMinMaxAndUpdateNeedOnlyFirstReplica) {
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
  Variable v = make(Tensor::from<float>({1}, {4}), VariableAggregation::kNone, true);
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

TEST_F(MirroredVariable, MeanOfIntegersNeedsEqualValues) {
  Variable v = make(Tensor::scalar(1, DType::kInt32), VariableAggregation::kMean);
  EXPECT_INVALID(strategy_->run([&] { v.assign(num(replica_number(), DType::kInt32)); }),
                 "Variable 'v'");
  strategy_->run([&] { v.assign(num(7, DType::kInt32)); });
  EXPECT_EQ(components(v), both(7));
  strategy_->run([&] { v.assign_add(1.0); });
  EXPECT_EQ(components(v), both(8));
}

TEST_F(MirroredVariable, UpdateSeesOneComponentAtATime) {
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

TEST_F(MirroredVariable, AReadSeesTheWriteBeforeItAndNoneAfterIt) {
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

TEST_F(MirroredVariable, AWrongShapeNamesTheVariable) {
  Variable v = make(1.0, VariableAggregation::kMean);
  EXPECT_INVALID(strategy_->run([&] { v.assign(Tensor::ones({2})); }), "Variable 'v'.assign");
}

TEST_F(MirroredVariable, AReplicaOfAnotherStrategyCannotWriteIt) {
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

TEST(CentralVariable, OneComponentOnTheParameterDeviceIsReadOnTheReplicasDevice) {
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

using VariableOfAll = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, VariableOfAll, ::testing::ValuesIn(all_strategies()), case_name);

TEST_P(VariableOfAll, VariablesMayOutliveTheirStrategy) {
  Variable v;
  {
    const auto scope = strategy_->scope();
    v = Variable(Tensor(1.0f));
  }
  strategy_.reset();
  v.assign(2.0);
  EXPECT_EQ(v.value().item(), 2.0f);
}

}  // namespace
}  // namespace tutti::strategy_tests
