// Pooling on floats, vectorised over channels: oneDNN's maximum moves about 1.5 GB/s.
// SPDX-License-Identifier: Apache-2.0
//
// A *row* is the channels of one pixel. The maximum is a running one over the rows of the window;
// the gradient keeps, per channel, the number of the row that holds it: a later row wins only when
// it is larger, so the first largest element gets the gradient.
#include <algorithm>
#include <bit>
#include <vector>

#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

struct Geometry {
  Geometry(const Shape& x, const Shape& y, const Pool2dAttributes& attributes)
      : images(x[0]),
        height(x[1]),
        width(x[2]),
        channels(x[3]),
        out_h(y[1]),
        out_w(y[2]),
        a(attributes) {}
  std::int64_t image_size() const { return height * width * channels; }
  std::int64_t images, height, width, channels, out_h, out_w;
  const Pool2dAttributes& a;
};

/// The rows of one window that lie on the image, by number, top left first.
struct Window {
  [[gnu::always_inline]] inline Window(const Geometry& g, std::int64_t oh, std::int64_t ow)
      : top(std::max<std::int64_t>(0, oh * g.a.stride_h - g.a.pad_top)),
        left(std::max<std::int64_t>(0, ow * g.a.stride_w - g.a.pad_left)),
        rows(std::min(g.height, oh * g.a.stride_h - g.a.pad_top + g.a.window_h) - top),
        columns(std::min(g.width, ow * g.a.stride_w - g.a.pad_left + g.a.window_w) - left) {}
  std::int64_t size() const { return rows * columns; }
  std::int64_t top, left, rows, columns;
};

/// Calls body(number, offset of the row in the image).
template <class Body>
[[gnu::always_inline]] inline void for_each_row(const Geometry& g, const Window& window,
                                                const Body& body) {
  std::int32_t number = 0;
  for (std::int64_t h = 0; h < window.rows; ++h) {
    std::int64_t offset = ((window.top + h) * g.width + window.left) * g.channels;
    for (std::int64_t w = 0; w < window.columns; ++w, offset += g.channels) body(number++, offset);
  }
}

/// Calls body(image number, window) for every output row, in order.
template <class Body>
[[gnu::always_inline]] inline void for_each_window(const Geometry& g, const Body& body) {
  for (std::int64_t n = 0; n < g.images; ++n) {
    for (std::int64_t oh = 0; oh < g.out_h; ++oh) {
      for (std::int64_t ow = 0; ow < g.out_w; ++ow) body(n, Window(g, oh, ow));
    }
  }
}

/// All ones when `candidate` replaces `best`: it is larger, or the first NaN.
[[gnu::always_inline]] inline std::int32_t wins(float best, float candidate) {
  const bool larger = (candidate > best) | (candidate != candidate);
  return -static_cast<std::int32_t>(larger & (best == best));
}

[[gnu::always_inline]] inline float select(std::int32_t mask, float yes, float no) {
  return std::bit_cast<float>((mask & std::bit_cast<std::int32_t>(yes)) |
                              (~mask & std::bit_cast<std::int32_t>(no)));
}

void max_pool(const KernelArgs& args) {
  const Geometry g(args.inputs[0].shape(), args.outputs[0].shape(),
                   args.attributes_as<Pool2dAttributes>());
  const float* x = args.in<float>(0).data();
  float* y = args.out<float>(0).data();
  vectorized([&]() __attribute__((always_inline)) {
    float* __restrict best = y;
    for_each_window(
        g, [&](std::int64_t n, const Window& window) __attribute__((always_inline)) {
          const float* image = x + n * g.image_size();
          for_each_row(
              g,
              window, [&](std::int32_t number, std::int64_t offset) __attribute__((always_inline)) {
                const float* __restrict row = image + offset;
                if (number == 0) {
                  std::copy_n(row, g.channels, best);
                } else {
                  for (std::int64_t c = 0; c < g.channels; ++c) {
                    best[c] = select(wins(best[c], row[c]), row[c], best[c]);
                  }
                }
              });
          best += g.channels;
        });
  });
}

/// Per channel, the largest value of a window and the number of its row.
struct Winners {
  explicit Winners(std::int64_t channels)
      : values(static_cast<std::size_t>(channels)), numbers(values.size()) {}

