// Batch, local response, layer and group normalisation of floats.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tensor/cpu/registration.h"
#include "tensor/cpu/vectorized.h"

namespace tutti::internal {

// Batch normalisation.
//
// Statistics are summed row by row in double, separately for each channel, so the order of the
// additions depends only on the shape.

namespace {

using Sums = std::vector<double>;

[[gnu::always_inline]] inline void add_row(double* __restrict sums, const float* __restrict x,
                                           std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) sums[c] += static_cast<double>(x[c]);
}

[[gnu::always_inline]] inline void add_squares(double* __restrict sums, const float* __restrict x,
                                               const double* __restrict center,
                                               std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) {
    const double deviation = static_cast<double>(x[c]) - center[c];
    sums[c] += deviation * deviation;
  }
}

[[gnu::always_inline]] inline void normalize_row(float* __restrict y, const float* __restrict x,
                                                 const float* __restrict mean,
                                                 const float* __restrict scale,
                                                 const float* __restrict beta,
                                                 std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) y[c] = (x[c] - mean[c]) * scale[c] + beta[c];
}

std::vector<float> scales(std::span<const float> gamma, std::span<const float> variance,
                          double epsilon) {
  std::vector<float> scale(gamma.size());
  for (std::size_t c = 0; c < gamma.size(); ++c) {
    scale[c] = gamma[c] / std::sqrt(variance[c] + static_cast<float>(epsilon));
  }
  return scale;
}

void normalize(std::span<const float> x, std::span<const float> mean,
               const std::vector<float>& scale, std::span<const float> beta, std::span<float> y) {
  const std::size_t channels = mean.size();
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < x.size(); i += channels) {
      normalize_row(&y[i], &x[i], mean.data(), scale.data(), beta.data(), channels);
    }
  });
}

void batch_norm_training(const KernelArgs& args) {
  const auto x = args.in<float>(0), gamma = args.in<float>(1), beta = args.in<float>(2);
  const auto mean = args.out<float>(1), variance = args.out<float>(2);
  const std::size_t channels = mean.size();
  const double rows = static_cast<double>(x.size() / channels);
  Sums center(channels), squares(channels);
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < x.size(); i += channels) add_row(center.data(), &x[i], channels);
  });
  for (double& sum : center) sum = rows > 0 ? sum / rows : 0.0;
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < x.size(); i += channels) {
      add_squares(squares.data(), &x[i], center.data(), channels);
    }
  });
  for (std::size_t c = 0; c < channels; ++c) {
    mean[c] = static_cast<float>(center[c]);
    variance[c] = static_cast<float>(rows > 0 ? squares[c] / rows : 0.0);
  }
  const double epsilon = args.attributes_as<BatchNormAttributes>().epsilon;
  normalize(x, mean, scales(gamma, variance, epsilon), beta, args.out<float>(0));
}

void batch_norm_inference(const KernelArgs& args) {
  const double epsilon = args.attributes_as<BatchNormAttributes>().epsilon;
  normalize(args.in<float>(0), args.in<float>(3),
            scales(args.in<float>(1), args.in<float>(4), epsilon), args.in<float>(2),
            args.out<float>(0));
}

[[gnu::always_inline]] inline void add_moments(double* __restrict sums, double* __restrict moments,
                                               const float* __restrict dy,
                                               const float* __restrict x,
                                               const float* __restrict mean,
                                               const float* __restrict inverse,
                                               std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) {
    sums[c] += static_cast<double>(dy[c]);
    moments[c] += static_cast<double>(dy[c]) * static_cast<double>((x[c] - mean[c]) * inverse[c]);
  }
}

[[gnu::always_inline]] inline void gradient_row(
    float* __restrict dx, const float* __restrict dy, const float* __restrict x,
    const float* __restrict mean, const float* __restrict inverse, const float* __restrict gamma,
    const float* __restrict dgamma, const float* __restrict dbeta, float rows,
    std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) {
    const float z = (x[c] - mean[c]) * inverse[c];
    dx[c] = gamma[c] * inverse[c] * (dy[c] - (dbeta[c] + z * dgamma[c]) / rows);
  }
}

