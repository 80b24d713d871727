// Pooling on floats, vectorised over channels: oneDNN's maximum moves about 1.5 GB/s.
// SPDX-License-Identifier: Apache-2.0
//
// A *row* is the channels of one pixel. The maximum is a running one over the rows of a window, per
// channel in a register where the number of rows is a usual one; the gradient finds the number of
// the row that holds it: a later row wins only when it is larger, so the first largest element gets
// the gradient.
#include <algorithm>
#include <cstring>
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

/// Whether `candidate` replaces `best`: it is larger, or the first NaN.
[[gnu::always_inline]] inline bool wins(float best, float candidate) {
  return !(candidate <= best) & (best == best);
}

/// The rows of a window, in order.
struct Rows {
  explicit Rows(const Geometry& g) : first(static_cast<std::size_t>(g.a.window_h * g.a.window_w)) {}
  [[gnu::always_inline]] inline void find(const Geometry& g, const Window& window,
                                          const float* image) {
    for_each_row(
        g, window, [&](std::int32_t number, std::int64_t offset) __attribute__((always_inline)) {
          first[static_cast<std::size_t>(number)] = image + offset;
        });
  }
  std::vector<const float*> first;
};

// Explicit vectors: the compiler does not find them in a loop over rows within one over channels.
constexpr std::int64_t kWidth = 8;
using Floats [[gnu::vector_size(4 * kWidth)]] = float;
using Integers [[gnu::vector_size(4 * kWidth)]] = std::int32_t;

[[gnu::always_inline]] inline void largest(const Rows& rows, std::int64_t count,
                                           std::int64_t channels, float* __restrict y) {
  const float* const* row = rows.first.data();
  std::int64_t c = 0;
  for (; c + kWidth <= channels; c += kWidth) {
    Floats best, candidate;
    std::memcpy(&best, row[0] + c, sizeof best);
    for (std::int64_t r = 1; r < count; ++r) {
      std::memcpy(&candidate, row[r] + c, sizeof candidate);
      const Integers won = ~(candidate <= best) & (best == best);
      best = won ? candidate : best;
    }
    std::memcpy(y + c, &best, sizeof best);
  }
  for (; c < channels; ++c) {
    y[c] = row[0][c];
    for (std::int64_t r = 1; r < count; ++r) y[c] = wins(y[c], row[r][c]) ? row[r][c] : y[c];
  }
}

void max_pool(const KernelArgs& args) {
  const Geometry g(args.inputs[0].shape(), args.outputs[0].shape(),
                   args.attributes_as<Pool2dAttributes>());
  const float* x = args.in<float>(0).data();
  float* y = args.out<float>(0).data();
  Rows rows(g);
  vectorized([&]() __attribute__((always_inline)) {
    float* out = y;
    for_each_window(
        g, [&](std::int64_t n, const Window& window) __attribute__((always_inline)) {
          rows.find(g, window, x + n * g.image_size());
          largest(rows, window.size(), g.channels, out);
          out += g.channels;
        });
  });
}

/// Per channel, the number of the row of a window that holds the largest element.
struct Holders {
  explicit Holders(std::int64_t channels) : numbers(static_cast<std::size_t>(channels)) {}

  [[gnu::always_inline]] inline void find(const Rows& rows, std::int64_t count) {
    const float* const* row = rows.first.data();
    std::int32_t* __restrict holder = numbers.data();
    const auto channels = static_cast<std::int64_t>(numbers.size());
    std::int64_t c = 0;
    for (; c + kWidth <= channels; c += kWidth) {
      Floats best, candidate;
      Integers number{}, current{};
      std::memcpy(&best, row[0] + c, sizeof best);
      for (std::int64_t r = 1; r < count; ++r) {
        std::memcpy(&candidate, row[r] + c, sizeof candidate);
        current += 1;
        const Integers won = ~(candidate <= best) & (best == best);
        best = won ? candidate : best;
        number = won ? current : number;
      }
      std::memcpy(holder + c, &number, sizeof number);
    }
    for (; c < channels; ++c) {
      holder[c] = 0;
      for (std::int64_t r = 1; r < count; ++r) {
        if (wins(row[holder[c]][c], row[r][c])) holder[c] = static_cast<std::int32_t>(r);
      }
    }
  }

  [[gnu::always_inline]] inline void give(std::int32_t number, const float* __restrict dy,
                                          float* __restrict dx) const {
    const std::int32_t* __restrict holder = numbers.data();
    const auto channels = static_cast<std::int64_t>(numbers.size());
    for (std::int64_t c = 0; c < channels; ++c) dx[c] += holder[c] == number ? dy[c] : 0.0f;
  }

  std::vector<std::int32_t> numbers;
};

void max_pool_grad(const KernelArgs& args) {
  const Geometry g(args.inputs[0].shape(), args.inputs[1].shape(),
                   args.attributes_as<Pool2dAttributes>());
  const float* x = args.in<float>(0).data();
  const float* dy = args.in<float>(1).data();
  float* dx = args.out<float>(0).data();
  if (args.inputs[1].num_elements() == 0) std::ranges::fill(args.out<float>(0), 0.0f);
  Rows rows(g);
  Holders holders(g.channels);
  vectorized([&]() __attribute__((always_inline)) {
    const float* gradient = dy;
    std::int64_t cleared = 0;  // image by image, while it is in the cache
    for_each_window(
        g, [&](std::int64_t n, const Window& window) __attribute__((always_inline)) {
          float* image = dx + n * g.image_size();
          if (n == cleared) {
            std::fill_n(image, g.image_size(), 0.0f);
            ++cleared;
          }
          rows.find(g, window, x + n * g.image_size());
          holders.find(rows, window.size());
          for_each_row(
              g,
              window, [&](std::int32_t number, std::int64_t offset) __attribute__((always_inline)) {
                holders.give(number, gradient, image + offset);
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
