// What reading a file may cost.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/input_limits.h"

#include <algorithm>

namespace tutti::internal {

void require_within(const InputLimits& limits, std::uint64_t unpacked, std::uint64_t packed,
                    const std::string& source) {
  constexpr std::uint64_t kAlwaysFine = std::uint64_t{1} << 28;
  if (unpacked > static_cast<std::uint64_t>(std::max<std::int64_t>(limits.max_bytes, 0))) {
    fail(ErrorCode::kResourceExhausted, source, ": expected at most ", limits.max_bytes,
         " bytes, got ", unpacked, " or more; try InputLimits::max_bytes, where they are right");
  }
  if (unpacked <= kAlwaysFine || packed == 0) return;
  if (unpacked / packed <
      static_cast<std::uint64_t>(std::max<std::int64_t>(limits.max_expansion, 1))) {
    return;
  }
  fail(ErrorCode::kResourceExhausted, source, ": ", packed, " compressed bytes become ", unpacked,
       " or more; expected less than ", limits.max_expansion,
       " times as many; try InputLimits::max_expansion, where they are right");
}

}  // namespace tutti::internal