void batch_norm_grad(const KernelArgs& args) {
  const auto x = args.in<float>(0), gamma = args.in<float>(1), mean = args.in<float>(2);
  const auto dy = args.in<float>(4);
  const auto dx = args.out<float>(0), dgamma = args.out<float>(1), dbeta = args.out<float>(2);
  const std::size_t channels = gamma.size();
  const double epsilon = args.attributes_as<BatchNormAttributes>().epsilon;
  const std::vector<float> inverse =
      scales(std::vector<float>(channels, 1.0f), args.in<float>(3), epsilon);
  Sums sums(channels), moments(channels);
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < x.size(); i += channels) {
      add_moments(sums.data(), moments.data(), &dy[i], &x[i], mean.data(), inverse.data(),
                  channels);
    }
  });
  for (std::size_t c = 0; c < channels; ++c) {
    dbeta[c] = static_cast<float>(sums[c]);
    dgamma[c] = static_cast<float>(moments[c]);
  }
  const float rows = static_cast<float>(x.size() / channels);
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < x.size(); i += channels) {
      gradient_row(&dx[i], &dy[i], &x[i], mean.data(), inverse.data(), gamma.data(), dgamma.data(),
                   dbeta.data(), rows, channels);
    }
  });
}

// Local response normalisation. oneDNN is not used, because its kernel is a plain loop.
//
// Pixels are processed in blocks. The summands of a pixel (one per channel) are stored in a row
// with `radius` zeros at either end, so that window sums need no bounds checks: they add the same
// elements in the same order as the reference kernel, plus zeros. Each pass covers all pixels of
// the block before the next pass begins, because loads that overlap just-written elements at other
// offsets would stall.

// Number of floats in the padded rows of a block. The four arrays of a block fit into the L1 cache.
constexpr std::size_t kBlockFloats = 1536;

/// Computes power[i] = base[i]^-beta, without calling std::pow for common exponents.
[[gnu::always_inline]] inline void negative_powers(const float* __restrict base, std::size_t count,
                                                   double beta, float* __restrict power) {
  if (beta == 0.5) {
    for (std::size_t i = 0; i < count; ++i) power[i] = 1.0f / std::sqrt(base[i]);
  } else if (beta == 0.75) {
    for (std::size_t i = 0; i < count; ++i) {
      const float root = std::sqrt(base[i]);
      power[i] = 1.0f / (root * std::sqrt(root));
    }
  } else if (beta == 1.0) {
    for (std::size_t i = 0; i < count; ++i) power[i] = 1.0f / base[i];
  } else {
    for (std::size_t i = 0; i < count; ++i) power[i] = std::pow(base[i], static_cast<float>(-beta));
  }
}

/// Computes sums[c] = row[c] + ... + row[c + 2 * kRadius].
template <std::size_t kRadius>
[[gnu::always_inline]] inline void sum_known_windows(const float* __restrict row,
                                                     std::size_t channels, float* __restrict sums) {
  for (std::size_t c = 0; c < channels; ++c) {
    float sum = 0.0f;
    for (std::size_t shift = 0; shift <= 2 * kRadius; ++shift) sum += row[c + shift];
    sums[c] = sum;
  }
}

[[gnu::always_inline]] inline void sum_windows(const float* __restrict row, std::size_t radius,
                                               std::size_t channels, float* __restrict sums) {
  if (radius == 2) return sum_known_windows<2>(row, channels, sums);
  if (radius == 4) return sum_known_windows<4>(row, channels, sums);
  if (radius == 5) return sum_known_windows<5>(row, channels, sums);
  std::fill_n(sums, channels, 0.0f);
  for (std::size_t shift = 0; shift <= 2 * radius; ++shift) {
    for (std::size_t c = 0; c < channels; ++c) sums[c] += row[c + shift];
  }
}

