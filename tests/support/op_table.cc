// Runs the table of operations on a backend and on the reference kernels.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"

namespace tutti::testing {
namespace {

/// Returns the distance between neighbouring numbers near 1.
double resolution(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return std::numeric_limits<double>::epsilon();
    case DType::kBFloat16:
      return 0x1p-7;
    case DType::kFloat16:
      return 0x1p-10;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

/// Expects equal bits, except that any two NaNs are equal.
void expect_same_numbers(const Tensor& actual, const Tensor& expected) {
  if (!is_floating(expected.dtype())) return expect_same_bits(actual, expected);
  ASSERT_EQ(actual.dtype(), expected.dtype());
  ASSERT_EQ(actual.shape(), expected.shape());
  if (std::ranges::equal(actual.bytes(), expected.bytes())) return;
  const std::vector<double> got = actual.to_doubles(), want = expected.to_doubles();
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    EXPECT_TRUE(got[i] == want[i] && std::signbit(got[i]) == std::signbit(want[i]))
        << "element " << i << ": expected " << want[i] << ", got " << got[i];
  }
}

/// Returns true if no input or output is empty.
bool has_elements(const OpCase& c) {
  const auto is_empty = [](const Shape& shape) { return shape.num_elements() == 0; };
  return std::ranges::none_of(c.call.inputs, is_empty, &Tensor::shape) &&
         std::ranges::none_of(c.call.outputs, is_empty, &TensorSpec::shape);
}

/// Returns the family's cases that the backend runs.
std::vector<OpCase> cases_for(const OpBackend& backend, const OpFamily& family) {
  std::map<std::pair<OpId, DType>, std::vector<OpCase>> by_type;
  for (OpCase& c : family.cases()) {
    const std::pair type(c.call.op, c.call.inputs[0].dtype());
    if (!backend.has(type.first, type.second)) continue;
    if (backend.leaves_out == nullptr || !backend.leaves_out(c)) {
      by_type[type].push_back(std::move(c));
    }
  }
  std::vector<OpCase> chosen;
  for (auto& [type, cases] : by_type) {
    std::size_t count = cases.size();
    if (backend.cases_of_float32 != 0) {
      // A limited selection has at most one case with an empty tensor, in float32.
      const auto end = std::stable_partition(cases.begin(), cases.end(), has_elements);
      const bool is_float32 = type.second == DType::kFloat32;
      if (is_float32 && end != cases.end() && end != cases.begin()) chosen.push_back(cases.back());
      if (end != cases.begin()) cases.erase(end, cases.end());
      count = is_float32 ? std::min(cases.size(), backend.cases_of_float32) : 1;
    }
    for (std::size_t i = 1; i <= count; ++i) {
      chosen.push_back(std::move(cases[i * cases.size() / count - 1]));
    }
  }
  return chosen;
}

}  // namespace

const OpFamily& op_family(std::string_view name) {
  const auto found = std::ranges::find_if(
      op_families(), [&](const OpFamily& family) { return family.name == name; });
  TUTTI_CHECK(found != op_families().end(), "op_family: expected the name of a family, got ", name);
  return *found;
}

void expect_close(const Tensor& actual, const Tensor& expected, double ulps) {
  const DType dtype = expected.dtype();
  if (ulps == 0.0 || !is_floating(dtype)) return expect_same_numbers(actual, expected);
  double tolerance = ulps * resolution(is_half(dtype) ? DType::kFloat32 : dtype);
  if (is_half(dtype)) tolerance += resolution(dtype);
  ASSERT_EQ(actual.dtype(), dtype);
  expect_tensor(actual, expected.shape(), expected.to_doubles(), tolerance);
}

void expect_agreement(const OpBackend& backend, const OpFamily& family) {
  const std::vector<OpCase> cases = cases_for(backend, family);
  std::vector<OpCall> calls;
  for (const OpCase& c : cases) calls.push_back(c.call);
  const std::vector<std::vector<Tensor>> results = backend.run(calls);
  ASSERT_EQ(results.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(concat(backend.name, ": ", cases[i].name()));
    const std::vector<Tensor> expected = run_kernel(reference_kernels(), cases[i].call);
    ASSERT_EQ(results[i].size(), expected.size());
    const double ulps = backend.ulps != nullptr ? backend.ulps(cases[i]) : cases[i].ulps;
    for (std::size_t k = 0; k < expected.size(); ++k) {
      SCOPED_TRACE(concat("output ", k));
      expect_close(results[i][k], expected[k], ulps);
    }
  }
}

void expect_cases_of_all_kernels(const OpBackend& backend) {
  std::set<std::pair<OpId, DType>> in_table;
  for (const OpFamily& family : op_families()) {
    for (const OpCase& c : cases_for(backend, family)) {
      in_table.emplace(c.call.op, c.call.inputs[0].dtype());
    }
  }
  for (int number = 0; number < static_cast<int>(OpId::kCount); ++number) {
    const OpId op = static_cast<OpId>(number);
    for (const DType dtype : kAllDTypes) {
      if (!backend.has(op, dtype)) continue;
      EXPECT_TRUE(in_table.contains({op, dtype}))
          << "op table: expected a case of " << to_string(op) << " " << dtype << ", which "
          << backend.name << " computes; add one to tests/support/op_cases.cc";
    }
  }
}

}  // namespace tutti::testing
