// Reduction of values across replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string_view>

namespace tutti {

/// Reduction over replicas: tf.distribute.ReduceOp, extended with MPI's MIN, MAX and PROD. The
/// enumerators' values never change, because plugins depend on them.
enum class ReduceOp { kSum = 0, kMean = 1, kMin = 2, kMax = 3, kProduct = 4 };

std::string_view to_string(ReduceOp op);  // "SUM", ...
/// Parses a name, ignoring case. Throws kInvalidArgument, listing the names, for any other text.
ReduceOp parse_reduce_op(std::string_view text);
std::ostream& operator<<(std::ostream& out, ReduceOp op);

}  // namespace tutti
