// Cuts what a process writes into lines.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/line_buffer.h"

namespace tutti::launch {

void LineBuffer::append(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view piece = bytes.substr(0, whole ? end : bytes.size());
    const std::size_t room = kMaxLine - rest_.size();
    rest_.append(piece.substr(0, room));
    if (piece.size() > room) {
      on_line(rest_);
      rest_.clear();
      bytes.remove_prefix(room);
      continue;
    }
    bytes.remove_prefix(piece.size() + (whole ? 1 : 0));
    if (!whole) break;
    on_line(rest_);
    rest_.clear();
  }
}

void LineBuffer::finish(const OnLine& on_line) {
  if (!rest_.empty()) on_line(rest_);
  rest_.clear();
}

}  // namespace tutti::launch
