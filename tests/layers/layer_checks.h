// Helpers for tests of layers, and checks that apply to every layer: shapes, empty batches and
// gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/model/layers/layer.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing {

inline void expect_values(const Tensor& actual, const std::vector<double>& expected,
                          double tolerance = 1e-6) {
  expect_near(actual.to_doubles(), expected, tolerance);
}

/// Replica in a group of `replicas` replicas whose values are equal: all_reduce(SUM) multiplies by
/// the number of replicas.
class EqualReplicas : public ReplicaGroup {
 public:
  explicit EqualReplicas(int replicas) : replicas_(replicas) {}
  int replica_id() const override { return 0; }
  int num_replicas() const override { return replicas_; }
  int num_local_replicas() const override { return 1; }
  Tensor all_reduce(ReduceOp op, const Tensor& value) override {
    ++num_all_reduces;
    return op == ReduceOp::kSum ? value * static_cast<double>(replicas_) : value;
  }
  Tensor all_gather(const Tensor& value, int axis) override {
    return concat(std::vector<Tensor>(static_cast<std::size_t>(replicas_), value), axis);
  }
  int num_all_reduces = 0;

 private:
  int replicas_;
};

/// Returns a float32 tensor of 0, 1, 2, ... times `step`.
inline Tensor counting(const Shape& shape, double step = 1.0) {
  std::vector<float> values(static_cast<std::size_t>(shape.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<double>(i) * step);
  return Tensor::from(shape, values);
}

/// Checks the gradient of a scalar-valued `function` at the float64 tensor `x` against central
/// differences in every element of `x`.
inline void expect_gradient_of_differences(const std::function<Tensor(const Tensor&)>& function,
                                           const Tensor& x, double tolerance = 1e-6) {
  ASSERT_EQ(x.dtype(), DType::kFloat64);
  GradientTape tape;
  tape.watch(x);
  const Gradient gradient = tape.gradient(function(x), x);
  ASSERT_FALSE(gradient.is_none());
  const std::vector<double> actual = gradient.to_dense().to_doubles();
  std::vector<double> values = x.to_doubles();
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double center = values[i];
    values[i] = center + kStep;
    const double above = function(Tensor::from(x.shape(), values)).item_double();
    values[i] = center - kStep;
    const double below = function(Tensor::from(x.shape(), values)).item_double();
    values[i] = center;
    const double expected = (above - below) / (2 * kStep);
    ASSERT_NEAR(actual[i], expected, tolerance * (1.0 + std::abs(expected))) << "element " << i;
  }
}

/// Sets the dtype policy for layers that are created during its lifetime.
struct PolicyScope {
  explicit PolicyScope(const char* name) { set_dtype_policy(name); }
  ~PolicyScope() { set_dtype_policy("float32"); }
  PolicyScope& operator=(PolicyScope&&) = delete;
};
struct ExactLayers : PolicyScope {
  ExactLayers() : PolicyScope("float64") {}
};

/// Returns float64 numbers between -1 and 1.
inline Tensor spread(const Shape& shape, std::uint64_t seed) {
  return random_uniform(shape, {.seed = seed}, -1.0, 1.0, DType::kFloat64);
}

/// Returns a batch of `rows` rows for each input.
inline std::vector<Tensor> inputs_for(const std::vector<Shape>& examples, std::int64_t rows) {
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < examples.size(); ++i)
    inputs.push_back(spread(examples[i].with_front(rows), 31 + i));
  return inputs;
}

/// Returns a scalar that depends on each result of the layer in a different way.
inline Tensor mixed(const Layer& layer, const std::vector<Tensor>& inputs, CallContext context) {
  Tensor sum = Tensor::zeros({}, DType::kFloat64);
  std::uint64_t seed = 71;
  for (const Tensor& y : layer.apply(inputs, context))
    sum = sum + reduce_sum(y * spread(y.shape(), ++seed)) + reduce_sum(square(y)) * 0.3;
  return sum;
}

