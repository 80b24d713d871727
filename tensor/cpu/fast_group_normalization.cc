// Layer and group normalisation on floats, vectorised over the channels of a group.
// SPDX-License-Identifier: Apache-2.0
//
// Sums are kept in kLanes doubles, element c of a run in lane c % kLanes, and the lanes added in
// order: an order that depends on the shape alone.
#include <array>
#include <cmath>
#include <vector>

#include "tensor/cpu/registration.h"
#include "tensor/cpu/vectorized.h"

namespace tutti::internal {
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

/// lanes += body(c) for c in 0 .. count - 1.
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
  /// Where the runs of a pair of batch row and group start, and its first channel.
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

/// What one run adds to the sums over rows, per channel.
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

void register_fast_group_normalization_kernels(KernelTable& table) {
  table.set(OpId::kGroupNorm, DType::kFloat32, forward);
  table.set(OpId::kGroupNormGrad, DType::kFloat32, backward);
}

}  // namespace tutti::internal