  [[gnu::always_inline]] inline void meet(std::int32_t number, const float* __restrict row) {
    float* __restrict best = values.data();
    std::int32_t* __restrict holder = numbers.data();
    const auto channels = static_cast<std::int64_t>(values.size());
    if (number == 0) {
      std::copy_n(row, channels, best);
      std::fill_n(holder, channels, 0);
      return;
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int32_t mask = wins(best[c], row[c]);
      best[c] = select(mask, row[c], best[c]);
      holder[c] = (mask & number) | (~mask & holder[c]);
    }
  }

  [[gnu::always_inline]] inline void give(std::int32_t number, const float* __restrict dy,
                                          float* __restrict dx) const {
    const std::int32_t* __restrict holder = numbers.data();
    const auto channels = static_cast<std::int64_t>(values.size());
    for (std::int64_t c = 0; c < channels; ++c) {
      dx[c] += select(-static_cast<std::int32_t>(holder[c] == number), dy[c], 0.0f);
    }
  }

  std::vector<float> values;
  std::vector<std::int32_t> numbers;
};

void max_pool_grad(const KernelArgs& args) {
  const Geometry g(args.inputs[0].shape(), args.inputs[1].shape(),
                   args.attributes_as<Pool2dAttributes>());
  const float* x = args.in<float>(0).data();
  const float* dy = args.in<float>(1).data();
  float* dx = args.out<float>(0).data();
  std::ranges::fill(args.out<float>(0), 0.0f);
  Winners winners(g.channels);
  vectorized([&]() __attribute__((always_inline)) {
    const float* gradient = dy;
    for_each_window(
        g, [&](std::int64_t n, const Window& window) __attribute__((always_inline)) {
          const std::int64_t image = n * g.image_size();
          for_each_row(
              g,
              window, [&](std::int32_t number, std::int64_t offset) __attribute__((always_inline)) {
                winners.meet(number, x + image + offset);
              });
          for_each_row(
              g,
              window, [&](std::int32_t number, std::int64_t offset) __attribute__((always_inline)) {
                winners.give(number, gradient, dx + image + offset);
              });
          gradient += g.channels;
        });
  });
}

void average_pool(const KernelArgs& args) {
  const Geometry g(args.inputs[0].shape(), args.outputs[0].shape(),
                   args.attributes_as<Pool2dAttributes>());
  const float* x = args.in<float>(0).data();
  float* y = args.out<float>(0).data();
  std::ranges::fill(args.out<float>(0), 0.0f);
  vectorized([&]() __attribute__((always_inline)) {
    float* __restrict sum = y;
    for_each_window(
        g, [&](std::int64_t n, const Window& window) __attribute__((always_inline)) {
          const float* image = x + n * g.image_size();
          for_each_row(
              g, window, [&](std::int32_t, std::int64_t offset) __attribute__((always_inline)) {
                const float* __restrict row = image + offset;
                for (std::int64_t c = 0; c < g.channels; ++c) sum[c] += row[c];
              });
          const float size = static_cast<float>(window.size());
          for (std::int64_t c = 0; c < g.channels; ++c) sum[c] /= size;
          sum += g.channels;
        });
  });
}

void average_pool_grad(const KernelArgs& args) {
  const Geometry g(args.outputs[0].shape(), args.inputs[0].shape(),
                   args.attributes_as<Pool2dAttributes>());
  const float* dy = args.in<float>(0).data();
  float* dx = args.out<float>(0).data();
  std::ranges::fill(args.out<float>(0), 0.0f);
  vectorized([&]() __attribute__((always_inline)) {
    const float* __restrict gradient = dy;
    for_each_window(
        g, [&](std::int64_t n, const Window& window) __attribute__((always_inline)) {
          float* image = dx + n * g.image_size();
          const float size = static_cast<float>(window.size());
          for_each_row(
              g, window, [&](std::int32_t, std::int64_t offset) __attribute__((always_inline)) {
                float* __restrict row = image + offset;
                for (std::int64_t c = 0; c < g.channels; ++c) row[c] += gradient[c] / size;
              });
          gradient += g.channels;
        });
  });
}

}  // namespace

void register_fast_pooling_kernels(KernelTable& table) {
  table.set(OpId::kMaxPool, DType::kFloat32, max_pool);
  table.set(OpId::kMaxPoolGrad, DType::kFloat32, max_pool_grad);
  table.set(OpId::kAveragePool, DType::kFloat32, average_pool);
  table.set(OpId::kAveragePoolGrad, DType::kFloat32, average_pool_grad);
}

}  // namespace tutti::internal
