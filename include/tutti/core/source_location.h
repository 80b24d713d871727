// Replacement for std::source_location, which clang++ 14 lacks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L
#error "tutti needs C++20: compile with -std=c++20, or link tutti::tutti in CMake"
#endif

#include <cstdint>

namespace tutti {

/// Line of source code. The default argument `SourceLocation where = SourceLocation::current()`
/// captures the caller's line.
class SourceLocation {
 public:
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          std::uint_least32_t line = __builtin_LINE(),
                                          const char* function = __builtin_FUNCTION()) {
    SourceLocation location;
    location.file_ = file;
    location.line_ = line;
    location.function_ = function;
    return location;
  }

  constexpr const char* file_name() const { return file_; }
  constexpr std::uint_least32_t line() const { return line_; }
  constexpr const char* function_name() const { return function_; }

 private:
  const char* file_ = "";
  std::uint_least32_t line_ = 0;
  const char* function_ = "";
};

}  // namespace tutti
