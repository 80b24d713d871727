// Whole files: read, and written so that a reader sees the old content or the new, never half.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace tutti {

/// The bytes of a file. Throws kNotFound or kUnavailable naming the path and the system's reason.
std::string read_file(const std::string& path);

/// Writes to a temporary file beside `path`, flushes it to the disk and renames it over `path`.
/// Makes missing folders. Throws kUnavailable naming the path and the system's reason; then `path`
/// is unchanged.
void write_file_atomically(const std::string& path, std::string_view bytes);

}  // namespace tutti
