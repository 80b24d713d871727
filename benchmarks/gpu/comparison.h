// Comparison of a device's results with the CPU's, within rounding errors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/tensor/tensor.h"

namespace tutti::device_check {

/// Returns the allowed difference of an element, relative to the magnitude of the largest element:
/// a few roundings of the coarsest floating-point type among `dtypes`, or 0 if none is
/// floating-point.
double tolerance_of(std::span<const DType> dtypes);

/// Returns "" if shape, type and elements agree (with infinities and NaNs in the same positions),
/// or otherwise the first difference. Both tensors are on the CPU. `terms` is the magnitude of the
/// summands, which matters if the result may be far smaller.
std::string difference(const Tensor& actual, const Tensor& expected, double tolerance,
                       double terms = 0.0);

/// Returns the largest magnitude of a finite element.
double largest_of(const Tensor& tensor);

/// Result of one check.
struct Findings {
  std::string check;
  std::int64_t num_compared = 0, num_passed = 0;
  std::vector<std::string> failures = {};        // one line per failure
  std::vector<std::string> without_kernel = {};  // cases without a kernel, such as "conv2d float64"
  std::vector<std::string> not_tried = {};       // kernels that were never called
  std::string detail = "";                       // summary of what was compared

  void add(const std::string& what, const std::string& difference);
  bool passed() const { return num_compared > 0 && failures.empty() && not_tried.empty(); }
  Json json() const;
};

}  // namespace tutti::device_check
