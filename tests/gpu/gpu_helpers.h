// Helpers for tests on GPUs. These tests need two GPUs, which may be simulated (TUTTI_CUDA_MODULE).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/core/random.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing {

inline constexpr Device kGpu{DeviceType::kGpu, 0};

inline std::vector<Tensor> on(Device device, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> moved;
  for (const Tensor& tensor : tensors) moved.push_back(tensor.to(device));
  return moved;
}

/// Expects the elements of `actual` and `expected` to differ by at most `tolerance` times the
/// largest absolute value in `expected`, or times 0.1 if that value is smaller.
inline void expect_near(const Tensor& actual, const Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.shape(), expected.shape());
  ASSERT_EQ(actual.dtype(), expected.dtype());
  const std::vector<double> got = actual.to_doubles(), want = expected.to_doubles();
  double scale = 0.1;
  for (const double value : want) scale = std::max(scale, std::abs(value));
  expect_near(got, want, tolerance * scale);
}

/// Returns a CPU tensor of random numbers between `low` and `high`.
inline Tensor numbers(const Shape& shape, std::uint64_t seed, double low = -1.0, double high = 1.0,
                      DType dtype = DType::kFloat32) {
  return random_uniform(shape, {.seed = seed}, low, high, dtype);
}

}  // namespace tutti::testing