/// Workspace for a block of pixels.
struct Block {
  Block(const LrnAttributes& attributes, std::size_t num_channels)
      : a(attributes),
        channels(num_channels),
        radius(std::min(static_cast<std::size_t>(attributes.depth_radius), channels)),
        stride(channels + 2 * radius),
        num_pixels(std::max<std::size_t>(1, kBlockFloats / std::max<std::size_t>(1, stride))),
        padded(num_pixels * stride),
        sums(num_pixels * channels),
        bases(sums.size()),
        powers(sums.size()) {}

  float* row(std::size_t pixel) { return padded.data() + pixel * stride; }

  [[gnu::always_inline]] void sum_all(std::size_t pixels) {
    for (std::size_t p = 0; p < pixels; ++p) {
      sum_windows(row(p), radius, channels, sums.data() + p * channels);
    }
  }

  [[gnu::always_inline]] void compute_powers(const float* x, std::size_t pixels) {
    for (std::size_t p = 0; p < pixels; ++p) {
      const float* __restrict from = x + p * channels;
      float* __restrict square = row(p) + radius;
      for (std::size_t c = 0; c < channels; ++c) square[c] = from[c] * from[c];
    }
    sum_all(pixels);
    const float bias = static_cast<float>(a.bias), alpha = static_cast<float>(a.alpha);
    const float* __restrict sum = sums.data();
    float* __restrict base = bases.data();
    for (std::size_t i = 0; i < pixels * channels; ++i) base[i] = bias + alpha * sum[i];
    negative_powers(base, pixels * channels, a.beta, powers.data());
  }

  /// Calls body(first element, number of pixels) for each block.
  template <class Body>
  [[gnu::always_inline]] void for_each_block(std::size_t size, const Body& body) const {
    for (std::size_t i = 0; i < size; i += num_pixels * channels) {
      body(i, std::min(num_pixels, (size - i) / channels));
    }
  }

  const LrnAttributes& a;
  std::size_t channels, radius, stride, num_pixels;
  std::vector<float> padded, sums, bases, powers;
};

std::size_t channels_of(const KernelArgs& args) {
  return static_cast<std::size_t>(args.inputs[0].shape().dim(-1));
}

void lrn(const KernelArgs& args) {
  const auto x = args.in<float>(0);
  const auto y = args.out<float>(0);
  Block block(args.attributes_as<LrnAttributes>(), channels_of(args));
  vectorized([&]() __attribute__((always_inline)) {
    block.for_each_block(
        x.size(), [&](std::size_t first, std::size_t pixels) __attribute__((always_inline)) {
          const float* __restrict from = x.data() + first;
          float* __restrict to = y.data() + first;
          block.compute_powers(from, pixels);
          const float* __restrict power = block.powers.data();
          for (std::size_t i = 0; i < pixels * block.channels; ++i) to[i] = from[i] * power[i];
        });
  });
}

/// Computes dx of one block from its x and dy.
[[gnu::always_inline]] inline void lrn_grad_block(Block& block, const float* __restrict x,
                                                  const float* __restrict dy, float* __restrict dx,
                                                  std::size_t pixels, float factor) {
  block.compute_powers(x, pixels);
  const float* __restrict power = block.powers.data();
  const float* __restrict base = block.bases.data();
  for (std::size_t p = 0; p < pixels; ++p) {
    float* __restrict value = block.row(p) + block.radius;
    const std::size_t first = p * block.channels;
    for (std::size_t c = 0; c < block.channels; ++c) {
      const std::size_t i = first + c;
      value[c] = dy[i] * x[i] * power[i] / base[i];
    }
  }
  block.sum_all(pixels);
  const float* __restrict sum = block.sums.data();
  for (std::size_t i = 0; i < pixels * block.channels; ++i) {
    dx[i] = dy[i] * power[i] - factor * x[i] * sum[i];
  }
}

void lrn_grad(const KernelArgs& args) {
  const auto x = args.in<float>(0), dy = args.in<float>(1);
  const auto dx = args.out<float>(0);
  Block block(args.attributes_as<LrnAttributes>(), channels_of(args));
  const float factor = static_cast<float>(2.0 * block.a.alpha * block.a.beta);
  vectorized([&]() __attribute__((always_inline)) {
    block.for_each_block(
        x.size(), [&](std::size_t first, std::size_t pixels) __attribute__((always_inline)) {
          lrn_grad_block(block, x.data() + first, dy.data() + first, dx.data() + first, pixels,
                         factor);
        });
  });
}

}  // namespace

