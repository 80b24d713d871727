// What the tests of layers share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/thrown.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::layer_tests {

using thrown::error_of;

inline void expect_values(const Tensor& actual, const std::vector<double>& expected,
                          double tolerance = 1e-6) {
  const std::vector<double> values = actual.to_doubles();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], expected[i], tolerance) << "element " << i;
}

/// One of `replicas` replicas, alone: all_reduce(SUM) gives its value times the number of replicas,
/// as if all held the same.
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

/// 0, 1, 2, ... times `step`, as float32 of this shape.
inline Tensor counting(const Shape& shape, double step = 1.0) {
  std::vector<float> values(static_cast<std::size_t>(shape.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<double>(i) * step);
  return Tensor::from(shape, values);
}

/// Compares the gradient of `function` (a scalar) at `x`, which is float64, with central
/// differences of all elements.
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

}  // namespace tutti::layer_tests
