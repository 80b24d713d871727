// Pooling and upsampling of floats, vectorised over channels.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "tensor/cpu/registration.h"
#include "tensor/cpu/upsampling.h"
#include "tensor/cpu/vectorized.h"

namespace tutti::internal {

// Pooling. oneDNN is not used, because its max pooling processes only about 1.5 GB/s.
//
// A *row* is the channels of one pixel. A vector register keeps the running maximum over the rows
// of a window, for 8 channels at a time. The gradient first finds the row that contains the
// maximum: a later row replaces an earlier one only if its element is larger, so the first largest
// element gets the gradient.

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

/// Part of one window that is inside the image; its pixels are numbered in row-major order.
struct Window {
  [[gnu::always_inline]] inline Window(const Geometry& g, std::int64_t oh, std::int64_t ow)
      : top(std::max<std::int64_t>(0, oh * g.a.stride_h - g.a.pad_top)),
        left(std::max<std::int64_t>(0, ow * g.a.stride_w - g.a.pad_left)),
        rows(std::min(g.height, oh * g.a.stride_h - g.a.pad_top + g.a.window_h) - top),
        columns(std::min(g.width, ow * g.a.stride_w - g.a.pad_left + g.a.window_w) - left),
        below(((oh + 1) * g.a.stride_h * g.width + ow * g.a.stride_h * g.a.stride_w) * g.channels) {
  }
  std::int64_t size() const { return rows * columns; }
  std::int64_t top, left, rows, columns;
  std::int64_t below;  // offset of this window's share of the next output row's input
};

/// Calls body(i, offset) for each row i of the window; `offset` is the row's offset in the image.
template <class Body>
[[gnu::always_inline]] inline void for_each_row(const Geometry& g, const Window& window,
                                                const Body& body) {
  std::int32_t number = 0;
  for (std::int64_t h = 0; h < window.rows; ++h) {
    std::int64_t offset = ((window.top + h) * g.width + window.left) * g.channels;
    for (std::int64_t w = 0; w < window.columns; ++w, offset += g.channels) body(number++, offset);
  }
}

/// Prefetches this window's share of the next output row's input, because hardware prefetchers do
/// not predict the jumps between the rows of a window. Together, the windows of one output row
/// prefetch the next `stride_h` rows of the image.
[[gnu::always_inline]] inline void fetch_ahead(const Geometry& g, const float* x, std::int64_t n,
                                               const Window& window) {
  const std::int64_t count = g.a.stride_h * g.a.stride_w * g.channels;
  const std::int64_t first = n * g.image_size() + window.below;
  if (first + count > g.images * g.image_size()) return;
  for (std::int64_t i = 0; i < count; i += 16) __builtin_prefetch(x + first + i);
}

/// Calls body(image number, window) for every output pixel, in order.
template <class Body>
[[gnu::always_inline]] inline void for_each_window(const Geometry& g, const Body& body) {
  for (std::int64_t n = 0; n < g.images; ++n) {
    for (std::int64_t oh = 0; oh < g.out_h; ++oh) {
      for (std::int64_t ow = 0; ow < g.out_w; ++ow) body(n, Window(g, oh, ow));
    }
  }
}

/// Returns true if `candidate` replaces `best`, that is, if it is larger or the first NaN.
[[gnu::always_inline]] inline bool wins(float best, float candidate) {
  return !(candidate <= best) & (best == best);
}

/// Offsets of a window's rows from the start of the image, in order.
struct Rows {
  explicit Rows(const Geometry& g)
      : offsets(static_cast<std::size_t>(g.a.window_h * g.a.window_w)) {}
  [[gnu::always_inline]] inline void find(const Geometry& g, const Window& window) {
    for_each_row(
        g, window, [&](std::int32_t number, std::int64_t offset) __attribute__((always_inline)) {
          offsets[static_cast<std::size_t>(number)] = offset;
        });
  }
  std::vector<std::int64_t> offsets;
};

// Explicit vectors: the compiler does not vectorize a loop over channels that contains a loop over
// rows.
constexpr std::int64_t kWidth = 8;
using Floats [[gnu::vector_size(4 * kWidth)]] = float;
using Integers [[gnu::vector_size(4 * kWidth)]] = std::int32_t;

/// Loads the vector at `from`. Uses references, because passing vectors by value requires their
/// instruction set.
[[gnu::always_inline]] inline void load(Floats& to, const float* from) {
  std::memcpy(&to, from, sizeof to);
}

[[gnu::always_inline]] inline void largest(const float* image, const Rows& rows, std::int64_t count,
                                           std::int64_t channels, float* __restrict y) {
  const std::int64_t* row = rows.offsets.data();
  std::int64_t c = 0;
  for (; c + kWidth <= channels; c += kWidth) {
    Floats best, candidate;
    load(best, image + row[0] + c);
    for (std::int64_t r = 1; r < count; ++r) {
      load(candidate, image + row[r] + c);
      const Integers won = ~(candidate <= best) & (best == best);
      best = won ? candidate : best;
    }
    std::memcpy(y + c, &best, sizeof best);
  }
  for (; c < channels; ++c) {
    y[c] = image[row[0] + c];
    for (std::int64_t r = 1; r < count; ++r) {
      const float candidate = image[row[r] + c];
      y[c] = wins(y[c], candidate) ? candidate : y[c];
    }
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
          fetch_ahead(g, x, n, window);
          rows.find(g, window);
          largest(x + n * g.image_size(), rows, window.size(), g.channels, out);
          out += g.channels;
        });
  });
}

