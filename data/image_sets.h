// Parsers for image-set file formats: IDX and CIFAR-10.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/data/readers.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// The IDX format of MNIST: one array per file.

/// Parses the bytes of a plain IDX file: 0, 0, element type, number of dimensions, the dimensions
/// (4 bytes each, big-endian), and the elements (row-major, big-endian). Types: unsigned byte ->
/// uint8, int -> int32, float -> float32, double -> float64. `source` names the bytes in errors.
/// Throws kDataLoss with the offset and the expected and actual values; kUnimplemented for signed
/// bytes and shorts.
Tensor parse_idx(std::string_view bytes, const std::string& source);

/// Returns the path of a file of MNIST or a similar data set, plain or .gz, in `directory`. If
/// `directory` is empty, searches the same folders as read_mnist(). Throws kNotFound.
std::string find_mnist_file(const std::string& directory, const std::string& name);

// The binary version of CIFAR-10: records with a label and an image.

/// Parses the bytes of a plain file of records: 1 label byte (0 .. 9) and 3072 image bytes (planes
/// of 32 x 32: red, green, blue). Returns images [n, 32, 32, 3] and labels [n], uint8. `source`
/// names the bytes in errors. Throws kDataLoss, with the offset and the expected and actual values,
/// for an empty or incomplete file or a label above 9.
ImageData parse_cifar10(std::string_view bytes, const std::string& source);

}  // namespace tutti
