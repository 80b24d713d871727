// Names of kinds of files, for errors about files that a reader cannot read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace tutti::internal {

/// Returns what a file is by its first bytes, to be written behind "got ": "an empty file", "a zip
/// archive (...)", "a Git LFS pointer (...)", "an HTML page (...)", ... Bytes of no known kind are
/// shown: "text that begins with 'abc'", "bytes that begin with 00 1f". 512 bytes are enough; the
/// whole file may be passed. Thread-safe.
std::string describe_file(std::string_view first_bytes);

}  // namespace tutti::internal
