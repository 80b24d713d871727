// Batch normalisation on floats, vectorised over channels.
// SPDX-License-Identifier: Apache-2.0
//
// Statistics are summed row after row in double, each channel by itself: an order that depends on
// the shape alone.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
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

}  // namespace

void register_fast_normalization_kernels(KernelTable& table) {
  table.set(OpId::kBatchNormTraining, DType::kFloat32, batch_norm_training);
  table.set(OpId::kBatchNormInference, DType::kFloat32, batch_norm_inference);
  table.set(OpId::kBatchNormGrad, DType::kFloat32, batch_norm_grad);
}

}  // namespace tutti::internal
