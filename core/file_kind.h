// Descriptions of file types, for errors about files that a reader does not accept.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti::internal {

/// Returns a description of a file, based on its first bytes, for use after "got ": "an empty
/// file", "a zip archive (...)", "a Git LFS pointer (...)", "an HTML page (...)", ... Returns ""
/// for an unknown kind. 512 bytes are enough; the whole file may be passed. Thread-safe.
std::string kind_of_file(std::string_view first_bytes);
/// Returned by kind_of_file() for text without any other character.
inline constexpr std::string_view kOnlyWhiteSpace = "only white space";

/// Same as kind_of_file(), but shows the first bytes of a file of unknown kind: "text that begins
/// with 'abc'", "bytes that begin with 00 1f".
std::string describe_file(std::string_view first_bytes);

/// Returns "; the file is <kind>", to be appended to another error, or "" for an unknown kind.
std::string kind_note(std::string_view first_bytes);

/// Throws kDataLoss with the text of `parts` after "<source>: offset <offset>: ".
template <class... Parts>
[[noreturn]] void fail_at(std::string_view source, std::uint64_t offset, const Parts&... parts) {
  fail(ErrorCode::kDataLoss, source, ": offset ", offset, ": ", parts...);
}

}  // namespace tutti::internal
