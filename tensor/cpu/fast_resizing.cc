// Enlarging images of floats, vectorised over channels: the reference kernel's parts and order.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/upsampling.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

[[gnu::always_inline]] inline void add_weighted(float* __restrict to, const float* __restrict from,
                                                float weight, std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) to[c] += weight * from[c];
}

/// A pixel is written once, from its one or four parts.
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

void register_fast_resizing_kernels(KernelTable& table) {
  table.set(OpId::kUpsample, DType::kFloat32, upsample);
  table.set(OpId::kUpsampleGrad, DType::kFloat32, upsample_grad);
}

}  // namespace tutti::internal