inline void check_weight_gradient(const Layer& layer, Variable weight,
                                  const std::vector<Tensor>& inputs, CallContext context) {
  SCOPED_TRACE(weight.name());
  GradientTape tape;
  const Gradient gradient = tape.gradient(mixed(layer, inputs, context), weight);
  ASSERT_FALSE(gradient.is_none());
  const std::vector<double> actual = gradient.to_dense().to_doubles();
  const Tensor center = weight.value();
  std::vector<double> values = center.to_doubles();
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto at = [&](double shift) {
      std::vector<double> shifted = values;
      shifted[i] += shift;
      weight.assign(Tensor::from(center.shape(), shifted));
      return mixed(layer, inputs, context).item_double();
    };
    const double expected = (at(kStep) - at(-kStep)) / (2 * kStep);
    ASSERT_NEAR(actual[i], expected, 2e-6 * (1.0 + std::abs(expected))) << "element " << i;
  }
  weight.assign(center);
}

/// Builds a float64 layer and checks its gradients with respect to all inputs and weights against
/// central differences. The layer must be smooth near inputs between -1 and 1.
inline void check_gradients(Layer& layer, const std::vector<Shape>& examples,
                            CallContext context = {}) {
  layer.build_for(examples);
  SCOPED_TRACE(layer.name());
  ASSERT_EQ(layer.dtype(), DType::kFloat64);
  // Changes the weights, because initial zeros and ones would hide mistakes.
  std::uint64_t seed = 11;
  for (Variable weight : layer.trainable_variables())
    weight.assign(weight.value() + spread(weight.shape(), ++seed) * 0.3);
  std::vector<Tensor> inputs = inputs_for(examples, 2);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(concat("input ", i));
    expect_gradient_of_differences(
        [&](const Tensor& x) {
          std::vector<Tensor> changed = inputs;
          changed[i] = x;
          return mixed(layer, changed, context);
        },
        inputs[i], 2e-6);
  }
  for (const Variable& weight : layer.trainable_variables())
    check_weight_gradient(layer, weight, inputs, context);
}

/// Checks that results have the shapes that shapes_for() predicts and that gradients are finite,
/// with 3, 1 and 0 rows, in training and inference.
inline void check_shapes(Layer& layer, const std::vector<Shape>& examples) {
  const std::vector<Shape> promised = layer.shapes_for(examples);
  EXPECT_TRUE(layer.variables().empty()) << "shapes_for() created weights";
  const std::vector<Shape> outputs = layer.build_for(examples);
  EXPECT_EQ(outputs, promised);
  SCOPED_TRACE(layer.name());
  for (const std::int64_t rows : {3, 1, 0}) {
    for (const bool training : {false, true}) {
      GradientTape tape;
      const std::vector<Tensor> inputs = inputs_for(examples, rows);
      const std::vector<Tensor> results = layer.apply(inputs, {.training = training});
      ASSERT_EQ(results.size(), outputs.size());
      Tensor sum = Tensor::zeros({});
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].shape(), outputs[i].with_front(rows));
        EXPECT_EQ(results[i].dtype(), DType::kFloat32);
        sum = sum + reduce_sum(square(results[i]));
      }
      const std::vector<Variable> weights = layer.trainable_variables();
      const std::vector<Gradient> gradients = tape.gradient(sum, weights);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        ASSERT_FALSE(gradients[i].is_none()) << weights[i].name() << " rows " << rows;
        EXPECT_EQ(gradients[i].to_dense().shape(), weights[i].shape()) << weights[i].name();
        for (const double value : gradients[i].to_dense().to_doubles())
          ASSERT_TRUE(std::isfinite(value)) << weights[i].name() << " rows " << rows;
      }
    }
  }
}

/// Returns the name and shape of each of the layer's variables.
inline std::vector<std::string> weights_of_layer(const Layer& layer) {
  std::vector<std::string> lines;
  for (const Variable& variable : layer.variables())
    lines.push_back(concat(variable.name(), ' ', variable.shape()));
  return lines;
}

}  // namespace tutti::testing
