// Tests variables, their initial values, stores of shared variables, and groups of replicas.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/hash.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/autograd/value_generator.h"
#include "tutti/autograd/variable.h"
#include "tutti/autograd/variable_store.h"
#include "tutti/core/error.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::variable_test {

namespace variable_test {

VariableOptions named(const char* name) {
  VariableOptions options;
  options.name = name;
  return options;
}

using Doubles = std::vector<double>;

/// Optimizer rule that applies weights -= learning_rate * gradient and counts the updated elements.
class PlainDescent final : public UpdateRule {
 public:
  explicit PlainDescent(bool skips_zero) : skips_zero_(skips_zero) {}
  std::string_view name() const override { return "plain_descent"; }
  std::vector<SlotSpec> slots() const override { return {{"touched", 0.0}}; }
  bool skips_zero_gradient() const override { return skips_zero_; }
  void apply(const UpdateArgs& args) const override {
    visit_floating(args.dtype, "plain_descent", [&]<class T>() {
      for (std::size_t i = 0; i < args.count; ++i) {
        args.weights<T>()[i] -= static_cast<T>(args.scalars.learning_rate) * args.gradient<T>()[i];
        args.slot<T>(0)[i] += T{1};
      }
    });
  }

 private:
  bool skips_zero_;
};

}  // namespace variable_test

using variable_test::Doubles;
using variable_test::named;

TEST(Variable, HasNameKeyAndDefaultOptions) {
  set_random_seed(42);
  RandomKey key;
  const Variable first([&](const InitializerContext& context) {
    key = context.key;
    EXPECT_EQ(context.device, Device{});
    return Tensor::zeros({2});
  });
  const Variable second(Tensor::zeros({3}, DType::kInt64));
  EXPECT_EQ(key.seed, 42u);
  EXPECT_EQ(key.purpose, kInitializerPurpose);
  EXPECT_EQ(first.name(), concat("variable_", key.a));
  EXPECT_EQ(second.name(), concat("variable_", key.a + 1));
  EXPECT_EQ(first.shape(), Shape{2});
  EXPECT_TRUE(first.trainable());
  EXPECT_FALSE(second.trainable());
  EXPECT_EQ(first.storage().options().synchronization, VariableSynchronization::kOnWrite);
  EXPECT_NE(first.storage().id(), second.storage().id());
  EXPECT_EQ(first.storage().owner(), nullptr);
  set_random_seed(0);
}

TEST(Variable, OnReadVariablesAreNotTrainableByDefault) {
  VariableOptions options = named("total");
  options.synchronization = VariableSynchronization::kOnRead;
  options.aggregation = VariableAggregation::kSum;
  EXPECT_FALSE(Variable(Tensor(0.0f), options).trainable());
  options.trainable = true;
  EXPECT_TRUE(Variable(Tensor(0.0f), options).trainable());
}

TEST(Variable, CopiedHandlesShareOneVariable) {
  Variable a(Tensor(1.0f), named("a"));
  const Variable b = a;
  a.assign(2.0);
  EXPECT_EQ(b.value().item(), 2.0f);
  EXPECT_TRUE(a == b);
  EXPECT_FALSE(a == Variable(Tensor(2.0f), named("a")));
  EXPECT_FALSE(Variable().defined());
  EXPECT_ERROR(Variable().value(), kFailedPrecondition, "does not refer to a variable");
}

TEST(Variable, ReadTensorIsUnaffectedByLaterWrites) {
  Variable v(Tensor::from<float>({2}, {1, 2}));
  const Tensor before = v.value();
  v.assign_add(Tensor::from<float>({2}, {10, 20}));
  EXPECT_EQ(before.to_doubles(), (Doubles{1, 2}));
  EXPECT_EQ(v.value().to_doubles(), (Doubles{11, 22}));
  const Tensor assigned = Tensor::from<float>({2}, {5, 6});
  v.assign(assigned);
  v.assign_sub(1.0);
  v.scatter_add({Tensor::from<float>({1}, {100}), Tensor::from<std::int64_t>({1}, {0}), {2}});
  EXPECT_EQ(assigned.to_doubles(), (Doubles{5, 6}));
  EXPECT_EQ(v.value().to_doubles(), (Doubles{104, 5}));
}

