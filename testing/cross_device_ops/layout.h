// Where the elements of a case lie, and what each must become.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tutti/testing/cross_device_ops/case.h"

namespace tutti::conformance {

/// A run of a rank's output.
struct Segment {
  static constexpr int kCombination = -1;
  std::size_t output_first = 0;
  std::size_t count = 0;
  int source = kCombination;  // the rank whose input is copied, or the combination of all
  std::size_t input_first = 0;
};

struct RankLayout {
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  /// In place input and output share memory and begin so many elements behind its start.
  std::size_t input_place = 0;
  std::size_t output_place = 0;
  bool shares_memory = false;
  std::vector<Segment> segments;  // together the whole output
};

struct Layout {
  std::vector<RankLayout> ranks;
  /// all_gather, reduce_scatter: [world]; all_to_all: [world * world], row r: what r sends to each.
  std::vector<std::size_t> counts;
};

Layout layout_of(const Case& c);

}  // namespace tutti::conformance
