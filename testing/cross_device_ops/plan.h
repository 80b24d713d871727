// Which cases: all of them, or a seeded sample.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/testing/cross_device_ops/case.h"

namespace tutti::conformance {

struct Plan {
  std::vector<GroupShape> shapes = {GroupShape::kLocal, GroupShape::kSpread, GroupShape::kThreads};
  std::uint64_t seed = 1;
  /// 0: every case. Else a sample of about so many, at least one of each shape, check, collective,
  /// reduction and type: chosen by the seed, which also makes the values.
  std::size_t sample = 0;
  /// The largest number of elements: 2^20 + 1 is the largest there is.
  std::size_t max_count = std::size_t{1} << 21;
};

/// In an order in which groups can be kept from case to case: by shape and number of ranks.
std::vector<Case> cases(const Plan& plan);

}  // namespace tutti::conformance
