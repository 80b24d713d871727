// Test cases for the operations in the table (op_table.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti::testing {

/// Operation call; its inputs are the same in every run.
struct OpCase {
  OpCall call;
  /// Largest allowed difference from the reference kernels' result, in units of the type's
  /// resolution times max(1, |value|); 0: equal bits or two NaNs. A 16-bit result may differ by
  /// this many units of float32 plus one of its own type. Integers must always be equal.
  double ulps = 0.0;
  /// True if some elements are NaN, infinite, or so small or large that backends may give different
  /// results.
  bool has_special_numbers = false;

  /// Returns a description such as "add float32 [9, 17] float32 [17] -> [9, 17]".
  std::string name() const;
};

/// Group of operations that are tested together.
struct OpFamily {
  const char* name;
  std::vector<OpCase> (*cases)();
};

/// Returns all families. Together they have cases for every operation and every type that its first
/// input may have.
const std::vector<OpFamily>& op_families();
/// Returns the family with that name.
const OpFamily& op_family(std::string_view name);

/// Returns true if the reference kernels compute `op` on `dtype`, either directly or in float32.
bool reference_has(OpId op, DType dtype);

}  // namespace tutti::testing
