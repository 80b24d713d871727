// Dropout on floats without a branch per element.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>

#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

void dropout(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<DropoutAttributes>();
  const RandomStream stream(attributes.key);
  const float rate = static_cast<float>(attributes.rate);
  const float scale = static_cast<float>(1.0 / (1.0 - attributes.rate));
  const auto x = args.in<float>(0);
  const auto y = args.out<float>(0);
  std::array<float, 1024> draws;
  for (std::size_t first = 0; first < x.size(); first += draws.size()) {
    const std::size_t count = std::min(draws.size(), x.size() - first);
    stream.fill_uniform(first, std::span(draws).first(count));
    const float* __restrict from = x.data() + first;
    float* __restrict to = y.data() + first;
    vectorized([&]() __attribute__((always_inline)) {
      for (std::size_t i = 0; i < count; ++i) {
        // A mask, not a product: a dropped infinity is 0.
        const std::int32_t kept = -static_cast<std::int32_t>(draws[i] >= rate);
        to[i] = std::bit_cast<float>(kept & std::bit_cast<std::int32_t>(from[i] * scale));
      }
    });
  }
}

}  // namespace

void register_fast_dropout_kernels(KernelTable& table) {
  table.set(OpId::kDropout, DType::kFloat32, dropout);
}

}  // namespace tutti::internal
