// Table of operations that every backend computes, with checks of their results against the
// reference kernels. A backend needs one OpBackend and two tests; tests/tensor/op_table_test.cc is
// an example.
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

/// Backend under test.
struct OpBackend {
  const char* name;
  /// Returns true if the backend has a kernel of `op` for a first input of type `dtype`.
  bool (*has)(OpId op, DType dtype);
  /// Returns the outputs of each call.
  std::vector<std::vector<Tensor>> (*run)(std::span<const OpCall> calls);
  /// Function that returns the tolerance for a case; if null, the case's own tolerance applies.
  double (*ulps)(const OpCase& c) = nullptr;
  /// Returns true for cases that the backend does not compute; nullptr if it computes all cases.
  bool (*leaves_out)(const OpCase& c) = nullptr;
  /// Number of float32 cases per operation, evenly spaced among the cases without empty tensors.
  /// One float32 case with an empty tensor, if any, is added; other types have one case per
  /// operation. 0: all cases of all types.
  std::size_t cases_of_float32 = 0;
};

/// Compares an output with that of the reference kernels; OpCase explains `ulps`.
void expect_close(const Tensor& actual, const Tensor& expected, double ulps);

/// Runs each case of `family` that `backend` can compute, and compares the result with that of the
/// reference kernel.
void expect_agreement(const OpBackend& backend, const OpFamily& family);

/// Expects at least one case for each operation and type for which the backend has a kernel.
void expect_cases_of_all_kernels(const OpBackend& backend);

/// Test suite whose parameter is a family; instantiate it with INSTANTIATE_TEST_SUITE_P(Operations,
/// X, ::testing::ValuesIn(op_families()), family_name).
class OpTableTest : public ::testing::TestWithParam<OpFamily> {};

inline std::string family_name(const ::testing::TestParamInfo<OpFamily>& family) {
  return family.param.name;
}

}  // namespace tutti::testing
