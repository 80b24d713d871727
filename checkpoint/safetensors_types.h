// Definitions shared by the readers and the writers of safetensors files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti::internal {

static_assert(std::endian::native == std::endian::little,
              "elements are copied between files and memory as they are");

inline constexpr std::size_t kSafetensorsLengthBytes = 8;
/// Maximum header size that the format's reference implementation accepts.
inline constexpr std::size_t kSafetensorsMaxHeaderBytes = 100'000'000;
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

/// Types in the order in which the reference implementation sorts tensors: wide types first.
inline constexpr std::pair<std::string_view, DType> kSafetensorsDTypes[] = {
    {"I64", DType::kInt64}, {"F64", DType::kFloat64},   {"F32", DType::kFloat32},
    {"I32", DType::kInt32}, {"BF16", DType::kBFloat16}, {"F16", DType::kFloat16},
    {"U8", DType::kUInt8},  {"BOOL", DType::kBool}};

/// Returns the JSON header's length, which is stored at the start of a file; missing bytes count as
/// 0.
std::uint64_t safetensors_header_length(std::string_view bytes);

std::string_view safetensors_name_of(DType dtype);
/// Returns nullopt for names of types that tensors do not support.
std::optional<DType> dtype_of_safetensors_name(std::string_view name);

/// Tensor that a header describes. Offsets count from the start of the file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Returns the head (length and JSON header) of a file that contains these tensors. Sorts `entries`
/// into file order and sets their offsets. Throws kInvalidArgument as format_safetensors() does.
std::string format_safetensors_head(
    const std::vector<std::pair<std::string, std::string>>& metadata,
    std::vector<SafetensorsEntry>& entries);

/// Layout of a file to write: the head (length and JSON header), then the elements of `tensors`.
struct SafetensorsLayout {
  std::string head;
  std::vector<NamedTensor> tensors;  // in file order, on the host
  std::size_t num_bytes = 0;         // size of the whole file
};
/// Throws the same errors as format_safetensors().
SafetensorsLayout lay_out_safetensors(const SafetensorsFile& file);

struct SafetensorsHeader {
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<SafetensorsEntry> entries;  // in file order; cover all bytes after the header
};
/// Throws kDataLoss, naming the source, the offset and the tensor, if an element of type BOOL is
/// neither 0 nor 1; other types allow any bytes. `offset` is the offset of `elements` in the file.
void require_elements(std::string_view elements, const SafetensorsEntry& entry,
                      std::uint64_t offset, const std::string& source);
/// Parses the header of a file of `file_size` bytes. `bytes` is the start of the file, at least up
/// to the end of the header. Throws the same errors as parse_safetensors().
SafetensorsHeader parse_safetensors_header(std::string_view bytes, std::size_t file_size,
                                           const std::string& source);

}  // namespace tutti::internal
