// Pooling, and enlarging images, as plain loops.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tensor/cpu/registration.h"
#include "tensor/cpu/upsampling.h"

namespace tutti::internal {

// Pooling and its gradients: loops over windows.

namespace {

/// The part of a window that lies on the image.
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

/// Calls body(window, image number, channel, output index).
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

/// Index in an NHWC image.
std::int64_t place(const Shape& x, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
  return ((n * x[1] + h) * x[2] + w) * x[3] + c;
}

/// The first largest element of the window; a NaN counts as largest.
template <class T>
std::int64_t largest(const T* x, const Shape& shape, const Window& window, std::int64_t n,
                     std::int64_t c) {
  std::int64_t best = place(shape, n, window.top, window.left, c);
  for (std::int64_t h = window.top; h < window.bottom; ++h) {
    for (std::int64_t w = window.left; w < window.right; ++w) {
      const std::int64_t candidate = place(shape, n, h, w, c);
      const bool best_is_nan = x[best] != x[best];
      if (!best_is_nan && !(x[candidate] <= x[best])) best = candidate;
    }
  }
  return best;
}

template <class T>
void max_pool(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const T* x = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  for_each_window(shape, args.outputs[0].shape(), args.attributes_as<Pool2dAttributes>(),
                  [&](const Window& window, std::int64_t n, std::int64_t c, std::int64_t output) {
                    y[output] = x[largest(x, shape, window, n, c)];
                  });
}

template <class T>
void max_pool_grad(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const T* x = args.in<T>(0).data();
  const T* dy = args.in<T>(1).data();
  T* dx = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_window(shape, args.inputs[1].shape(), args.attributes_as<Pool2dAttributes>(),
                  [&](const Window& window, std::int64_t n, std::int64_t c, std::int64_t output) {
                    dx[largest(x, shape, window, n, c)] += dy[output];
                  });
}

template <class T>
void average_pool(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const T* x = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  for_each_window(shape, args.outputs[0].shape(), args.attributes_as<Pool2dAttributes>(),
                  [&](const Window& window, std::int64_t n, std::int64_t c, std::int64_t output) {
                    T sum{0};
                    for (std::int64_t h = window.top; h < window.bottom; ++h) {
                      for (std::int64_t w = window.left; w < window.right; ++w) {
                        sum += x[place(shape, n, h, w, c)];
                      }
                    }
                    y[output] = sum / static_cast<T>(window.size());
                  });
}

template <class T>
void average_pool_grad(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape();
  const T* dy = args.in<T>(0).data();
  T* dx = args.out<T>(0).data();
  std::ranges::fill(args.out<T>(0), T{0});
  for_each_window(shape, args.inputs[0].shape(), args.attributes_as<Pool2dAttributes>(),
                  [&](const Window& window, std::int64_t n, std::int64_t c, std::int64_t output) {
                    const T share = dy[output] / static_cast<T>(window.size());
                    for (std::int64_t h = window.top; h < window.bottom; ++h) {
                      for (std::int64_t w = window.left; w < window.right; ++w) {
                        dx[place(shape, n, h, w, c)] += share;
                      }
                    }
                  });
}

// Enlarging: each pixel of the result is a weighted sum of at most four.

template <class T>
void upsample(const KernelArgs& args) {
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
void upsample_gradient(const KernelArgs& args) {
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
void register_image_kernels_for(KernelTable& table) {
  table.set(OpId::kMaxPool, dtype_of<T>(), max_pool<T>);
  table.set(OpId::kMaxPoolGrad, dtype_of<T>(), max_pool_grad<T>);
  table.set(OpId::kAveragePool, dtype_of<T>(), average_pool<T>);
  table.set(OpId::kAveragePoolGrad, dtype_of<T>(), average_pool_grad<T>);
  table.set(OpId::kUpsample, dtype_of<T>(), upsample<T>);
  table.set(OpId::kUpsampleGrad, dtype_of<T>(), upsample_gradient<T>);
}

}  // namespace

void register_image_reference_kernels(KernelTable& table) {
  register_image_kernels_for<float>(table);
  register_image_kernels_for<double>(table);
}

}  // namespace tutti::internal
