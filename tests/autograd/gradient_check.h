// Compares the gradients of test cases with central differences in double precision, or with the
// gradients on another device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "tests/autograd/gradient_cases.h"
#include "tests/support/op_table.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti::gradient_check {

/// Returns the floating-point inputs with index >= `first`: those that may have gradients.
inline Tensors sources_among(const Tensors& inputs, std::size_t first = 0) {
  Tensors sources;
  for (std::size_t i = first; i < inputs.size(); ++i) {
    if (is_floating(inputs[i].dtype())) sources.push_back(inputs[i]);
  }
  return sources;
}

/// Returns pseudo-random weights that are exact in every type.
inline Tensor weights_for(const Tensor& result, std::uint64_t seed) {
  return round(random_tensor(result.shape(), seed, 0.5, 1.5) * 32.0) * 0.03125;
}

/// Returns the sum of all elements of all results, weighted by weights_for().
inline Tensor weighted_sum(const Tensors& results, std::uint64_t seed) {
  Tensor sum;
  for (const Tensor& y : results) {
    const Tensor weights = cast(weights_for(y, seed++), y.dtype());
    const Tensor own = reduce_sum(y * weights.to(y.device()));
    sum = sum.defined() ? sum + own : own;
  }
  return sum;
}

inline double plain_weighted_sum(const Tensors& results, std::uint64_t seed) {
  double sum = 0.0;
  for (const Tensor& y : results) {
    const std::vector<double> values = y.to_doubles();
    const std::vector<double> weights = weights_for(y, seed++).to_doubles();
    for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  }
  return sum;
}

/// Returns central differences of the weighted sum of `function` with respect to each element of
/// input `index`.
inline std::vector<double> central_differences(const Function& function, const Tensors& inputs,
                                               std::size_t index, double step) {
  const std::vector<double> values = inputs[index].to_doubles();
  Tensors moved = inputs;
  const auto at = [&](std::size_t element, double value) {
    std::vector<double> changed = values;
    changed[element] = value;
    moved[index] = Tensor::from(inputs[index].shape(), changed);
    return plain_weighted_sum(function(moved), 1);
  };
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    result.push_back((at(i, values[i] + step) - at(i, values[i] - step)) / (2.0 * step));
  }
  return result;
}

inline std::vector<Gradient> gradients_of(const Function& function, const Tensors& inputs,
                                          std::size_t first = 0) {
  const Tensors sources = sources_among(inputs, first);
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  return tape.gradient(weighted_sum(function(inputs), 1), sources);
}

/// Compares the gradients with respect to inputs `first` and later with central differences. A
/// missing gradient counts as zeros.
inline void check_gradients(const Function& function, const Tensors& inputs, double step,
                            std::size_t first = 0) {
  const std::vector<Gradient> gradients = gradients_of(function, inputs, first);
  std::size_t next = 0;
  for (std::size_t i = first; i < inputs.size(); ++i) {
    if (!is_floating(inputs[i].dtype())) continue;
    SCOPED_TRACE(concat("input ", i));
    const Gradient& gradient = gradients[next++];
    const Tensor dense = gradient.is_none() ? Tensor::zeros(inputs[i].shape(), DType::kFloat64)
                                            : gradient.to_dense();
    EXPECT_EQ(dense.dtype(), inputs[i].dtype());
    ASSERT_EQ(dense.shape(), inputs[i].shape());
    const std::vector<double> actual = dense.to_doubles();
    const std::vector<double> expected = central_differences(function, inputs, i, step);
    for (std::size_t k = 0; k < actual.size(); ++k) {
      const double scale = std::max({0.1, std::abs(actual[k]), std::abs(expected[k])});
      EXPECT_LE(std::abs(actual[k] - expected[k]), 1e-6 * scale)
          << "element " << k << ": " << actual[k] << ", central difference " << expected[k];
    }
  }
}

/// Compares second derivatives with central differences of the first derivatives, for inputs with
/// index >= `first`. A missing gradient counts as zeros.
inline void check_second_order(const Case& c, std::size_t first) {
  const auto gradient = [&](const Tensors& inputs) {
    const Tensors sources = sources_among(inputs, first);
    GradientTape tape;
    for (const Tensor& source : sources) tape.watch(source);
    const Tensor y = c(inputs)[0];
    Tensors found{Tensor::zeros({}, DType::kFloat64)};
    // Without the square, the gradient of a linear operation would be constant.
    for (const Gradient& each : tape.gradient(weighted_sum({square(y) + y}, 2), sources)) {
      if (each.is_none()) continue;
      const IndexedSlices* const rows = each.is_slices() ? &each.slices() : nullptr;
      found.push_back(rows ? scatter_rows(rows->values, rows->indices, rows->dense_shape)
                           : each.dense());
    }
    return found;
  };
  check_gradients(gradient, c.call.inputs, c.step, first);
}

