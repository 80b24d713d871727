// Inputs of formats with checksums, which would keep nearly all of them out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// The first byte says whether `read` gets the rest as it is, or what `checked` makes of it.
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
