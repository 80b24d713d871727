// A small IDX file, compressed: a vector of the bytes 5, 6 and 7.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::data_test {

// printf '\0\0\x08\x01\0\0\0\x03\x05\x06\x07' | gzip -n9 | od -An -tx1
inline std::string packed_idx_file() {
  constexpr unsigned char kBytes[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
                                      0x02, 0x03, 0x63, 0x60, 0xe0, 0x60, 0x64, 0x60,
                                      0x60, 0x60, 0x66, 0x65, 0x63, 0x07, 0x00, 0x4a,
                                      0x4c, 0xb5, 0xc0, 0x0b, 0x00, 0x00, 0x00};
  return std::string(reinterpret_cast<const char*>(kBytes), sizeof kBytes);
}

}  // namespace tutti::data_test
