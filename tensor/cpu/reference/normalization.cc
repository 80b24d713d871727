// Batch, local response, layer and group normalisation as plain loops.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/cpu/registration.h"

namespace tutti::internal {

// Batch normalisation and local response normalisation.

namespace {

// x is viewed as [rows, channels].
template <class T>
void batch_norm_training(const KernelArgs& args) {
  const auto x = args.in<T>(0), gamma = args.in<T>(1), beta = args.in<T>(2);
  const auto y = args.out<T>(0), mean = args.out<T>(1), variance = args.out<T>(2);
  const std::size_t channels = mean.size();
  const std::size_t rows = x.size() / channels;
  const T epsilon = static_cast<T>(args.attributes_as<BatchNormAttributes>().epsilon);
  for (std::size_t c = 0; c < channels; ++c) {
    double sum = 0.0, squares = 0.0;
    for (std::size_t r = 0; r < rows; ++r) sum += static_cast<double>(x[r * channels + c]);
    const double center = rows > 0 ? sum / static_cast<double>(rows) : 0.0;
    for (std::size_t r = 0; r < rows; ++r) {
      const double deviation = static_cast<double>(x[r * channels + c]) - center;
      squares += deviation * deviation;
    }
    mean[c] = static_cast<T>(center);
    variance[c] = static_cast<T>(rows > 0 ? squares / static_cast<double>(rows) : 0.0);
    const T scale = gamma[c] / std::sqrt(variance[c] + epsilon);
    for (std::size_t r = 0; r < rows; ++r) {
      y[r * channels + c] = (x[r * channels + c] - mean[c]) * scale + beta[c];
    }
  }
}

template <class T>
void batch_norm_inference(const KernelArgs& args) {
  const auto x = args.in<T>(0), gamma = args.in<T>(1), beta = args.in<T>(2);
  const auto mean = args.in<T>(3), variance = args.in<T>(4);
  const auto y = args.out<T>(0);
  const std::size_t channels = mean.size();
  const T epsilon = static_cast<T>(args.attributes_as<BatchNormAttributes>().epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    y[i] = (x[i] - mean[c]) * (gamma[c] / std::sqrt(variance[c] + epsilon)) + beta[c];
  }
}

// With deviation = sqrt(variance + epsilon) and z = (x - mean) / deviation:
// dbeta = sum(dy), dgamma = sum(dy * z), and
// dx = gamma / deviation * (dy - dbeta / rows - z * dgamma / rows).
template <class T>
void batch_norm_grad(const KernelArgs& args) {
  const auto x = args.in<T>(0), gamma = args.in<T>(1), mean = args.in<T>(2);
  const auto variance = args.in<T>(3), dy = args.in<T>(4);
  const auto dx = args.out<T>(0), dgamma = args.out<T>(1), dbeta = args.out<T>(2);
  const std::size_t channels = gamma.size();
  const std::size_t rows = x.size() / channels;
  const T epsilon = static_cast<T>(args.attributes_as<BatchNormAttributes>().epsilon);
  for (std::size_t c = 0; c < channels; ++c) {
    const T inverse = T{1} / std::sqrt(variance[c] + epsilon);
    double sum = 0.0, moment = 0.0;
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t i = r * channels + c;
      sum += static_cast<double>(dy[i]);
      moment += static_cast<double>(dy[i]) * static_cast<double>((x[i] - mean[c]) * inverse);
    }
    dbeta[c] = static_cast<T>(sum);
    dgamma[c] = static_cast<T>(moment);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t i = r * channels + c;
      const T z = (x[i] - mean[c]) * inverse;
      dx[i] = gamma[c] * inverse * (dy[i] - (dbeta[c] + z * dgamma[c]) / static_cast<T>(rows));
    }
  }
}

