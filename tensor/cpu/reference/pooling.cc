// Pooling and upsampling as plain loops.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tensor/cpu/registration.h"
#include "tensor/cpu/upsampling.h"

namespace tutti::internal {

// Pooling and its gradients: loops over windows.

namespace {

/// The part of a window that is inside the image.
struct Window {
  std::int64_t top, bottom, left, right;  // [top, bottom) x [left, right)
  std::int64_t size() const { return (bottom - top) * (right - left); }
};

Window window_at(const Shape& x, const Pool2dAttributes& a, std::int64_t oh, std::int64_t ow) {
  const std::int64_t top = oh * a.stride_h - a.pad_top;
  const std::int64_t left = ow * a.stride_w - a.pad_left;
  return {std::max<std::int64_t>(0, top), std::min(x[1], top + a.window_h),
          std::max<std::int64_t>(0, left), std::min(x[2], left + a.window_w)};
}

/// Calls body(window, image number, channel, output index) for every output element.
template <class Body>
void for_each_window(const Shape& x, const Shape& y, const Pool2dAttributes& attributes,
                     const Body& body) {
  std::int64_t output = 0;
  for (std::int64_t n = 0; n < y[0]; ++n) {
    for (std::int64_t oh = 0; oh < y[1]; ++oh) {
      for (std::int64_t ow = 0; ow < y[2]; ++ow) {
        const Window window = window_at(x, attributes, oh, ow);
        for (std::int64_t c = 0; c < y[3]; ++c) body(window, n, c, output++);
      }
    }
  }
}

/// Returns the index of an element in an NHWC tensor.
std::int64_t place(const Shape& x, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
  return ((n * x[1] + h) * x[2] + w) * x[3] + c;
}

/// Calls body(index) for each pixel of a window, with the index of the pixel's element in channel
/// `c`.
template <class Body>
void for_each_pixel(const Shape& x, const Window& window, std::int64_t n, std::int64_t c,
                    const Body& body) {
  for (std::int64_t h = window.top; h < window.bottom; ++h) {
    for (std::int64_t w = window.left; w < window.right; ++w) body(place(x, n, h, w, c));
  }
}

/// Returns the index of the first largest element of the window; a NaN counts as largest.
template <class T>
std::int64_t largest(const T* x, const Shape& shape, const Window& window, std::int64_t n,
                     std::int64_t c) {
  std::int64_t best = place(shape, n, window.top, window.left, c);
  for_each_pixel(shape, window, n, c, [&](std::int64_t candidate) {
    const bool best_is_nan = x[best] != x[best];
    if (!best_is_nan && !(x[candidate] <= x[best])) best = candidate;
  });
  return best;
}

template <class T, bool kAverage>
void pool(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const T* x = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  for_each_window(shape, args.outputs[0].shape(), args.attributes_as<Pool2dAttributes>(),
                  [&](const Window& window, std::int64_t n, std::int64_t c, std::int64_t output) {
                    if (!kAverage) {
                      y[output] = x[largest(x, shape, window, n, c)];
                      return;
                    }
                    T sum{0};
                    for_each_pixel(shape, window, n, c, [&](std::int64_t i) { sum += x[i]; });
                    y[output] = sum / static_cast<T>(window.size());
                  });
}

/// Inputs: (x, dy) for maximum pooling, only dy for average pooling.
template <class T, bool kAverage>
void pool_gradient(const KernelArgs& args) {
  const Shape &shape = args.outputs[0].shape(), &result = args.inputs.back().shape();
  const T *first = args.in<T>(0).data(), *dy = args.in<T>(args.inputs.size() - 1).data();
  T* dx = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_window(shape, result, args.attributes_as<Pool2dAttributes>(),
                  [&](const Window& window, std::int64_t n, std::int64_t c, std::int64_t output) {
                    if (!kAverage) {
                      dx[largest(first, shape, window, n, c)] += dy[output];
                      return;
                    }
                    const T share = dy[output] / static_cast<T>(window.size());
                    for_each_pixel(shape, window, n, c, [&](std::int64_t i) { dx[i] += share; });
                  });
}

// Upsampling: each output pixel is a weighted sum of at most four input pixels.

/// Computes upsampling or its gradient: adds pixels of the small image to those of the large one,
/// or vice versa.
template <class T, bool kGradient>
void upsample(const KernelArgs& args) {
  const Shape& shape = kGradient ? args.outputs[0].shape() : args.inputs[0].shape();
  const std::int64_t channels = shape[3];
  const T* from = args.in<T>(0).data();
  T* to = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_part<T>(shape, args.attributes_as<UpsampleAttributes>(),
                   [=](std::int64_t small, std::int64_t large, T weight) {
                     const std::int64_t target = kGradient ? small : large;
                     const std::int64_t source = kGradient ? large : small;
                     for (std::int64_t c = 0; c < channels; ++c) {
                       to[target + c] += weight * from[source + c];
                     }
                   });
}

template <class T>
void register_image_kernels_for(KernelTable& table) {
  table.set(OpId::kMaxPool, dtype_of<T>(), pool<T, false>);
  table.set(OpId::kMaxPoolGrad, dtype_of<T>(), pool_gradient<T, false>);
  table.set(OpId::kAveragePool, dtype_of<T>(), pool<T, true>);
  table.set(OpId::kAveragePoolGrad, dtype_of<T>(), pool_gradient<T, true>);
  table.set(OpId::kUpsample, dtype_of<T>(), upsample<T, false>);
  table.set(OpId::kUpsampleGrad, dtype_of<T>(), upsample<T, true>);
}

}  // namespace

void register_image_reference_kernels(KernelTable& table) {
  register_image_kernels_for<float>(table);
  register_image_kernels_for<double>(table);
}

}  // namespace tutti::internal