/// Propagates each channel's dy to the row that holds the channel's largest element. With kAdds,
/// adds it to the gradients from other windows. Without kAdds, windows do not overlap, and the
/// other rows become 0.
template <bool kAdds>
[[gnu::always_inline]] inline void give(const float* image, const Rows& rows, std::int64_t count,
                                        std::int64_t channels, const float* __restrict dy,
                                        float* __restrict dx) {
  const std::int64_t* row = rows.offsets.data();
  std::int64_t c = 0;
  for (; c + kWidth <= channels; c += kWidth) {
    Floats best, candidate, gradient, sum{};
    Integers holder{}, number{};
    load(best, image + row[0] + c);
    for (std::int64_t r = 1; r < count; ++r) {
      load(candidate, image + row[r] + c);
      number += 1;
      const Integers won = ~(candidate <= best) & (best == best);
      best = won ? candidate : best;
      holder = won ? number : holder;
    }
    load(gradient, dy + c);
    number = Integers{};
    for (std::int64_t r = 0; r < count; ++r, number += 1) {
      if (kAdds) load(sum, dx + row[r] + c);
      const Floats given = sum + (holder == number ? gradient : Floats{});
      std::memcpy(dx + row[r] + c, &given, sizeof given);
    }
  }
  for (; c < channels; ++c) {
    std::int64_t holder = 0;
    for (std::int64_t r = 1; r < count; ++r) {
      if (wins(image[row[holder] + c], image[row[r] + c])) holder = r;
    }
    for (std::int64_t r = 0; r < count; ++r) {
      float& to = dx[row[r] + c];
      to = (kAdds ? to : 0.0f) + (r == holder ? dy[c] : 0.0f);
    }
  }
}

template <bool kAdds>
void give_all(const KernelArgs& args, const Geometry& g) {
  const bool leaves_gaps = g.out_h * g.a.stride_h < g.height || g.out_w * g.a.stride_w < g.width;
  const float* x = args.in<float>(0).data();
  const float* dy = args.in<float>(1).data();
  float* dx = args.out<float>(0).data();
  Rows rows(g);
  vectorized([&]() __attribute__((always_inline)) {
    const float* gradient = dy;
    std::int64_t cleared = 0;  // number of images cleared so far, each just before its use
    for_each_window(
        g, [&](std::int64_t n, const Window& window) __attribute__((always_inline)) {
          float* image = dx + n * g.image_size();
          if ((kAdds || leaves_gaps) && n == cleared) {
            std::fill_n(image, g.image_size(), 0.0f);
            ++cleared;
          }
          fetch_ahead(g, x, n, window);
          rows.find(g, window);
          give<kAdds>(x + n * g.image_size(), rows, window.size(), g.channels, gradient, image);
          gradient += g.channels;
        });
  });
}

