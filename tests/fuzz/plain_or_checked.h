// Adapter for formats with checksums, which would reject nearly all inputs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// The first byte selects whether `read` gets the rest unchanged, or the result of `checked` on it.
template <class Read, class Checked>
int fuzz_plain_or_checked(const std::uint8_t* data, std::size_t size, const Read& read,
                          const Checked& checked) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  if (data[0] % 2 == 0) {
    read(input);
  } else {
    read(checked(input));
  }
  return 0;
}
