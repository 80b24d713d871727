// Test expectations for tensors and errors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/thrown.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/tensor.h"

namespace tutti::testing {

/// Expects each number to be within `tolerance` of the expected number.
inline void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
  }
}

/// Expects a tensor with this shape and these elements, each within tolerance * max(1, |expected|).
/// NaN equals NaN.
inline void expect_tensor(const Tensor& actual, const Shape& shape,
                          const std::vector<double>& expected, double tolerance = 0.0) {
  ASSERT_EQ(actual.shape(), shape);
  const std::vector<double> values = actual.to_doubles();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << "element " << i << " is " << values[i];
    } else if (std::isinf(expected[i])) {
      EXPECT_EQ(values[i], expected[i]) << "element " << i;
    } else {
      EXPECT_NEAR(values[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i])))
          << "element " << i;
    }
  }
}

/// Expects two tensors to have the same type, shape and bytes.
inline void expect_same_bits(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.dtype(), expected.dtype());
  ASSERT_EQ(actual.shape(), expected.shape());
  EXPECT_TRUE(std::ranges::equal(actual.bytes(), expected.bytes())) << actual << "\ndiffers from\n"
                                                                    << expected;
}

}  // namespace tutti::testing