void max_pool_grad(const KernelArgs& args) {
  const Geometry g(args.inputs[0].shape(), args.inputs[1].shape(),
                   args.attributes_as<Pool2dAttributes>());
  if (args.inputs[1].num_elements() == 0) {
    std::ranges::fill(args.out<float>(0), 0.0f);
    return;
  }
  const bool alone = g.a.stride_h == g.a.window_h && g.a.stride_w == g.a.window_w;
  if (alone) return give_all<false>(args, g);
  give_all<true>(args, g);
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

// Upsampling: adds the same terms in the same order as the reference kernel.

[[gnu::always_inline]] inline void add_weighted(float* __restrict to, const float* __restrict from,
                                                float weight, std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) to[c] += weight * from[c];
}

/// Computes an output pixel from the one or four input pixels that contribute to it, and writes it
/// once.
template <bool kLinear>
[[gnu::always_inline]] inline void make_pixel(float* __restrict to, const float* const* parts,
                                              const float* weights, std::int64_t channels) {
  const float* __restrict first = parts[0];
  if (!kLinear) {
    for (std::int64_t c = 0; c < channels; ++c) to[c] = 0.0f + weights[0] * first[c];
    return;
  }
  const float* __restrict second = parts[1];
  const float* __restrict third = parts[2];
  const float* __restrict fourth = parts[3];
  const float w0 = weights[0], w1 = weights[1], w2 = weights[2], w3 = weights[3];
  for (std::int64_t c = 0; c < channels; ++c) {
    to[c] = 0.0f + w0 * first[c] + w1 * second[c] + w2 * third[c] + w3 * fourth[c];
  }
}

template <bool kLinear>
void upsample_as(const KernelArgs& args) {
  constexpr std::size_t kParts = kLinear ? 4 : 1;
  const Shape& shape = args.inputs[0].shape();
  const float* x = args.in<float>(0).data();
  float* y = args.out<float>(0).data();
  vectorized([&]() __attribute__((always_inline)) {
    const float* parts[4] = {};
    float weights[4] = {};
    std::size_t count = 0;
    for_each_part<float>(
        shape, args.attributes_as<UpsampleAttributes>(),
        [&](std::int64_t small, std::int64_t large, float weight) __attribute__((always_inline)) {
          parts[count] = x + small;
          weights[count] = weight;
          if (++count < kParts) return;
          make_pixel<kLinear>(y + large, parts, weights, shape[3]);
          count = 0;
        });
  });
}

void upsample(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<UpsampleAttributes>();
  if (attributes.interpolation == Interpolation::kBilinear) return upsample_as<true>(args);
  upsample_as<false>(args);
}

void upsample_grad(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape();
  const float* dy = args.in<float>(0).data();
  float* dx = args.out<float>(0).data();
  std::ranges::fill(args.out<float>(0), 0.0f);
  vectorized([&]() __attribute__((always_inline)) {
    for_each_part<float>(
        shape, args.attributes_as<UpsampleAttributes>(),
        [&](std::int64_t small, std::int64_t large, float weight) __attribute__((always_inline)) {
          add_weighted(dx + small, dy + large, weight, shape[3]);
        });
  });
}

}  // namespace

void register_fast_image_kernels(KernelTable& table) {
  table.set(OpId::kMaxPool, DType::kFloat32, max_pool);
  table.set(OpId::kMaxPoolGrad, DType::kFloat32, max_pool_grad);
  table.set(OpId::kAveragePool, DType::kFloat32, average_pool);
  table.set(OpId::kAveragePoolGrad, DType::kFloat32, average_pool_grad);
  table.set(OpId::kUpsample, DType::kFloat32, upsample);
  table.set(OpId::kUpsampleGrad, DType::kFloat32, upsample_grad);
}

}  // namespace tutti::internal
