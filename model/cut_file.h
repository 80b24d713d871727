// Takes back what was appended to a file after a moment that training goes back to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tutti/core/json.h"

namespace tutti::internal {

/// In bytes; 0 for a file that is not there; null where another process writes it.
inline Json length_of_file(const std::string& path, bool is_writer) {
  if (!is_writer) return {};
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return Json(error ? std::int64_t{0} : static_cast<std::int64_t>(size));
}

/// Makes a file that is longer than `length` (of length_of_file()) that long. A null leaves it: a
/// line may stand there twice then, but none is lost.
inline void cut_file(const std::string& path, const Json& length, bool is_writer) {
  if (!is_writer || length.is_null()) return;
  if (length_of_file(path, true).as_int() <= length.as_int()) return;
  std::error_code ignored;  // writing to it says what is wrong
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(length.as_int()), ignored);
}

}  // namespace tutti::internal
