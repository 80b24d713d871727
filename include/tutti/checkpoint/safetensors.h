// The safetensors format: one file with named tensors and text metadata, which most frameworks
// read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/autograd/variable_storage.h"

namespace tutti {

/// Contents of a safetensors file. Names and metadata keys are unique.
struct SafetensorsFile {
  std::vector<NamedTensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// Returns the bytes of a safetensors file: the header's length (8 bytes, little-endian), a JSON
/// header, the elements (row-major, little-endian). Types: F32, F64, F16, BF16, I32, I64, U8, BOOL.
/// As in the reference implementation, tensors are sorted by type (wide types first, for alignment)
/// and name, so that equal tensors and metadata give equal bytes. Throws kInvalidArgument for a
/// name that is empty, occurs twice, is "__metadata__" or is not UTF-8, and for an undefined
/// tensor.
std::string format_safetensors(const SafetensorsFile& file);

/// Parses the bytes of a safetensors file. Returns the tensors on cpu:0, in the order in which
/// their elements are stored. `source` names the bytes in errors. Throws kDataLoss, naming the
/// source, the offset and the tensor, for damage (truncated or overlong file, overlapping tensors,
/// duplicate names, ...); kUnimplemented for element types (F8_E4M3, ...) or ranks that tensors do
/// not support.
SafetensorsFile parse_safetensors(std::string_view bytes, const std::string& source);

/// Same as parse_safetensors() and format_safetensors(), but for files. Reading throws kNotFound or
/// kUnavailable, naming the path. Writing is atomic, creates missing folders, and throws
/// kUnavailable if it fails.
SafetensorsFile read_safetensors(const std::string& path);
void write_safetensors(const std::string& path, const SafetensorsFile& file);

}  // namespace tutti
