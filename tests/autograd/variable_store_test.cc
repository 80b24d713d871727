// Variables by name: made once, shared after that.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/variable_store.h"

#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

namespace variable_store_test {

Variable::Initializer filled(const Shape& shape, double value) {
  return [=](const InitializerContext& context) {
    return Tensor::full(shape, value, DType::kFloat32, context.device);
  };
}

/// Weights and biases of a dense layer, as a tower asks for them.
std::vector<Variable> dense_layer(VariableStore& store, const std::string& name) {
  return {store.get(name + "/weights", {3, 2}, filled({3, 2}, 1.0)),
          store.get(name + "/biases", {2}, filled({2}, 0.5))};
}

}  // namespace variable_store_test

TEST(VariableStore, SecondTowerSharesVariablesOfTheFirst) {
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
  EXPECT_EQ(store.trainable_variables().size(), 10u);  // not 20
  EXPECT_EQ(towers[0], towers[1]);
  towers[1][1].assign(2.0);
  EXPECT_EQ(towers[0][1].value().to_doubles(), (std::vector<double>{2.0, 2.0}));
}

TEST(VariableStore, ReuseErrorsNameTheVariable) {
  using namespace variable_store_test;
  VariableStore store;
  dense_layer(store, "conv1");
  testing::expect_error(ErrorCode::kAlreadyExists, {"'conv1/weights'", "reuse_variables"},
                        [&] { dense_layer(store, "conv1"); });
  store.reuse_variables();
  EXPECT_TRUE(store.reuses_variables());
  testing::expect_error(ErrorCode::kNotFound, {"'conv2/weights'", "[conv1/weights, conv1/biases]"},
                        [&] { dense_layer(store, "conv2"); });
  EXPECT_EQ(store.variables().size(), 2u);
}

TEST(VariableStore, ShapesMustAgree) {
  using namespace variable_store_test;
  VariableStore store;
  testing::expect_error(ErrorCode::kInvalidArgument, {"'w'", "[2]", "[3]"},
                        [&] { store.get("w", {2}, filled({3}, 0.0)); });
  EXPECT_TRUE(store.variables().empty());
  store.get("w", {2}, filled({2}, 0.0));
  store.reuse_variables();
  testing::expect_error(ErrorCode::kInvalidArgument, {"'w'", "[3]", "[2]"},
                        [&] { store.get("w", {3}, filled({3}, 0.0)); });
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

}  // namespace
}  // namespace tutti
