// Code shared by the fuzz targets: passes inputs as text, and checks the errors that reject them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti {

/// Implements LLVMFuzzerTestOneInput(): calls `read` on the input, which `read` may refuse by
/// throwing an Error. If `codes` is not empty, an Error with a code not in `codes` aborts the
/// process.
template <class Read>
int fuzz(const std::uint8_t* data, std::size_t size, const Read& read,
         std::initializer_list<ErrorCode> codes = {}) {
  try {
    read(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error& error) {
    if (codes.size() > 0 && std::ranges::find(codes, error.code()) == codes.end()) std::abort();
  }
  return 0;
}

}  // namespace tutti
