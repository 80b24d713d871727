// Limits on the cost of reading a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <new>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

/// Limits on reading, as protection against small files that unpack to a huge size. Exceeding one
/// throws kResourceExhausted, naming the path and the field to raise.
struct InputLimits {
  /// Maximum ratio of unpacked to compressed size, checked after the first 256 MiB are unpacked.
  /// Typical ratios are 5 to 20 for text and 1,030 for a file of zeros.
  std::int64_t max_expansion = 250;
  /// Maximum size in bytes of an unpacked file, or of one member of a tar or .npz file.
  std::int64_t max_bytes = std::int64_t{1} << 36;
};

namespace internal {

/// Throws kResourceExhausted, naming `source`, if the limits do not allow `packed` bytes to expand
/// to `unpacked` bytes.
void require_within(const InputLimits& limits, std::uint64_t unpacked, std::uint64_t packed,
                    const std::string& source);

/// Returns the result of `read`. Throws kResourceExhausted, naming `source`, if memory runs out.
template <class Read>
auto name_when_out_of_memory(const std::string& source, Read read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kResourceExhausted, source,
         ": not enough memory to read the file (std::bad_alloc); try "
         "smaller files");
  } catch (const Error& error) {
    const bool unnamed = std::string(error.what()).find(source) == std::string::npos;
    if (error.code() != ErrorCode::kResourceExhausted || !unnamed) throw;
    throw error.with_context(source);
  }
}

}  // namespace internal
}  // namespace tutti
