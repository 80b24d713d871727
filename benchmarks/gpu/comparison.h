// Whether a device's result is the CPU's, up to rounding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/tensor/tensor.h"

namespace tutti::device_check {

/// How far an element may be from the expected one, relative to the larger of its size and that of
/// the largest element: a few roundings of the coarsest floating type among them. Integers and
/// truth values: 0.
double tolerance_of(std::span<const DType> dtypes);

/// Nothing when shape, type and elements agree (infinities and NaN in the same places), else the
/// first difference. Both on the CPU. `terms`: the size of what was added up, where the result may
/// be far smaller.
std::string difference(const Tensor& actual, const Tensor& expected, double tolerance,
                       double terms = 0.0);

/// The largest magnitude of a finite element.
double largest_of(const Tensor& tensor);

/// What a check found.
struct Findings {
  std::string check;
  std::int64_t num_compared = 0, num_passed = 0;
  std::vector<std::string> failures = {};        // one line each
  std::vector<std::string> without_kernel = {};  // "conv2d float64": refused with kUnimplemented
  std::vector<std::string> not_tried = {};       // kernels that no call reached
  std::string detail = "";                       // for people

  void add(const std::string& what, const std::string& difference);
  bool passed() const { return num_compared > 0 && failures.empty() && not_tried.empty(); }
  Json json() const;
};

}  // namespace tutti::device_check
