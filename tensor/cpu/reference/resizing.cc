// Enlarging images: each pixel of the result is a weighted sum of at most four.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "tutti/tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

/// Position i of the larger axis is (1 - weight) * [first] + weight * [second] of the smaller.
template <class T>
struct Source {
  std::int64_t first = 0, second = 0;
  T weight{0};
};

template <class T>
std::vector<Source<T>> sources(std::int64_t size, std::int64_t factor,
                               Interpolation interpolation) {
  std::vector<Source<T>> result;
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

/// Calls body(offset in the small image, offset in the large one, weight) for every pair of pixels
/// of which one is part of the other.
template <class T, class Body>
void for_each_part(const Shape& small, const UpsampleAttributes& a, const Body& body) {
  const auto rows = sources<T>(small[1], a.factor_h, a.interpolation);
  const auto columns = sources<T>(small[2], a.factor_w, a.interpolation);
  const bool is_linear = a.interpolation == Interpolation::kBilinear;
  std::int64_t large = 0;
  for (std::int64_t n = 0; n < small[0]; ++n) {
    const auto offset = [&](std::int64_t h, std::int64_t w) {
      return ((n * small[1] + h) * small[2] + w) * small[3];
    };
    for (const Source<T>& row : rows) {
      for (const Source<T>& column : columns) {
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

template <class T>
void forward(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const std::int64_t channels = shape[3];
  const T* x = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_part<T>(shape, args.attributes_as<UpsampleAttributes>(),
                   [=](std::int64_t small, std::int64_t large, T weight) {
                     for (std::int64_t c = 0; c < channels; ++c) {
                       y[large + c] += weight * x[small + c];
                     }
                   });
}

template <class T>
void backward(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape();
  const std::int64_t channels = shape[3];
  const T* dy = args.in<T>(0).data();
  T* dx = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_part<T>(shape, args.attributes_as<UpsampleAttributes>(),
                   [=](std::int64_t small, std::int64_t large, T weight) {
                     for (std::int64_t c = 0; c < channels; ++c) {
                       dx[small + c] += weight * dy[large + c];
                     }
                   });
}

template <class T>
void register_for(KernelTable& table) {
  table.set(OpId::kUpsample, dtype_of<T>(), forward<T>);
  table.set(OpId::kUpsampleGrad, dtype_of<T>(), backward<T>);
}

}  // namespace

void register_resizing_kernels(KernelTable& table) {
  register_for<float>(table);
  register_for<double>(table);
}

}  // namespace tutti::internal
