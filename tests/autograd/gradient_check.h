// Compares gradients with central differences, in double precision, or those of other devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "tests/autograd/gradient_cases.h"
#include "tests/support/seen_ops.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti::gradient_check {

/// The sum of all elements, each times a fixed pseudo-random weight.
inline Tensor weighted_sum(const Tensor& x, std::uint64_t key) {
  return reduce_sum(x * cast(random_tensor(x.shape(), key, 0.5, 1.5), x.dtype()));
}

inline double plain_weighted_sum(const Tensor& x, std::uint64_t key) {
  const std::vector<double> values = x.to_doubles();
  const std::vector<double> weights = random_values(x.num_elements(), key, 0.5, 1.5);
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                         double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double scale = std::max({1e-2, std::abs(actual[i]), std::abs(expected[i])});
    EXPECT_LE(std::abs(actual[i] - expected[i]), tolerance * scale)
        << what << ", element " << i << ": " << actual[i] << ", central difference " << expected[i];
  }
}

/// Central differences of the weighted sum of `function` along each element of input `index`.
inline std::vector<double> central_differences(const Function& function,
                                               const std::vector<Tensor>& inputs, std::size_t index,
                                               double step) {
  std::vector<double> values = inputs[index].to_doubles();
  std::vector<double> result;
  std::vector<Tensor> moved = inputs;
  const auto at = [&](std::size_t element, double value) {
    std::vector<double> changed = values;
    changed[element] = value;
    moved[index] = tensor_of(inputs[index].shape(), changed, inputs[index].dtype());
    return plain_weighted_sum(function(moved), 1);
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    result.push_back((at(i, values[i] + step) - at(i, values[i] - step)) / (2.0 * step));
  }
  return result;
}

/// `c.function`'s gradient (of each checked input) against central differences.
inline void check_gradients(const Case& c) {
  const std::vector<Tensor> inputs = make_inputs(c);
  std::vector<Gradient> gradients;
  {
    const thrown::SeenOps seen;
    GradientTape tape;
    for (const Tensor& input : checked_inputs(c, inputs)) tape.watch(input);
    const Tensor y = c.function(inputs);
    EXPECT_TRUE(seen.ops.contains(c.op)) << "the case does not run " << to_string(c.op);
    gradients = tape.gradient(weighted_sum(y, 1), checked_inputs(c, inputs));
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_checked(c, i)) continue;
    const Gradient& gradient = gradients[next++];
    ASSERT_FALSE(gradient.is_none()) << "input " << i;
    const Tensor dense = gradient.to_dense();
    EXPECT_EQ(dense.shape(), inputs[i].shape());
    EXPECT_EQ(dense.dtype(), inputs[i].dtype());
    expect_close(dense.to_doubles(), central_differences(c.function, inputs, i, c.step), 1e-6,
                 concat("input ", i));
  }
}

inline std::vector<Gradient> gradients_of(const Case& c, const std::vector<Tensor>& inputs) {
  const std::vector<Tensor> sources = checked_inputs(c, inputs);
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  return tape.gradient(weighted_sum(c.function(inputs), 1), sources);
}

/// float32 takes other, faster kernels than float64: both must give the same gradients.
inline void check_float32(const Case& c) {
  const std::vector<Tensor> inputs = make_inputs(c);
  std::vector<Tensor> rounded;
  for (const Tensor& input : inputs) {
    rounded.push_back(input.dtype() == DType::kFloat64 ? cast(input, DType::kFloat32) : input);
  }
  const std::vector<Gradient> expected = gradients_of(c, inputs), actual = gradients_of(c, rounded);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Tensor dense = actual[i].to_dense();
    EXPECT_EQ(dense.dtype(), DType::kFloat32);
    const std::vector<double> want = expected[i].to_dense().to_doubles();
    double scale = 0.1;
    for (const double value : want) scale = std::max(scale, std::abs(value));
    const std::vector<double> got = dense.to_doubles();
    SCOPED_TRACE(concat("source ", i));
    testing::expect_near(got, want, 2e-5 * scale);
  }
}

/// The case whose function is the gradient of `c`: checking it checks second derivatives. Inputs
/// without influence on the gradient count as zeros.
inline Case second_order_case(const Case& c) {
  Case second = c;
  second.function = [c](const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> sources = checked_inputs(c, inputs);
    GradientTape tape;
    for (const Tensor& source : sources) tape.watch(source);
    const Tensor y = c.function(inputs);
    // The square keeps linear operations from having a constant gradient.
    const std::vector<Gradient> gradients = tape.gradient(weighted_sum(square(y) + y, 2), sources);
    Tensor total = Tensor::zeros({}, DType::kFloat64);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].is_none()) continue;
      const Tensor dense =
          gradients[i].is_slices()
              ? scatter_rows(gradients[i].slices().values, gradients[i].slices().indices,
                             gradients[i].slices().dense_shape)
              : gradients[i].dense();
      total = total + weighted_sum(dense, 10 + i);
    }
    return total;
  };
  return second;
}

