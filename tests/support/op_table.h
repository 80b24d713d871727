// The table of operations that every backend computes, and its comparison with the reference
// kernels. A backend needs one OpBackend and two tests; tests/tensor/onednn_test.cc is an
// example.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti::testing {

/// A call of an operation, with inputs that are the same in every run.
struct OpCase {
  OpCall call;
  /// Largest difference from the reference kernels' result; 0: the same bits. Else a multiple of
  /// the type's resolution (of float32's, plus their own, for 16-bit types), relative to the number
  /// or to 1. Integers are always equal.
  double ulps = 0.0;
  /// True if elements are NaN, infinite, or so small or large that backends may differ.
  bool has_special_numbers = false;

  /// "add float32 [9, 17] float32 [17] -> [9, 17]".
  std::string name() const;
};

/// Operations that are tested together.
struct OpFamily {
  const char* name;
  std::vector<OpCase> (*cases)();
};

/// How googletest shows a family.
inline void PrintTo(const OpFamily& family, std::ostream* out) { *out << family.name; }

/// All families; together they have cases of every operation in every type of its first input.
const std::vector<OpFamily>& op_families();
/// Returns the family of that name.
const OpFamily& op_family(std::string_view name);

/// One implementation of the operations.
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

/// Returns true if the reference kernels compute `op` on `dtype`, if need be by way of float32.
bool reference_has(OpId op, DType dtype);

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