TEST(Variable, WritesInPlaceUnlessTensorSharesStorage) {
  Variable v(Tensor::from<float>({2}, {1, 2}));
  v.assign_add(1.0);  // the first write detaches the variable from the initial tensor's storage
  const void* storage = v.value().bytes().data();
  v.assign_add(1.0);
  EXPECT_EQ(v.value().bytes().data(), storage);
  const Tensor held = v.value();
  v.assign_add(1.0);
  EXPECT_NE(v.value().bytes().data(), static_cast<const void*>(held.bytes().data()));
}

TEST(Variable, AssignmentsConvertNumbersAndCheckShapes) {
  Variable v(Tensor::zeros({2}, DType::kFloat64), named("v"));
  v.assign(Tensor::from<float>({2}, {1.5f, 2.5f}));
  EXPECT_EQ(v.value().to_doubles(), (Doubles{1.5, 2.5}));
  EXPECT_EQ(v.value().dtype(), DType::kFloat64);
  v.assign_sub(0.5);
  EXPECT_EQ(v.value().to_doubles(), (Doubles{1.0, 2.0}));
  v.assign(7.0);
  EXPECT_EQ(v.value().to_doubles(), (Doubles{7.0, 7.0}));
  EXPECT_INVALID(v.assign_add(Tensor::zeros({3})), "'v'.assign_add");
  EXPECT_INVALID(v.assign(Tensor()), "'v'.assign");
  Variable flag(Tensor::zeros({1}, DType::kBool), named("flag"));
  flag.assign(1.0);
  EXPECT_EQ(flag.value().to_doubles(), (Doubles{1}));
  EXPECT_INVALID(flag.assign_add(1.0), "flag");
}

TEST(Variable, ScatterAppliesDuplicateRowsInListedOrder) {
  using Update = double (*)(double, double);
  const std::pair<void (Variable::*)(const IndexedSlices&), Update> operations[] = {
      {&Variable::scatter_add, [](double a, double b) { return a + b; }},
      {&Variable::scatter_sub, [](double a, double b) { return a - b; }},
      {&Variable::scatter_mul, [](double a, double b) { return a * b; }},
      {&Variable::scatter_div, [](double a, double b) { return a / b; }},
      {&Variable::scatter_min, [](double a, double b) { return std::min(a, b); }},
      {&Variable::scatter_max, [](double a, double b) { return std::max(a, b); }},
      {&Variable::scatter_update, [](double, double b) { return b; }}};
  const Doubles start = {1, 2, 3, 4, 5, 6}, values = {3, 7, 2, 9, 5, 4};
  const std::vector<std::int64_t> rows = {2, 0, 2};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const auto& [scatter, update] : operations) {
      Doubles expected = start;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::size_t k = 0; k < 2; ++k) {
          double& element = expected[static_cast<std::size_t>(rows[i]) * 2 + k];
          element = update(element, values[i * 2 + k]);
          if (dtype == DType::kFloat32) element = static_cast<float>(element);
        }
      }
      Variable v(cast(Tensor::from<double>({3, 2}, start), dtype));
      (v.*scatter)({cast(Tensor::from<double>({3, 2}, values), dtype),
                    Tensor::from<std::int64_t>({3}, rows),
                    {3, 2}});
      EXPECT_EQ(v.value().to_doubles(), expected);
    }
  }
}

TEST(Variable, ScatterValidatesBeforeWriting) {
  Variable v(Tensor::zeros({2, 1}, DType::kInt32), named("table"));
  const auto slices = [](std::vector<std::int32_t> values, std::vector<std::int32_t> rows) {
    const auto count = static_cast<std::int64_t>(rows.size());
    return IndexedSlices{Tensor::from<std::int32_t>({count, 1}, values),
                         Tensor::from<std::int32_t>({count}, rows),
                         {2, 1}};
  };
  EXPECT_INVALID(v.scatter_add(slices({1, 1}, {0, 2})), "'table'.scatter_add");
  EXPECT_INVALID(v.scatter_add(slices({1, 1}, {0, -1})), "-1");
  EXPECT_INVALID(v.scatter_div(slices({1, 0}, {0, 1})), "zero");
  EXPECT_INVALID(
      v.scatter_add(
          {Tensor::zeros({1, 2}, DType::kInt32), Tensor::from<std::int32_t>({1}, {0}), {2, 1}}),
      "do not match the shape");
  EXPECT_INVALID(
      v.scatter_add(
          {Tensor::zeros({1, 1}, DType::kFloat32), Tensor::from<std::int32_t>({1}, {0}), {2, 1}}),
      "expected values of int32, got float32");
  v.scatter_add(slices({}, {}));
  EXPECT_EQ(v.value().to_doubles(), (Doubles{0, 0}));
  v.scatter_add(slices({3, 4, 5}, {1, 0, 1}));
  EXPECT_EQ(v.value().to_doubles(), (Doubles{4, 8}));
}

