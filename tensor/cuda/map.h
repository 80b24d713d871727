// Elementwise kernels: one function of up to three elements, with broadcasting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/strided_axes.h"

namespace tutti::cuda {

/// Loads `kWidth` elements from `data`, or repeats `data[0]` if `is_repeated` is true.
template <int kWidth, class T>
__device__ __forceinline__ void load(const T* data, bool is_repeated,
                                     Number<T> (&numbers)[kWidth]) {
  if (kWidth == 1 || is_repeated) {
    const Number<T> first = number(data[0]);
    for (int i = 0; i < kWidth; ++i) numbers[i] = first;
  } else {
    const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(data);
    for (int i = 0; i < kWidth; ++i) numbers[i] = number(pack.elements[i]);
  }
}

/// Applies f to the elements at `offsets` and writes the results to y[first ...].
template <int kWidth, int kArity, class F, class Y, class A, class B, class C>
__device__ __forceinline__ void map_at(const F& f, std::int64_t first, const std::int64_t* offsets,
                                       const bool* is_repeated, Y* y, const A* a, const B* b,
                                       const C* c) {
  Number<A> as[kWidth];
  Number<B> bs[kWidth];
  Number<C> cs[kWidth];
  load<kWidth>(a + offsets[0], is_repeated[0], as);
  if constexpr (kArity > 1) load<kWidth>(b + offsets[1], is_repeated[1], bs);
  if constexpr (kArity > 2) load<kWidth>(c + offsets[2], is_repeated[2], cs);
  Pack<Y, kWidth> pack;
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kArity == 1) {
      pack.elements[i] = element<Y>(f(as[i]));
    } else if constexpr (kArity == 2) {
      pack.elements[i] = element<Y>(f(as[i], bs[i]));
    } else {
      pack.elements[i] = element<Y>(f(as[i], bs[i], cs[i]));
    }
  }
  *reinterpret_cast<Pack<Y, kWidth>*>(y + first) = pack;
}

/// Applies f to the elements of `axes`, in packs of kWidth if `is_wide`, then to the `tail`
/// elements after them one by one.
template <int kWidth, int kArity, class F, class Y, class A, class B, class C>
__global__ void __launch_bounds__(kThreads)
    map_kernel(const __grid_constant__ StridedAxes<kArity> axes, bool is_wide, std::int64_t tail,
               F f, Y* y, const A* a, const B* b, const C* c) {
  bool is_repeated[kArity];
  for (int k = 0; k < kArity; ++k) is_repeated[k] = axes.strides[k][axes.rank - 1] == 0;
  std::int64_t offsets[kArity];
  for (std::int64_t i = thread_number(); i < axes.count + tail; i += num_threads()) {
    if (is_wide && i < axes.count) {
      axes.offsets_of(i, offsets);
      map_at<kWidth, kArity>(f, i * kWidth, offsets, is_repeated, y, a, b, c);
      continue;
    }
    std::int64_t at = i;
    if (is_wide) {
      at += axes.count * (kWidth - 1);
      for (int k = 0; k < kArity; ++k) offsets[k] = is_repeated[k] ? 0 : at;
    } else {
      axes.offsets_of(i, offsets);
    }
    map_at<1, kArity>(f, at, offsets, is_repeated, y, a, b, c);
  }
}

/// Parameters of a kernel's loop, which depend on the sizes of the element types, but not on the
/// types themselves.
template <int kArity>
struct MapPlan {
  StridedAxes<kArity> axes;
  bool is_wide;  // true if the loop processes packs
  std::int64_t tail;
};

/// Returns the plan of the loop, which processes packs of `width` elements if every pointer and
/// stride allows that. `data` and `sizes` (in bytes) list the output first and then the inputs.
template <int kArity>
MapPlan<kArity> plan_map(const Shape& shape, const std::array<Shape, kArity>& shapes, int width,
                         const std::array<const void*, kArity + 1>& data,
                         const std::array<std::size_t, kArity + 1>& sizes) {
  std::array<Strides, kArity> strides;
  for (std::size_t k = 0; k < kArity; ++k) strides[k] = broadcast_strides(shapes[k], shape);
  MapPlan<kArity> plan{StridedAxes<kArity>(shape, strides), false, 0};
  StridedAxes<kArity>& axes = plan.axes;
  plan.is_wide = is_aligned(data[0], sizes[0] * width) && axes.allows_width(width);
  for (int k = 0; k < kArity; ++k) {
    plan.is_wide = plan.is_wide && (axes.stride(k, axes.rank - 1) == 0 ||
                                    is_aligned(data[k + 1], sizes[k + 1] * width));
  }
  if (plan.is_wide) {
    plan.tail = axes.count % width;
    axes = axes.in_packs(width);
  }
  return plan;
}

/// Computes y = f(a [, b [, c]]) for every element of `shape`, to which the inputs are broadcast.
template <int kArity, class Y, class A, class B = A, class C = A, class F>
void map(const F& f, const Shape& shape, Y* y, const std::array<Shape, kArity>& shapes,
         cudaStream_t stream, const A* a, const B* b = nullptr, const C* c = nullptr) {
  if (shape.num_elements() == 0) return;
  std::array<const void*, kArity + 1> data{y, a};
  std::array<std::size_t, kArity + 1> sizes{sizeof(Y), sizeof(A)};
  if constexpr (kArity > 1) data[2] = b, sizes[2] = sizeof(B);
  if constexpr (kArity > 2) data[3] = c, sizes[3] = sizeof(C);
  constexpr auto kLargest =
      std::max({sizeof(Y), sizeof(A), kArity > 1 ? sizeof(B) : 1, kArity > 2 ? sizeof(C) : 1});
  constexpr int kWidth = static_cast<int>(std::min<std::size_t>(16 / kLargest, 8));
  const MapPlan<kArity> plan = plan_map<kArity>(shape, shapes, kWidth, data, sizes);
  launch(map_kernel<kWidth, kArity, F, Y, A, B, C>,
         blocks_for(static_cast<std::size_t>(plan.axes.count + plan.tail)), kThreads, stream,
         plan.axes, plan.is_wide, plan.tail, f, y, a, b, c);
}

/// Runs an elementwise operation on one input with elements of type T.
template <class F, class T>
void unary_kernel(const KernelCall& call) {
  const Shape flat{call.outputs[0].shape.num_elements()};
  map<1>(F{}, flat, call.out<T>(0), {flat}, call.stream, call.in<T>(0));
}

/// Same as unary_kernel(), but on two inputs; the output of a comparison is bool.
template <class F, class T>
void binary_kernel(const KernelCall& call) {
  constexpr bool kIsPredicate = std::is_same_v<std::invoke_result_t<F, Number<T>, Number<T>>, bool>;
  using Y = std::conditional_t<kIsPredicate, bool, T>;
  map<2>(F{}, call.outputs[0].shape, call.out<Y>(0), {call.inputs[0].shape, call.inputs[1].shape},
         call.stream, call.in<T>(0), call.in<T>(1));
}

}  // namespace tutti::cuda
