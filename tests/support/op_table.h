// Table of operations that every backend computes, and its comparison with the reference kernels. A
// backend needs one OpBackend and two tests; tests/tensor/op_table_test.cc is an example.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "tests/support/op_cases.h"

namespace tutti::testing {

/// Lets googletest print a family.
inline void PrintTo(const OpFamily& family, std::ostream* out) { *out << family.name; }

/// Implementation of the operations.
struct OpBackend {
  const char* name;
  /// Returns true if there is a kernel for elements of `dtype` (of the first input).
  bool (*has)(OpId op, DType dtype);
  /// Returns the outputs of each call.
  std::vector<std::vector<Tensor>> (*run)(std::span<const OpCall> calls);
  /// Returns the tolerance of a case; nullptr: its own.
  double (*ulps)(const OpCase& c) = nullptr;
  /// Returns true for cases that the backend is known not to compute; nullptr: none.
  bool (*leaves_out)(const OpCase& c) = nullptr;
  /// Number of cases with elements of each operation in float32, evenly chosen, and one in other
  /// types; 0: all cases.
  std::size_t cases_of_float32 = 0;
};

/// Compares an output with that of the reference kernels.
void expect_close(const Tensor& actual, const Tensor& expected, double ulps);

/// Runs those cases of a family on `backend` that it computes, and compares them with the reference
/// kernels.
void expect_agreement(const OpBackend& backend, const OpFamily& family);

/// Expects a case of each operation and type for which the backend has a kernel.
void expect_cases_of_all_kernels(const OpBackend& backend);

/// Takes each family as its parameter, by INSTANTIATE_TEST_SUITE_P(Operations, X,
/// ::testing::ValuesIn(op_families()), family_name).
class OpTableTest : public ::testing::TestWithParam<OpFamily> {};

inline std::string family_name(const ::testing::TestParamInfo<OpFamily>& family) {
  return family.param.name;
}

}  // namespace tutti::testing