TEST(VariableUpdate, DenseGradientChangesAllElements) {
  Variable v(Tensor::from<float>({2}, {1, 2}), named("v"));
  const variable_test::PlainDescent rule(true);
  const Variable slot = v.storage().create_slot("v/touched", 0.0);
  EXPECT_EQ(slot.name(), "v/touched");
  EXPECT_FALSE(slot.trainable());
  const Tensor before = v.value(), slot_before = slot.value();
  v.storage().update(rule, std::span(&slot, 1), Tensor::from<float>({2}, {2, 4}), {0.5});
  EXPECT_EQ(v.value().to_doubles(), (Doubles{0, 0}));
  EXPECT_EQ(slot.value().to_doubles(), (Doubles{1, 1}));
  EXPECT_EQ(before.to_doubles(), (Doubles{1, 2}));
  EXPECT_EQ(slot_before.to_doubles(), (Doubles{0, 0}));
}

TEST(VariableUpdate, SparseGradientUpdatesEachRowOnce) {
  const IndexedSlices slices{Tensor::from<float>({3, 2}, {1, 2, 10, 20, 4, 8}),
                             Tensor::from<std::int64_t>({3}, {2, 0, 2}),
                             {4, 2}};
  for (const bool skips : {true, false}) {
    Variable v(Tensor::zeros({4, 2}));
    const Variable slot = v.storage().create_slot("slot", 0.0);
    v.storage().update(variable_test::PlainDescent(skips), std::span(&slot, 1), slices, {1.0});
    EXPECT_EQ(v.value().to_doubles(), (Doubles{-10, -20, 0, 0, -5, -10, 0, 0}));
    EXPECT_EQ(slot.value().to_doubles(),
              skips ? (Doubles{1, 1, 0, 0, 1, 1, 0, 0}) : (Doubles{1, 1, 1, 1, 1, 1, 1, 1}));
  }
}

TEST(VariableUpdate, EmptyAndMissingGradientsChangeNothing) {
  Variable v(Tensor::ones({2, 2}));
  const Variable slot = v.storage().create_slot("slot", 0.0);
  const variable_test::PlainDescent rule(true);
  const IndexedSlices none{Tensor::zeros({0, 2}), Tensor::zeros({0}, DType::kInt64), {2, 2}};
  v.storage().update(rule, std::span(&slot, 1), none, {1.0});
  v.storage().update(rule, std::span(&slot, 1), Gradient(), {1.0});
  EXPECT_EQ(v.value().to_doubles(), (Doubles{1, 1, 1, 1}));
  EXPECT_EQ(slot.value().to_doubles(), (Doubles{0, 0, 0, 0}));
}

TEST(VariableUpdate, RejectsMismatchedGradientsAndSlots) {
  Variable v(Tensor::ones({2}), named("v"));
  const Variable slot = v.storage().create_slot("slot", 0.0), foreign(Tensor::ones({3}));
  const variable_test::PlainDescent rule(true);
  EXPECT_INVALID(v.storage().update(rule, std::span(&slot, 1), Tensor::ones({3}), {1.0}), "'v'");
  EXPECT_INVALID(v.storage().update(rule, std::span(&foreign, 1), Tensor::ones({2}), {1.0}), "'v'");
}

TEST(Variable, IsSavedAndRestoredUnderItsName) {
  Variable v(Tensor::from<float>({2}, {1, 2}), named("v"));
  const std::vector<NamedTensor> saved = v.storage().save();
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_EQ(saved[0].name, "v");
  v.assign(0.0);
  Tensor stored = saved[0].value;
  const TensorLookup lookup = [&](const std::string& name) {
    return name == "v" ? stored : Tensor();
  };
  v.storage().restore(lookup);
  EXPECT_EQ(v.value().to_doubles(), (Doubles{1, 2}));
  stored = Tensor::zeros({3});
  EXPECT_INVALID(v.storage().restore(lookup), "'v'");
  stored = Tensor::zeros({2}, DType::kFloat64);
  EXPECT_INVALID(v.storage().restore(lookup), "float64");
  stored = Tensor();
  EXPECT_ERROR(v.storage().restore(lookup), kNotFound, "'v'");
}

