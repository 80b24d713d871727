// Local response normalisation on floats, vectorised over channels: oneDNN has a plain loop.
// SPDX-License-Identifier: Apache-2.0
//
// A pixel's channels lie in a row with `radius` zeros at either end, so that window sums need no
// limits: they add the same elements in the same order as the reference kernel, and zeros.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

/// powers[c] = bases[c]^-beta, without pow for the usual exponents.
[[gnu::always_inline]] inline void negative_powers(const std::vector<float>& bases, double beta,
                                                   std::vector<float>& powers) {
  const float* __restrict base = bases.data();
  float* __restrict power = powers.data();
  const std::size_t count = bases.size();
  if (beta == 0.5) {
    for (std::size_t c = 0; c < count; ++c) power[c] = 1.0f / std::sqrt(base[c]);
  } else if (beta == 0.75) {
    for (std::size_t c = 0; c < count; ++c) {
      const float root = std::sqrt(base[c]);
      power[c] = 1.0f / (root * std::sqrt(root));
    }
  } else if (beta == 1.0) {
    for (std::size_t c = 0; c < count; ++c) power[c] = 1.0f / base[c];
  } else {
    for (std::size_t c = 0; c < count; ++c) power[c] = std::pow(base[c], static_cast<float>(-beta));
  }
}

/// Work space of one pixel.
struct Pixel {
  Pixel(const LrnAttributes& attributes, std::size_t channels)
      : a(attributes),
        radius(std::min(static_cast<std::size_t>(attributes.depth_radius), channels)),
        padded(channels + 2 * radius),
        sums(channels),
        bases(channels),
        powers(channels) {}

  std::size_t channels() const { return sums.size(); }
  float* values() { return padded.data() + radius; }

  /// sums[c] = values[c - radius] + ... + values[c + radius].
  [[gnu::always_inline]] void sum_windows() {
    float* __restrict sum = sums.data();
    std::fill_n(sum, channels(), 0.0f);
    for (std::size_t shift = 0; shift <= 2 * radius; ++shift) {
      const float* __restrict value = padded.data() + shift;
      for (std::size_t c = 0; c < channels(); ++c) sum[c] += value[c];
    }
  }

  [[gnu::always_inline]] void compute_powers(const float* __restrict x) {
    float* __restrict square = values();
    for (std::size_t c = 0; c < channels(); ++c) square[c] = x[c] * x[c];
    sum_windows();
    const float bias = static_cast<float>(a.bias), alpha = static_cast<float>(a.alpha);
    float* __restrict base = bases.data();
    for (std::size_t c = 0; c < channels(); ++c) base[c] = bias + alpha * sums[c];
    negative_powers(bases, a.beta, powers);
  }

  const LrnAttributes& a;
  std::size_t radius;
  std::vector<float> padded, sums, bases, powers;
};

void lrn(const KernelArgs& args) {
  const auto x = args.in<float>(0);
  const auto y = args.out<float>(0);
  Pixel pixel(args.attributes_as<LrnAttributes>(),
              static_cast<std::size_t>(args.inputs[0].shape().dim(-1)));
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < x.size(); i += pixel.channels()) {
      pixel.compute_powers(&x[i]);
      for (std::size_t c = 0; c < pixel.channels(); ++c) y[i + c] = x[i + c] * pixel.powers[c];
    }
  });
}

void lrn_grad(const KernelArgs& args) {
  const auto x = args.in<float>(0), dy = args.in<float>(1);
  const auto dx = args.out<float>(0);
  Pixel pixel(args.attributes_as<LrnAttributes>(),
              static_cast<std::size_t>(args.inputs[0].shape().dim(-1)));
  const float factor = static_cast<float>(2.0 * pixel.a.alpha * pixel.a.beta);
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < x.size(); i += pixel.channels()) {
      const float* __restrict xi = &x[i];
      const float* __restrict dyi = &dy[i];
      float* __restrict dxi = &dx[i];
      pixel.compute_powers(xi);
      float* __restrict value = pixel.values();
      const float* __restrict power = pixel.powers.data();
      for (std::size_t c = 0; c < pixel.channels(); ++c) {
        value[c] = dyi[c] * xi[c] * power[c] / pixel.bases[c];
      }
      pixel.sum_windows();
      for (std::size_t c = 0; c < pixel.channels(); ++c) {
        dxi[c] = dyi[c] * power[c] - factor * xi[c] * pixel.sums[c];
      }
    }
  });
}

}  // namespace

void register_fast_lrn_kernels(KernelTable& table) {
  table.set(OpId::kLrn, DType::kFloat32, lrn);
  table.set(OpId::kLrnGrad, DType::kFloat32, lrn_grad);
}

}  // namespace tutti::internal
