// Layer and group normalisation as plain loops.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "tutti/tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

/// x as [batch, positions, groups, channels of a group].
struct Extent {
  explicit Extent(const KernelArgs& args, std::size_t batch_)
      : batch(batch_),
        positions(static_cast<std::size_t>(args.attributes_as<GroupNormAttributes>().positions)),
        groups(static_cast<std::size_t>(args.attributes_as<GroupNormAttributes>().groups)),
        channels(static_cast<std::size_t>(args.inputs[1].num_elements()) / groups) {}

  /// Calls body(place in x, channel) for every element of one pair of batch row and group.
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

  std::size_t batch, positions, groups, channels;
};

template <class T>
void normalize_groups(const KernelArgs& args) {
  const auto x = args.in<T>(0), gamma = args.in<T>(1), beta = args.in<T>(2);
  const auto y = args.out<T>(0), mean = args.out<T>(1), variance = args.out<T>(2);
  const double epsilon = args.attributes_as<GroupNormAttributes>().epsilon;
  const Extent extent(args, static_cast<std::size_t>(args.outputs[1].shape()[0]));
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

// With z = (x - mean) / deviation and g = dy gamma: dbeta = sum dy, dgamma = sum dy z, and
// dx = (g - mean of g - z * mean of (g z)) / deviation.
template <class T>
void normalize_groups_gradient(const KernelArgs& args) {
  const auto x = args.in<T>(0), gamma = args.in<T>(1), mean = args.in<T>(2);
  const auto variance = args.in<T>(3), dy = args.in<T>(4);
  const auto dx = args.out<T>(0), dgamma = args.out<T>(1), dbeta = args.out<T>(2);
  const double epsilon = args.attributes_as<GroupNormAttributes>().epsilon;
  const Extent extent(args, static_cast<std::size_t>(args.inputs[2].shape()[0]));
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
void register_group_normalization_for(KernelTable& table) {
  table.set(OpId::kGroupNorm, dtype_of<T>(), normalize_groups<T>);
  table.set(OpId::kGroupNormGrad, dtype_of<T>(), normalize_groups_gradient<T>);
}

}  // namespace

void register_group_normalization_kernels(KernelTable& table) {
  register_group_normalization_for<float>(table);
  register_group_normalization_for<double>(table);
}

}  // namespace tutti::internal
