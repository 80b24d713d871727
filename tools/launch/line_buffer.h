// Cuts what a process writes into lines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace tutti::launch {

/// Collects bytes and hands out whole lines, without the newline. A line longer than kMaxLine is
/// handed out in pieces: a process that never writes a newline cannot fill the memory.
class LineBuffer {
 public:
  static constexpr std::size_t kMaxLine = 64 * 1024;
  using OnLine = std::function<void(std::string_view line)>;

  void append(std::string_view bytes, const OnLine& on_line);
  /// Hands out what stands behind the last newline, if anything does.
  void finish(const OnLine& on_line);

 private:
  std::string rest_;
};

}  // namespace tutti::launch
