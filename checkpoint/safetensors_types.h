// Numbers and names that the reader and the writer of safetensors files share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <string_view>
#include <utility>

#include "tutti/tensor/dtype.h"

namespace tutti::internal {

static_assert(std::endian::native == std::endian::little,
              "elements are copied between files and memory as they are");

inline constexpr std::size_t kSafetensorsLengthBytes = 8;
/// The limit of the format's own reader.
inline constexpr std::size_t kSafetensorsMaxHeaderBytes = 100'000'000;
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";

/// In the order in which the format's own writer puts tensors: wide types first.
inline constexpr std::pair<std::string_view, DType> kSafetensorsDTypes[] = {
    {"I64", DType::kInt64}, {"F64", DType::kFloat64},   {"F32", DType::kFloat32},
    {"I32", DType::kInt32}, {"BF16", DType::kBFloat16}, {"F16", DType::kFloat16},
    {"U8", DType::kUInt8},  {"BOOL", DType::kBool}};

}  // namespace tutti::internal