/// Expects that the tensors' numbers differ by at most `tolerance` times the larger of 0.1 and the
/// largest magnitude of `expected`.
inline void expect_near_largest(const Tensor& actual, const Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.shape(), expected.shape());
  const std::vector<double> want = expected.to_doubles();
  double scale = 0.1;
  for (const double value : want) scale = std::max(scale, std::abs(value));
  testing::expect_near(actual.to_doubles(), want, tolerance * scale);
}

inline Tensors in_float32(const Tensors& inputs, Device device = {}) {
  Tensors rounded;
  for (const Tensor& x : inputs) {
    rounded.push_back((x.dtype() == DType::kFloat64 ? cast(x, DType::kFloat32) : x).to(device));
  }
  return rounded;
}

/// Computes the case in float32. Returns its results, then the gradients of their weighted sum; a
/// missing gradient is an undefined tensor.
inline Tensors value_and_gradients(const Case& c, Device device) {
  const Tensors inputs = in_float32(c.call.inputs, device), sources = sources_among(inputs);
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  Tensors all = c(inputs);
  EXPECT_EQ(all[0].device(), device);
  const Tensor sum = weighted_sum(all, 1);
  for (const Gradient& gradient : tape.gradient(sum, sources)) {
    all.push_back(gradient.is_none() ? Tensor() : gradient.to_dense());
  }
  return all;
}

/// Compares the results of value_and_gradients() with the results on the CPU.
inline void expect_near_cpu(const Case& c, const Tensors& actual, double tolerance) {
  const Tensors expected = value_and_gradients(c, Device{});
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(concat(c.name, ": result or gradient ", i));
    ASSERT_EQ(actual[i].defined(), expected[i].defined());
    if (expected[i].defined()) expect_near_largest(actual[i], expected[i], tolerance);
  }
}

/// Compares the gradients of the faster float32 kernels with those of the float64 kernels.
inline void check_float32(const Case& c) {
  const auto function = [&](const Tensors& inputs) { return c(inputs); };
  const std::vector<Gradient> expected = gradients_of(function, c.call.inputs);
  const std::vector<Gradient> actual = gradients_of(function, in_float32(c.call.inputs));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(concat("source ", i));
    ASSERT_EQ(actual[i].is_none(), expected[i].is_none());
    if (expected[i].is_none()) continue;
    EXPECT_EQ(actual[i].to_dense().dtype(), DType::kFloat32);
    expect_near_largest(actual[i].to_dense(), expected[i].to_dense(), 2e-5);
  }
}

/// Checks that gradients of empty inputs have the right shapes, and are zeros if the result is
/// empty.
inline void check_nothing(const Case& c) {
  const auto function = [&](const Tensors& inputs) { return c(inputs); };
  const Tensors sources = sources_among(c.call.inputs);
  const std::vector<Gradient> gradients = gradients_of(function, c.call.inputs);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (gradients[i].is_none()) continue;
    const Tensor dense = gradients[i].to_dense();
    EXPECT_EQ(dense.shape(), sources[i].shape()) << "source " << i;
    if (c.call.outputs[0].shape.num_elements() > 0) continue;
    for (const double value : dense.to_doubles()) EXPECT_EQ(value, 0.0) << "source " << i;
  }
}

inline void check_all(const testing::OpFamily& family) {
  for (const Case& c : cases_of(family)) {
    SCOPED_TRACE(c.name);
    check_gradients([&](const Tensors& inputs) { return c(inputs); }, c.call.inputs, c.step);
    // The gradient of the logits assumes that the labels form a distribution. Changing a single
    // label breaks this assumption, so second derivatives with respect to labels are excluded.
    const std::size_t first = c.call.op == OpId::kSoftmaxCrossEntropy ? 1 : 0;
    if (c.has_second_order) {
      SCOPED_TRACE("second order");
      check_second_order(c, first);
    }
    SCOPED_TRACE("float32");
    check_float32(c);
  }
  for (const Case& c : cases_of(family, /*of_nothing=*/true)) {
    SCOPED_TRACE(c.name);
    check_nothing(c);
  }
}

}  // namespace tutti::gradient_check