/// Returns bias + alpha * the sum of squares of the channels around c.
template <class T>
T lrn_base(const T* pixel, std::int64_t c, std::int64_t channels, const LrnAttributes& a) {
  T sum{0};
  const std::int64_t last = std::min(channels - 1, c + a.depth_radius);
  for (std::int64_t j = std::max<std::int64_t>(0, c - a.depth_radius); j <= last; ++j) {
    sum += pixel[j] * pixel[j];
  }
  return static_cast<T>(a.bias) + static_cast<T>(a.alpha) * sum;
}

template <class T>
void lrn(const KernelArgs& args) {
  const auto& a = args.attributes_as<LrnAttributes>();
  const std::int64_t channels = args.inputs[0].shape().dim(-1);
  const std::int64_t count = args.inputs[0].num_elements();
  const T* x = args.in<T>(0).data();
  T* y = args.out<T>(0).data();
  for (std::int64_t first = 0; first < count; first += channels) {
    for (std::int64_t c = 0; c < channels; ++c) {
      y[first + c] =
          x[first + c] * std::pow(lrn_base(x + first, c, channels, a), static_cast<T>(-a.beta));
    }
  }
}

// y_i = x_i base_i^-beta, so dx_j = dy_j base_j^-beta - 2 alpha beta x_j * sum over i near j of
// dy_i x_i base_i^(-beta-1).
template <class T>
void lrn_grad(const KernelArgs& args) {
  const auto& a = args.attributes_as<LrnAttributes>();
  const std::int64_t channels = args.inputs[0].shape().dim(-1);
  const std::int64_t count = args.inputs[0].num_elements();
  const T* x = args.in<T>(0).data();
  const T* dy = args.in<T>(1).data();
  T* dx = args.out<T>(0).data();
  for (std::int64_t first = 0; first < count; first += channels) {
    for (std::int64_t j = 0; j < channels; ++j) {
      T sum{0};
      const std::int64_t last = std::min(channels - 1, j + a.depth_radius);
      for (std::int64_t i = std::max<std::int64_t>(0, j - a.depth_radius); i <= last; ++i) {
        const T base = lrn_base(x + first, i, channels, a);
        sum += dy[first + i] * x[first + i] * std::pow(base, static_cast<T>(-a.beta - 1.0));
      }
      const T base = lrn_base(x + first, j, channels, a);
      dx[first + j] = dy[first + j] * std::pow(base, static_cast<T>(-a.beta)) -
                      static_cast<T>(2.0 * a.alpha * a.beta) * x[first + j] * sum;
    }
  }
}

// Layer and group normalisation.

/// Dimensions of x when viewed as [batch, positions, groups, channels of a group].
struct Extent {
  Extent(const KernelArgs& args, std::int64_t num_statistics)
      : positions(static_cast<std::size_t>(args.attributes_as<GroupNormAttributes>().positions)),
        groups(static_cast<std::size_t>(args.attributes_as<GroupNormAttributes>().groups)),
        batch(static_cast<std::size_t>(num_statistics) / groups),
        channels(static_cast<std::size_t>(args.inputs[1].num_elements()) / groups) {}

  /// Calls body(index in x, channel) for every element of one (batch row, group) pair.
  template <class Body>
  void for_each(std::size_t row, std::size_t group, const Body& body) const {
    for (std::size_t p = 0; p < positions; ++p) {
      for (std::size_t c = 0; c < channels; ++c) {
        const std::size_t channel = group * channels + c;
        body((row * positions + p) * groups * channels + channel, channel);
      }
    }
  }
  double count() const { return static_cast<double>(positions * channels); }

  std::size_t positions, groups, batch, channels;
};

