// Upsampling of images, and its gradient. The terms of each element are added in the same order as
// on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/strided_axes.h"

namespace tutti::cuda {
namespace {

/// One axis: pixel i of the large image is (1 - weight) * [first] + weight * [second] of the small
/// image (tensor/cpu/upsampling.h).
template <class N>
struct Source {
  std::int64_t first, second;
  N weight;
};

struct EnlargedAxis {
  std::int64_t size = 0, factor = 1;  // size of the small image, and scale
  bool is_linear = false;

  template <class N>
  __device__ __forceinline__ Source<N> source(std::int64_t i) const {
    if (!is_linear) {
      const std::int64_t nearest = quotient_of_large(i, factor);
      return {nearest, nearest, N{0}};
    }
    const double place = (static_cast<double>(i) + 0.5) / static_cast<double>(factor) - 0.5;
    const double below = std::floor(place);
    const auto first = static_cast<std::int64_t>(below);
    return {first > 0 ? first : 0, first + 1 < size ? first + 1 : size - 1,
            static_cast<N>(place - below)};
  }
  /// Returns the first pixel of the range [begin, end) of the large image that may depend on pixel
  /// `at` of the small one.
  __device__ __forceinline__ std::int64_t begin(std::int64_t at) const {
    const std::int64_t first = is_linear ? (2 * at - 1) * factor / 2 - 1 : at * factor;
    return first > 0 ? first : 0;
  }
  __device__ __forceinline__ std::int64_t end(std::int64_t at) const {
    const std::int64_t past = is_linear ? (2 * at + 3) * factor / 2 + 1 : (at + 1) * factor;
    return past < size * factor ? past : size * factor;
  }
};

struct Enlargement {
  Enlargement(const Shape& small, const UpsampleAttributes& a)
      : h{small[1], a.factor_h, a.interpolation == Interpolation::kBilinear},
        w{small[2], a.factor_w, a.interpolation == Interpolation::kBilinear},
        channels(small[3]) {}
  EnlargedAxis h, w;
  std::int64_t channels;
};

/// Returns a loop over an NHWC image. Its four offsets are the indices n, h, w and c.
StridedAxes<4> places_in(const Shape& shape) {
  std::array<Strides, 4> unit{};
  for (std::size_t axis = 0; axis < 4; ++axis) unit[axis][axis] = 1;
  return StridedAxes<4>(shape, unit);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    enlarge(Enlargement e, const __grid_constant__ StridedAxes<4> places, const T* x, T* y) {
  using N = Number<T>;
  std::int64_t at[4];
  for (std::int64_t i = thread_number(); i < places.count; i += num_threads()) {
    places.offsets_of(i, at);
    const auto row = e.h.source<N>(at[1]), column = e.w.source<N>(at[2]);
    const auto pixel = [&](std::int64_t h, std::int64_t w) {
      return number(x[((at[0] * e.h.size + h) * e.w.size + w) * e.channels + at[3]]);
    };
    const N top = N{1} - row.weight, left = N{1} - column.weight;
    N sum = N{0} + top * left * pixel(row.first, column.first);
    if (e.h.is_linear) {
      sum += top * column.weight * pixel(row.first, column.second);
      sum += row.weight * left * pixel(row.second, column.first);
      sum += row.weight * column.weight * pixel(row.second, column.second);
    }
    y[i] = element<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_gradient(Enlargement e, const __grid_constant__ StridedAxes<4> places, const T* dy,
                    T* dx) {
  using N = Number<T>;
  std::int64_t at[4];
  for (std::int64_t i = thread_number(); i < places.count; i += num_threads()) {
    places.offsets_of(i, at);
    N sum{0};
    for (std::int64_t h = e.h.begin(at[1]); h < e.h.end(at[1]); ++h) {
      const auto row = e.h.source<N>(h);
      const N top = N{1} - row.weight;
      for (std::int64_t w = e.w.begin(at[2]); w < e.w.end(at[2]); ++w) {
        const auto column = e.w.source<N>(w);
        const N left = N{1} - column.weight;
        const std::int64_t large = (at[0] * e.h.size * e.h.factor + h) * e.w.size * e.w.factor + w;
        const N d = number(dy[large * e.channels + at[3]]);
        const bool above = row.first == at[1], below = row.second == at[1];
        const bool before = column.first == at[2], behind = column.second == at[2];
        if (above && before) sum += top * left * d;
        if (!e.h.is_linear) continue;
        if (above && behind) sum += top * column.weight * d;
        if (below && before) sum += row.weight * left * d;
        if (below && behind) sum += row.weight * column.weight * d;
      }
    }
    dx[i] = element<T>(sum);
  }
}

template <class T>
void forward(const KernelCall& call) {
  const Enlargement e(call.inputs[0].shape, call.attributes_as<UpsampleAttributes>());
  const StridedAxes<4> places = places_in(call.outputs[0].shape);
  if (places.count == 0) return;
  launch(enlarge<T>, blocks_for(static_cast<std::size_t>(places.count)), kThreads, call.stream, e,
         places, call.in<T>(0), call.out<T>(0));
}

template <class T>
void backward(const KernelCall& call) {
  const Enlargement e(call.outputs[0].shape, call.attributes_as<UpsampleAttributes>());
  const StridedAxes<4> places = places_in(call.outputs[0].shape);
  if (places.count == 0) return;
  launch(gather_gradient<T>, blocks_for(static_cast<std::size_t>(places.count)), kThreads,
         call.stream, e, places, call.in<T>(0), call.out<T>(0));
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kUpsample, dtype_of<Ts>(), forward<Ts>), ...);
  (table.set(OpId::kUpsampleGrad, dtype_of<Ts>(), backward<Ts>), ...);
}

}  // namespace

void register_resizing_kernels(KernelTable& table) { set_floating<TUTTI_FLOATING_TYPES>(table); }

}  // namespace tutti::cuda
