// Batch normalisation and LRN on floats, vectorised over channels.
//
// Statistics are summed row after row in double, each channel by itself: an order that depends on
// the shape alone.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "tutti/tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

using Sums = std::vector<double>;

void add_row(double* __restrict sums, const float* __restrict x, std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) sums[c] += static_cast<double>(x[c]);
}

void add_squares(double* __restrict sums, const float* __restrict x,
                 const double* __restrict center, std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) {
    const double deviation = static_cast<double>(x[c]) - center[c];
    sums[c] += deviation * deviation;
  }
}

void normalize_row(float* __restrict y, const float* __restrict x, const float* __restrict mean,
                   const float* __restrict scale, const float* __restrict beta,
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
  for (std::size_t first = 0; first < x.size(); first += mean.size()) {
    normalize_row(&y[first], &x[first], mean.data(), scale.data(), beta.data(), mean.size());
  }
}

void batch_norm_training(const KernelArgs& args) {
  const auto x = args.in<float>(0), gamma = args.in<float>(1), beta = args.in<float>(2);
  const auto mean = args.out<float>(1), variance = args.out<float>(2);
  const std::size_t channels = mean.size();
  const double rows = static_cast<double>(x.size() / channels);
  Sums center(channels), squares(channels);
  for (std::size_t i = 0; i < x.size(); i += channels) add_row(center.data(), &x[i], channels);
  for (double& sum : center) sum = rows > 0 ? sum / rows : 0.0;
  for (std::size_t i = 0; i < x.size(); i += channels) {
    add_squares(squares.data(), &x[i], center.data(), channels);
  }
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

void add_moments(double* __restrict sums, double* __restrict moments, const float* __restrict dy,
                 const float* __restrict x, const float* __restrict mean,
                 const float* __restrict inverse, std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) {
    sums[c] += static_cast<double>(dy[c]);
    moments[c] += static_cast<double>(dy[c]) * static_cast<double>((x[c] - mean[c]) * inverse[c]);
  }
}

void gradient_row(float* __restrict dx, const float* __restrict dy, const float* __restrict x,
                  const float* __restrict mean, const float* __restrict inverse,
                  const float* __restrict gamma, const float* __restrict dgamma,
                  const float* __restrict dbeta, float rows, std::size_t channels) {
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
  for (std::size_t i = 0; i < x.size(); i += channels) {
    add_moments(sums.data(), moments.data(), &dy[i], &x[i], mean.data(), inverse.data(), channels);
  }
  for (std::size_t c = 0; c < channels; ++c) {
    dbeta[c] = static_cast<float>(sums[c]);
    dgamma[c] = static_cast<float>(moments[c]);
  }
  const float rows = static_cast<float>(x.size() / channels);
  for (std::size_t i = 0; i < x.size(); i += channels) {
    gradient_row(&dx[i], &dy[i], &x[i], mean.data(), inverse.data(), gamma.data(), dgamma.data(),
                 dbeta.data(), rows, channels);
  }
}

/// base^-beta for the usual exponents without pow.
float negative_power(float base, double beta) {
  if (beta == 0.5) return 1.0f / std::sqrt(base);
  if (beta == 0.75) return 1.0f / (std::sqrt(base) * std::sqrt(std::sqrt(base)));
  if (beta == 1.0) return 1.0f / base;
  return std::pow(base, static_cast<float>(-beta));
}

/// The window sums of one pixel: sums[c] = values[c - radius] + ... + values[c + radius].
void window_sums(const float* values, float* sums, std::int64_t channels, std::int64_t radius) {
  for (std::int64_t c = 0; c < channels; ++c) {
    float sum = 0.0f;
    const std::int64_t last = std::min(channels - 1, c + radius);
    for (std::int64_t j = std::max<std::int64_t>(0, c - radius); j <= last; ++j) sum += values[j];
    sums[c] = sum;
  }
}

/// Work space of one pixel.
struct LrnPixel {
  LrnPixel(const LrnAttributes& attributes, std::int64_t num_channels)
      : a(attributes),
        channels(num_channels),
        values(static_cast<std::size_t>(num_channels)),
        bases(values.size()) {}

  void compute_bases(const float* x) {
    for (std::size_t c = 0; c < values.size(); ++c) values[c] = x[c] * x[c];
    window_sums(values.data(), bases.data(), channels, a.depth_radius);
    for (float& base : bases)
      base = static_cast<float>(a.bias) + static_cast<float>(a.alpha) * base;
  }

  const LrnAttributes& a;
  std::int64_t channels;
  std::vector<float> values, bases;
};

void lrn(const KernelArgs& args) {
  const auto x = args.in<float>(0);
  const auto y = args.out<float>(0);
  LrnPixel pixel(args.attributes_as<LrnAttributes>(), args.inputs[0].shape().dim(-1));
  for (std::size_t first = 0; first < x.size(); first += pixel.values.size()) {
    pixel.compute_bases(&x[first]);
    for (std::size_t c = 0; c < pixel.values.size(); ++c) {
      y[first + c] = x[first + c] * negative_power(pixel.bases[c], pixel.a.beta);
    }
  }
}

void lrn_grad(const KernelArgs& args) {
  const auto x = args.in<float>(0), dy = args.in<float>(1);
  const auto dx = args.out<float>(0);
  LrnPixel pixel(args.attributes_as<LrnAttributes>(), args.inputs[0].shape().dim(-1));
  const std::size_t channels = pixel.values.size();
  std::vector<float> powers(channels), sums(channels);
  const float factor = static_cast<float>(2.0 * pixel.a.alpha * pixel.a.beta);
  for (std::size_t first = 0; first < x.size(); first += channels) {
    pixel.compute_bases(&x[first]);
    for (std::size_t c = 0; c < channels; ++c) {
      powers[c] = negative_power(pixel.bases[c], pixel.a.beta);
      pixel.values[c] = dy[first + c] * x[first + c] * powers[c] / pixel.bases[c];
    }
    window_sums(pixel.values.data(), sums.data(), pixel.channels, pixel.a.depth_radius);
    for (std::size_t c = 0; c < channels; ++c) {
      dx[first + c] = dy[first + c] * powers[c] - factor * x[first + c] * sums[c];
    }
  }
}

}  // namespace

void register_fast_normalization_kernels(KernelTable& table) {
  table.set(OpId::kBatchNormTraining, DType::kFloat32, batch_norm_training);
  table.set(OpId::kBatchNormInference, DType::kFloat32, batch_norm_inference);
  table.set(OpId::kBatchNormGrad, DType::kFloat32, batch_norm_grad);
  table.set(OpId::kLrn, DType::kFloat32, lrn);
  table.set(OpId::kLrnGrad, DType::kFloat32, lrn_grad);
}

}  // namespace tutti::internal