/// With axis 0 of the batched inputs made 0, nothing throws, gradients have their shapes, and those
/// of weights are zeros.
inline void check_empty_batch(const Case& c) {
  Case empty = c;
  bool any = false;
  for (Input& input : empty.inputs) {
    if (!input.rows) continue;
    any = true;
    input.shape = input.shape.with_dim(0, 0);
    input.values.clear();
  }
  if (!any) return;
  const std::vector<Tensor> inputs = make_inputs(empty);
  const std::vector<Tensor> sources = checked_inputs(empty, inputs);
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  const std::vector<Gradient> gradients = tape.gradient(empty.function(inputs), sources);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (gradients[i].is_none()) continue;
    const Tensor dense = gradients[i].to_dense();
    EXPECT_EQ(dense.shape(), sources[i].shape()) << "source " << i;
    for (const double value : dense.to_doubles()) EXPECT_EQ(value, 0.0) << "source " << i;
  }
}

inline void check_all(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(concat(to_string(c.op), " ", c.name));
    try {
      check_gradients(c);
      if (c.orders == Orders::kFirstAndSecond) {
        SCOPED_TRACE("second order");
        check_gradients(second_order_case(c));
      }
      {
        SCOPED_TRACE("float32");
        check_float32(c);
      }
      SCOPED_TRACE("empty batch");
      check_empty_batch(c);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

/// Cases that are compared together.
struct Group {
  const char* name;
  std::vector<Case> (*cases)();
};

/// How googletest shows a group.
inline void PrintTo(const Group& group, std::ostream* out) { *out << group.name; }

inline const Group kGroups[] = {{"unary", unary_cases},
                                {"binary", binary_cases},
                                {"activation_grad", activation_grad_cases},
                                {"reduction", reduction_cases},
                                {"matmul", matmul_cases},
                                {"convolution", convolution_cases},
                                {"pooling", pooling_cases},
                                {"normalization", normalization_cases},
                                {"softmax", softmax_cases},
                                {"attention", attention_cases},
                                {"shape", shape_cases}};

/// Takes each group as its parameter.
class GroupTest : public ::testing::TestWithParam<Group> {};

inline std::string group_name(const ::testing::TestParamInfo<Group>& group) {
  return group.param.name;
}

/// Returns the result of the case's function, in float32, and the gradients of its weighted sum;
/// those that are none are undefined.
inline std::vector<Tensor> value_and_gradients(const Case& c, Device device) {
  std::vector<Tensor> inputs;
  for (const Tensor& input : make_inputs(c)) {
    inputs.push_back(
        (input.dtype() == DType::kFloat64 ? cast(input, DType::kFloat32) : input).to(device));
  }
  const std::vector<Tensor> sources = checked_inputs(c, inputs);
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  const Tensor y = c.function(inputs);
  EXPECT_EQ(y.device(), device);
  const Tensor weights = cast(random_tensor(y.shape(), 1, 0.5, 1.5), y.dtype());
  std::vector<Tensor> results = {y};
  for (const Gradient& gradient : tape.gradient(reduce_sum(y * weights.to(device)), sources)) {
    results.push_back(gradient.is_none() ? Tensor() : gradient.to_dense());
  }
  return results;
}

/// Compares results of value_and_gradients() with those of the CPU. `tolerance` is relative to the
/// largest element of each, or to 0.1.
inline void expect_near_cpu(const Case& c, const std::vector<Tensor>& actual, double tolerance) {
  const std::vector<Tensor> expected = value_and_gradients(c, Device{});
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(concat(to_string(c.op), " ", c.name, ": ",
                        i == 0 ? std::string("value") : concat("gradient ", i - 1)));
    ASSERT_EQ(actual[i].defined(), expected[i].defined());
    if (!expected[i].defined()) continue;
    ASSERT_EQ(actual[i].shape(), expected[i].shape());
    const std::vector<double> got = actual[i].to_doubles(), want = expected[i].to_doubles();
    double scale = 0.1;
    for (const double value : want) scale = std::max(scale, std::abs(value));
    testing::expect_near(got, want, tolerance * scale);
  }
}

}  // namespace tutti::gradient_check
