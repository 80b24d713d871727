// The IDX format of MNIST: one array per file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Parses the bytes of a plain IDX file: 0, 0, element type, number of dimensions, the dimensions
/// (4 bytes each, big-endian), the elements (row-major, big-endian). Types: unsigned byte -> uint8,
/// int -> int32, float -> float32, double -> float64. `source` names the bytes in errors: kDataLoss
/// with offset, expected and got; kUnimplemented for signed bytes and shorts, which no tensor
/// holds.
Tensor parse_idx(std::string_view bytes, const std::string& source);

}  // namespace tutti
