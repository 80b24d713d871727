// Source pixels for each pixel of an enlarged image, and their weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tutti/tensor/op.h"

namespace tutti::internal {

/// Sources of one position on an axis of the large image: its value is (1 - weight) * small[first]
/// + weight * small[second].
template <class T>
struct UpsampleSource {
  std::int64_t first = 0, second = 0;
  T weight{0};
};

template <class T>
std::vector<UpsampleSource<T>> upsample_sources(std::int64_t size, std::int64_t factor,
                                                Interpolation interpolation) {
  std::vector<UpsampleSource<T>> result;
  for (std::int64_t i = 0; i < size * factor; ++i) {
    if (interpolation == Interpolation::kNearest) {
      result.push_back({i / factor, i / factor, T{0}});
      continue;
    }
    const double place =
        (static_cast<double>(i) + 0.5) / static_cast<double>(factor) - 0.5;  // pixel centres
    const double below = std::floor(place);
    const auto first = static_cast<std::int64_t>(below);
    result.push_back({std::max<std::int64_t>(first, 0), std::min(first + 1, size - 1),
                      static_cast<T>(place - below)});
  }
  return result;
}

/// Calls body(offset in the small image, offset in the large one, weight) for every pair of pixels,
/// one of each image, in which the small image's pixel contributes to the large image's pixel.
template <class T, class Body>
[[gnu::always_inline]] inline void for_each_part(const Shape& small, const UpsampleAttributes& a,
                                                 const Body& body) {
  const auto rows = upsample_sources<T>(small[1], a.factor_h, a.interpolation);
  const auto columns = upsample_sources<T>(small[2], a.factor_w, a.interpolation);
  const bool is_linear = a.interpolation == Interpolation::kBilinear;
  std::int64_t large = 0;
  for (std::int64_t n = 0; n < small[0]; ++n) {
    const auto offset = [&](std::int64_t h, std::int64_t w) {
      return ((n * small[1] + h) * small[2] + w) * small[3];
    };
    for (const UpsampleSource<T>& row : rows) {
      for (const UpsampleSource<T>& column : columns) {
        const T top = T{1} - row.weight, left = T{1} - column.weight;
        body(offset(row.first, column.first), large, top * left);
        if (is_linear) {
          body(offset(row.first, column.second), large, top * column.weight);
          body(offset(row.second, column.first), large, row.weight * left);
          body(offset(row.second, column.second), large, row.weight * column.weight);
        }
        large += small[3];
      }
    }
  }
}

}  // namespace tutti::internal