// Layer and group normalisation, vectorised over the channels of a group.
//
// Channel c of the group is added to lane c % kLanes, in double. The lanes are then added in order,
// so the order of the additions depends only on the shape.

namespace {

constexpr std::size_t kLanes = 16;

struct alignas(64) Lanes {
  std::array<double, kLanes> values{};
  double sum() const {
    double total = 0.0;
    for (double value : values) total += value;
    return total;
  }
};

/// Adds body(0), ..., body(count - 1) to the lanes in turn.
template <class Body>
[[gnu::always_inline]] inline void accumulate(Lanes& lanes, std::size_t count, const Body& body) {
  std::size_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) lanes.values[l] += body(c + l);
  }
  for (std::size_t l = 0; c + l < count; ++l) lanes.values[l] += body(c + l);
}

struct Extent {
  explicit Extent(const KernelArgs& args)
      : positions(static_cast<std::size_t>(args.attributes_as<GroupNormAttributes>().positions)),
        groups(static_cast<std::size_t>(args.attributes_as<GroupNormAttributes>().groups)),
        channels(static_cast<std::size_t>(args.inputs[1].num_elements()) / groups),
        stride(groups * channels) {}
  /// Returns the offset in x of a (batch row, group) pair.
  std::size_t start(std::size_t pair) const {
    return pair / groups * positions * stride + channel(pair);
  }
  std::size_t channel(std::size_t pair) const { return pair % groups * channels; }
  double count() const { return static_cast<double>(positions * channels); }

  std::size_t positions, groups, channels, stride;
};

[[gnu::always_inline]] inline void normalize_run(float* __restrict y, const float* __restrict x,
                                                 const float* __restrict gamma,
                                                 const float* __restrict beta, float mean,
                                                 float inverse, std::size_t count) {
  for (std::size_t c = 0; c < count; ++c) y[c] = (x[c] - mean) * inverse * gamma[c] + beta[c];
}

[[gnu::always_inline]] inline void forward_pair(const KernelArgs& args, const Extent& extent,
                                                std::size_t pair) {
  const std::size_t count = extent.channels, c0 = extent.channel(pair);
  const float* x = args.in<float>(0).data() + extent.start(pair);
  float* y = args.out<float>(0).data() + extent.start(pair);
  Lanes sums, squares;
  for (std::size_t p = 0; p < extent.positions; ++p) {
    const float* run = x + p * extent.stride;
    accumulate(sums, count, [run](std::size_t c) { return static_cast<double>(run[c]); });
  }
  const double center = extent.count() > 0 ? sums.sum() / extent.count() : 0.0;
  for (std::size_t p = 0; p < extent.positions; ++p) {
    const float* run = x + p * extent.stride;
    accumulate(squares, count, [run, center](std::size_t c) {
      const double deviation = static_cast<double>(run[c]) - center;
      return deviation * deviation;
    });
  }
  const double spread = extent.count() > 0 ? squares.sum() / extent.count() : 0.0;
  const double epsilon = args.attributes_as<GroupNormAttributes>().epsilon;
  const auto mean = static_cast<float>(center);
  const auto inverse = static_cast<float>(1.0 / std::sqrt(spread + epsilon));
  args.out<float>(1)[pair] = mean;
  args.out<float>(2)[pair] = static_cast<float>(spread);
  for (std::size_t p = 0; p < extent.positions; ++p) {
    normalize_run(y + p * extent.stride, x + p * extent.stride, args.in<float>(1).data() + c0,
                  args.in<float>(2).data() + c0, mean, inverse, count);
  }
}

void forward(const KernelArgs& args) {
  const Extent extent(args);
  const auto pairs = static_cast<std::size_t>(args.outputs[1].num_elements());
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t pair = 0; pair < pairs; ++pair) forward_pair(args, extent, pair);
  });
}