TEST(VariableCreator, ScopeDeterminesVariableDevice) {
  class OnDeviceTwo final : public VariableCreator {
   public:
    std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                            const RandomKey& key,
                                            VariableOptions options) override {
      EXPECT_FALSE(options.name.empty());
      const Device device{DeviceType::kCpu, 2};
      return make_local_storage(initializer({device, key}), device, std::move(options), this);
    }
  };
  OnDeviceTwo creator;
  {
    const VariableCreatorScope scope(creator);
    const Variable v(Tensor(1.0f));
    EXPECT_EQ(v.storage().devices(), (std::vector{Device{DeviceType::kCpu, 2}}));
    EXPECT_EQ(v.value().device().index, 2);
    EXPECT_EQ(v.storage().owner(), &creator);
    EXPECT_EQ(v.storage().create_slot("s", 1.0).storage().owner(), &creator);
  }
  EXPECT_EQ(Variable(Tensor(1.0f)).storage().devices(), (std::vector{Device{}}));
}

TEST(Variable, UndefinedInitialValueErrorNamesVariable) {
  EXPECT_INVALID(Variable([](const InitializerContext&) { return Tensor(); }, named("broken")),
                 "broken");
}

TEST(AggregateOnReadScope, IsActiveUntilOuterScopeEnds) {
  EXPECT_FALSE(AggregateOnReadScope::active());
  {
    const AggregateOnReadScope outer;
    { const AggregateOnReadScope inner; }
    EXPECT_TRUE(AggregateOnReadScope::active());
  }
  EXPECT_FALSE(AggregateOnReadScope::active());
}

TEST(HashVariables, CoversNameTypeShapeAndBytes) {
  const Variable a(Tensor::from<float>({2}, {1.0f, -2.0f}), named("a"));
  const Variable b(Tensor::from<std::int64_t>({}, {258}), named("dense/b"));
  const Variable variables[] = {a, b};
  using namespace std::string_view_literals;
  Hasher expected;
  expected.update("a\0float32\0[2]\0"sv);
  expected.update("\x00\x00\x80\x3f\x00\x00\x00\xc0"sv);
  expected.update("dense/b\0int64\0[]\0"sv);
  expected.update("\x02\x01\x00\x00\x00\x00\x00\x00"sv);
  EXPECT_EQ(hash_variables(variables), expected.hex_digest());
  EXPECT_EQ(hash_variables(variables), "6cd5300a577b537262fe42694407664f");
}

TEST(HashVariables, ChangesWithValueNameOrderAndShape) {
  const auto hash = [](std::vector<Variable> variables) { return hash_variables(variables); };
  const Variable a(Tensor::from<float>({2}, {1, 2}), named("a"));
  const Variable b(Tensor::from<float>({2}, {1, 2}), named("b"));
  const Variable matrix(Tensor::from<float>({1, 2}, {1, 2}), named("a"));
  const Variable other(Tensor::from<float>({2}, {1, 3}), named("a"));
  const Variable same(Tensor::from<float>({2}, {1, 2}), named("a"));
  EXPECT_EQ(hash({a, b}), hash({same, b}));
  EXPECT_NE(hash({a, b}), hash({b, a}));
  EXPECT_NE(hash({a}), hash({b}));
  EXPECT_NE(hash({a}), hash({matrix}));
  EXPECT_NE(hash({a}), hash({other}));
}

namespace variable_store_test {

Variable::Initializer filled(const Shape& shape, double value) {
  return [=](const InitializerContext& context) {
    return Tensor::full(shape, value, DType::kFloat32, context.device);
  };
}

/// Requests the weights and biases of a dense layer from `store`, as a tower does, and returns
/// them.
std::vector<Variable> dense_layer(VariableStore& store, const std::string& name) {
  return {store.get(name + "/weights", {3, 2}, filled({3, 2}, 1.0)),
          store.get(name + "/biases", {2}, filled({2}, 0.5))};
}

}  // namespace variable_store_test

