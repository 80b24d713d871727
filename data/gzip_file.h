// Compressed files, on zlib.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/data/input_limits.h"

namespace tutti::internal {

/// Whether the bytes begin like those of a .gz file.
bool is_gzip(std::string_view bytes);

/// The content of a .gz file (of all its members). `source` names it in errors. Throws kDataLoss
/// naming source and offset where the bytes are damaged or end early; kResourceExhausted beyond
/// `limits`; kUnimplemented in a build without zlib.
std::string gunzip(std::string_view bytes, const std::string& source,
                   const InputLimits& limits = {});

/// How zlib frames what it packs.
enum class DeflateFormat { kGzip, kZlib, kRaw };

/// Unpacks `bytes` to at most `stated_bytes`; errors as gunzip(), and kDataLoss for a larger
/// content.
std::string inflate_bytes(std::string_view bytes, DeflateFormat format, const std::string& source,
                          const InputLimits& limits = {}, std::size_t stated_bytes = SIZE_MAX);

/// Packs `bytes`. Throws kUnimplemented in a build without zlib.
std::string deflate_bytes(std::string_view bytes, DeflateFormat format);

/// read_file(), unpacked when it is a .gz file.
std::string read_plain_or_gzip(const std::string& path, const InputLimits& limits = {});

}  // namespace tutti::internal