template <class T>
void normalize_groups(const KernelArgs& args) {
  const auto x = args.in<T>(0), gamma = args.in<T>(1), beta = args.in<T>(2);
  const auto y = args.out<T>(0), mean = args.out<T>(1), variance = args.out<T>(2);
  const double epsilon = args.attributes_as<GroupNormAttributes>().epsilon;
  const Extent extent(args, args.outputs[1].num_elements());
  for (std::size_t pair = 0; pair < mean.size(); ++pair) {
    const std::size_t row = pair / extent.groups, group = pair % extent.groups;
    double sum = 0.0, squares = 0.0;
    extent.for_each(row, group,
                    [&](std::size_t i, std::size_t) { sum += static_cast<double>(x[i]); });
    const double center = extent.count() > 0 ? sum / extent.count() : 0.0;
    extent.for_each(row, group, [&](std::size_t i, std::size_t) {
      const double deviation = static_cast<double>(x[i]) - center;
      squares += deviation * deviation;
    });
    const double spread = extent.count() > 0 ? squares / extent.count() : 0.0;
    mean[pair] = static_cast<T>(center);
    variance[pair] = static_cast<T>(spread);
    const double inverse = 1.0 / std::sqrt(spread + epsilon);
    extent.for_each(row, group, [&](std::size_t i, std::size_t c) {
      const double z = (static_cast<double>(x[i]) - center) * inverse;
      y[i] = static_cast<T>(z * static_cast<double>(gamma[c]) + static_cast<double>(beta[c]));
    });
  }
}

// With deviation = sqrt(variance + epsilon), z = (x - mean) / deviation and g = dy * gamma:
// dbeta = sum(dy), dgamma = sum(dy * z), and dx = (g - mean(g) - z * mean(g * z)) / deviation.
template <class T>
void normalize_groups_gradient(const KernelArgs& args) {
  const auto x = args.in<T>(0), gamma = args.in<T>(1), mean = args.in<T>(2);
  const auto variance = args.in<T>(3), dy = args.in<T>(4);
  const auto dx = args.out<T>(0), dgamma = args.out<T>(1), dbeta = args.out<T>(2);
  const double epsilon = args.attributes_as<GroupNormAttributes>().epsilon;
  const Extent extent(args, args.inputs[2].num_elements());
  std::vector<double> sums(gamma.size()), moments(gamma.size());
  for (std::size_t pair = 0; pair < mean.size(); ++pair) {
    const std::size_t row = pair / extent.groups, group = pair % extent.groups;
    const double center = static_cast<double>(mean[pair]);
    const double inverse = 1.0 / std::sqrt(static_cast<double>(variance[pair]) + epsilon);
    const auto z_of = [&](std::size_t i) { return (static_cast<double>(x[i]) - center) * inverse; };
    double sum = 0.0, moment = 0.0;
    extent.for_each(row, group, [&](std::size_t i, std::size_t c) {
      const double d = static_cast<double>(dy[i]);
      sums[c] += d;
      moments[c] += d * z_of(i);
      sum += d * static_cast<double>(gamma[c]);
      moment += d * static_cast<double>(gamma[c]) * z_of(i);
    });
    extent.for_each(row, group, [&](std::size_t i, std::size_t c) {
      const double g = static_cast<double>(dy[i]) * static_cast<double>(gamma[c]);
      dx[i] = static_cast<T>(inverse * (g - (sum + z_of(i) * moment) / extent.count()));
    });
  }
  for (std::size_t c = 0; c < gamma.size(); ++c) {
    dgamma[c] = static_cast<T>(moments[c]);
    dbeta[c] = static_cast<T>(sums[c]);
  }
}

template <class T>
void register_normalization_for(KernelTable& table) {
  table.set(OpId::kBatchNormTraining, dtype_of<T>(), batch_norm_training<T>);
  table.set(OpId::kBatchNormInference, dtype_of<T>(), batch_norm_inference<T>);
  table.set(OpId::kBatchNormGrad, dtype_of<T>(), batch_norm_grad<T>);
  table.set(OpId::kLrn, dtype_of<T>(), lrn<T>);
  table.set(OpId::kLrnGrad, dtype_of<T>(), lrn_grad<T>);
  table.set(OpId::kGroupNorm, dtype_of<T>(), normalize_groups<T>);
  table.set(OpId::kGroupNormGrad, dtype_of<T>(), normalize_groups_gradient<T>);
}

}  // namespace

void register_normalization_reference_kernels(KernelTable& table) {
  register_normalization_for<float>(table);
  register_normalization_for<double>(table);
}

}  // namespace tutti::internal