TEST(VariableStore, SecondTowerReusesVariablesOfFirst) {
  using namespace variable_store_test;
  VariableStore store;
  std::vector<std::vector<Variable>> towers;
  for (int tower = 0; tower < 2; ++tower) {
    std::vector<Variable> own;
    for (const char* name : {"conv1", "conv2", "local3", "local4", "softmax_linear"}) {
      for (const Variable& variable : dense_layer(store, name)) own.push_back(variable);
    }
    towers.push_back(own);
    store.reuse_variables();
  }
  EXPECT_EQ(store.trainable_variables().size(), 10u);  // not 20: the towers share their variables
  EXPECT_EQ(towers[0], towers[1]);
  towers[1][1].assign(2.0);
  EXPECT_EQ(towers[0][1].value().to_doubles(), (std::vector<double>{2.0, 2.0}));
}

TEST(VariableStore, ReuseErrorsNameTheVariable) {
  using namespace variable_store_test;
  VariableStore store;
  dense_layer(store, "conv1");
  EXPECT_ERROR(dense_layer(store, "conv1"), kAlreadyExists, "'conv1/weights'", "reuse_variables");
  store.reuse_variables();
  EXPECT_TRUE(store.reuses_variables());
  EXPECT_ERROR(dense_layer(store, "conv2"), kNotFound, "'conv2/weights'",
               "[conv1/weights, conv1/biases]");
  EXPECT_EQ(store.variables().size(), 2u);
}

TEST(VariableStore, RejectsMismatchedShapes) {
  using namespace variable_store_test;
  VariableStore store;
  EXPECT_INVALID(store.get("w", {2}, filled({3}, 0.0)), "'w'", "[2]", "[3]");
  EXPECT_TRUE(store.variables().empty());
  store.get("w", {2}, filled({2}, 0.0));
  store.reuse_variables();
  EXPECT_INVALID(store.get("w", {3}, filled({3}, 0.0)), "'w'", "[3]", "[2]");
}

TEST(VariableStore, StepCounterIsNotTrainable) {
  VariableStore store;
  store.get("global_step", {},
            [](const InitializerContext&) { return Tensor::scalar(0, DType::kInt64); },
            {.trainable = false});
  EXPECT_EQ(store.variables().size(), 1u);
  EXPECT_TRUE(store.trainable_variables().empty());
  EXPECT_EQ(store.variables()[0].value().item_int(), 0);
}

TEST(ReplicaGroup, DefaultsToOneReplicaOutsideCrossReplicaContext) {
  ReplicaGroup& group = ReplicaGroup::current("test");
  EXPECT_EQ(group.replica_id(), 0);
  EXPECT_EQ(group.num_replicas(), 1);
  const Tensor x = Tensor::from<float>({2}, {1, 2});
  EXPECT_EQ(group.all_reduce(ReduceOp::kMean, x).to_doubles(), x.to_doubles());
  EXPECT_EQ(group.all_gather(x, 0).to_doubles(), x.to_doubles());
  EXPECT_INVALID(group.all_gather(x, 1), "axis");
  {
    const ReplicaGroupScope scope(nullptr);
    EXPECT_ERROR(ReplicaGroup::current("Dropout"), kFailedPrecondition, "Dropout");
  }
  EXPECT_EQ(ReplicaGroup::current("test").num_replicas(), 1);
}

using Kind = ValueGenerator::Kind;

constexpr RandomKey kKey{11, kInitializerPurpose, 5};

ValueGenerator of(Kind kind, double a, double b, const Shape& shape, DType dtype) {
  return {kind, a, b, kKey, dtype, shape};
}

std::vector<ValueGenerator> all_kinds(const Shape& shape, DType dtype) {
  return {of(Kind::kConstant, 0.1, 0.0, shape, dtype), of(Kind::kUniform, -0.5, 2.0, shape, dtype),
          of(Kind::kNormal, 1.0, 3.0, shape, dtype),
          of(Kind::kTruncatedNormal, 0.0, 0.7, shape, dtype)};
}

Tensor whole_of(const ValueGenerator& generator) {
  return generated_initializer(generator)({Device{}, generator.key});
}

