// The parsers of image sets: bytes in IDX's format, and in CIFAR-10's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/data/readers.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// The IDX format of MNIST: one array per file.

/// Parses the bytes of a plain IDX file: 0, 0, element type, number of dimensions, the dimensions
/// (4 bytes each, big-endian), the elements (row-major, big-endian). Types: unsigned byte -> uint8,
/// int -> int32, float -> float32, double -> float64. `source` names the bytes in errors: kDataLoss
/// with offset, expected and got; kUnimplemented for signed bytes and shorts, which no tensor
/// holds.
Tensor parse_idx(std::string_view bytes, const std::string& source);

/// Returns the path of a file of MNIST or its likes, plain or as .gz: in `directory`, or where
/// read_mnist() looks if that is empty. Throws kNotFound.
std::string find_mnist_file(const std::string& directory, const std::string& name);

// The binary version of CIFAR-10: records of a label and a picture.

/// Parses the bytes of a plain file of records: 1 label byte (0 .. 9) and 3072 image bytes (planes
/// of 32 x 32: red, green, blue). Gives images [n, 32, 32, 3] and labels [n], uint8. `source` names
/// the bytes in errors: kDataLoss with offset, expected and got for an empty or incomplete file or
/// a label above 9.
ImageData parse_cifar10(std::string_view bytes, const std::string& source);

}  // namespace tutti