/// Adds dy to `sums` and dy * z to `moments`, per channel, with z = (x - mean) * inverse.
[[gnu::always_inline]] inline void add_run(double* __restrict sums, double* __restrict moments,
                                           const float* __restrict dy, const float* __restrict x,
                                           float mean, float inverse, std::size_t count) {
  for (std::size_t c = 0; c < count; ++c) {
    const double d = static_cast<double>(dy[c]);
    sums[c] += d;
    moments[c] += d * static_cast<double>((x[c] - mean) * inverse);
  }
}

[[gnu::always_inline]] inline void gradient_run(float* __restrict dx, const float* __restrict dy,
                                                const float* __restrict x,
                                                const float* __restrict gamma, float mean,
                                                float inverse, float sum, float moment,
                                                std::size_t count) {
  for (std::size_t c = 0; c < count; ++c) {
    const float z = (x[c] - mean) * inverse;
    dx[c] = inverse * (dy[c] * gamma[c] - (sum + z * moment));
  }
}

[[gnu::always_inline]] inline void backward_pair(const KernelArgs& args, const Extent& extent,
                                                 std::size_t pair, double* sums, double* moments) {
  const std::size_t count = extent.channels, c0 = extent.channel(pair);
  const float* x = args.in<float>(0).data() + extent.start(pair);
  const float* dy = args.in<float>(4).data() + extent.start(pair);
  const float* gamma = args.in<float>(1).data() + c0;
  const float mean = args.in<float>(2)[pair];
  const double epsilon = args.attributes_as<GroupNormAttributes>().epsilon;
  const auto inverse =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.in<float>(3)[pair]) + epsilon));
  Lanes sum, moment;
  for (std::size_t p = 0; p < extent.positions; ++p) {
    const float* x_run = x + p * extent.stride;
    const float* dy_run = dy + p * extent.stride;
    add_run(sums + c0, moments + c0, dy_run, x_run, mean, inverse, count);
    accumulate(sum, count,
               [=](std::size_t c) { return static_cast<double>(dy_run[c] * gamma[c]); });
    accumulate(moment, count, [=](std::size_t c) {
      return static_cast<double>(dy_run[c] * gamma[c] * ((x_run[c] - mean) * inverse));
    });
  }
  const auto mean_sum = static_cast<float>(sum.sum() / extent.count());
  const auto mean_moment = static_cast<float>(moment.sum() / extent.count());
  float* dx = args.out<float>(0).data() + extent.start(pair);
  for (std::size_t p = 0; p < extent.positions; ++p) {
    const std::size_t at = p * extent.stride;
    gradient_run(dx + at, dy + at, x + at, gamma, mean, inverse, mean_sum, mean_moment, count);
  }
}

void backward(const KernelArgs& args) {
  const Extent extent(args);
  const auto pairs = static_cast<std::size_t>(args.inputs[2].num_elements());
  const std::size_t features = extent.stride;
  std::vector<double> sums(features), moments(features);
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      backward_pair(args, extent, pair, sums.data(), moments.data());
    }
  });
  for (std::size_t c = 0; c < features; ++c) {
    args.out<float>(1)[c] = static_cast<float>(moments[c]);
    args.out<float>(2)[c] = static_cast<float>(sums[c]);
  }
}

}  // namespace

void register_fast_normalization_kernels(KernelTable& table) {
  table.set(OpId::kBatchNormTraining, DType::kFloat32, batch_norm_training);
  table.set(OpId::kBatchNormInference, DType::kFloat32, batch_norm_inference);
  table.set(OpId::kBatchNormGrad, DType::kFloat32, batch_norm_grad);
  table.set(OpId::kLrn, DType::kFloat32, lrn);
  table.set(OpId::kLrnGrad, DType::kFloat32, lrn_grad);
  table.set(OpId::kGroupNorm, DType::kFloat32, forward);
  table.set(OpId::kGroupNormGrad, DType::kFloat32, backward);
}

}  // namespace tutti::internal
