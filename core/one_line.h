// Text of others as a part of a message that is one line.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti {

/// `text` as messages show it: valid UTF-8 in one line, whatever the text is. Control characters,
/// line separators and bytes that are no UTF-8 are shown as '?', one each; what is longer than
/// `most` bytes is cut between two characters and ends in "...".
std::string one_line(std::string_view text, std::size_t most = 60);

}  // namespace tutti