void expect_any_cut_gives_the_whole(const ValueGenerator& generator) {
  const Tensor whole = whole_of(generator);
  const std::int64_t num_rows = generator.shape[0];
  for (const std::int64_t step : {1, 2, 3, 5, 64}) {
    for (std::int64_t first = 0; first < num_rows; first += step) {
      const std::int64_t count = std::min(step, num_rows - first);
      expect_same_bits(generator.rows(first, count), whole.detached_rows(first, count));
    }
  }
  EXPECT_EQ(generator.rows(num_rows, 0).shape(), generator.shape.with_dim(0, 0));
}

TEST(ValueGenerator, AnyRowPartitionIsBitIdenticalToFullTensor) {
  for (const Shape& shape : {Shape{67}, Shape{23, 7}, Shape{9, 3, 5}, Shape{4, 0}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      for (const ValueGenerator& each : all_kinds(shape, dtype)) {
        SCOPED_TRACE(concat(static_cast<int>(each.kind), " ", shape, " ", dtype));
        expect_any_cut_gives_the_whole(each);
      }
    }
  }
  expect_any_cut_gives_the_whole(of(Kind::kIdentity, 2.5, 0.0, {9, 7}, DType::kFloat32));
  expect_any_cut_gives_the_whole(of(Kind::kIdentity, 2.5, 0.0, {5, 8}, DType::kFloat64));
}

TEST(ValueGenerator, MatchesRandomOperations) {
  const Shape shape{6, 5};
  expect_same_bits(whole_of(of(Kind::kUniform, -0.5, 2.0, shape, DType::kFloat32)),
                   random_uniform(shape, kKey, -0.5, 2.0));
  expect_same_bits(whole_of(of(Kind::kNormal, 1.0, 3.0, shape, DType::kFloat32)),
                   random_normal(shape, kKey, 1.0, 3.0));
  expect_same_bits(whole_of(of(Kind::kTruncatedNormal, 0.0, 0.7, shape, DType::kFloat32)),
                   truncated_normal(shape, kKey, 0.0, 0.7));
  // Values are drawn in float32 and then converted.
  expect_same_bits(whole_of(of(Kind::kNormal, 1.0, 3.0, shape, DType::kFloat64)),
                   cast(random_normal(shape, kKey, 1.0, 3.0), DType::kFloat64));
  expect_same_bits(whole_of(of(Kind::kConstant, 0.1, 0.0, shape, DType::kFloat64)),
                   cast(Tensor::full(shape, 0.1), DType::kFloat64));
  expect_tensor(whole_of(of(Kind::kIdentity, 2.0, 0.0, {2, 3}, DType::kFloat32)), {2, 3},
                {2, 0, 0, 0, 2, 0});
}

TEST(ValueGenerator, ScalarIsOneRowAndInvalidRowsAreRejected) {
  const ValueGenerator scalar = of(Kind::kNormal, 0.0, 1.0, {}, DType::kFloat32);
  expect_same_bits(scalar.rows(0, 1), random_normal({}, kKey, 0.0, 1.0));
  expect_same_bits(whole_of(scalar), scalar.rows(0, 1));
  const ValueGenerator generator = of(Kind::kUniform, 0.0, 1.0, {4, 2}, DType::kFloat32);
  EXPECT_ERROR((void)generator.rows(2, 3), kOutOfRange, "[4, 2]", "3 rows starting at row 2");
  EXPECT_ERROR((void)generator.rows(-1, 1), kOutOfRange, "starting at row -1");
  EXPECT_INVALID((void)of(Kind::kIdentity, 1.0, 0.0, {3}, DType::kFloat32).rows(0, 1), "identity",
                 "[3]");
}

TEST(ValueGenerator, CanBeExtractedFromInitializer) {
  ValueGenerator generator = of(Kind::kUniform, 0.0, 1.0, {4, 2}, DType::kFloat32);
  const Variable::Initializer initializer = generated_initializer(generator);
  const RandomKey other{3, kInitializerPurpose, 8};
  const auto found = generator_of(initializer, other);
  ASSERT_TRUE(found.has_value());
  generator.key = other;
  EXPECT_EQ(*found, generator);
  expect_same_bits(initializer({Device{}, other}), found->rows(0, 4));
  const Variable::Initializer plain = [](const InitializerContext&) { return Tensor::zeros({1}); };
  EXPECT_FALSE(generator_of(plain, other).has_value());
}

}  // namespace tutti::testing::variable_test
