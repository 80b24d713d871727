// The gradient of a bias on floats: the sum of rows, vectorised over channels.
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of 64 rows are added in float, blocks in double: fast, accurate, and an order that depends
// on the shape alone.
#include <algorithm>
#include <vector>

#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kRowsPerBlock = 64;

[[gnu::always_inline]] inline void add_row(float* __restrict sums, const float* __restrict row,
                                           std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) sums[c] += row[c];
}

void bias_grad(const KernelArgs& args) {
  const auto dy = args.in<float>(0);
  const auto db = args.out<float>(0);
  const std::size_t channels = db.size();
  std::vector<float> block(channels);
  std::vector<double> total(channels);
  const std::size_t rows = dy.size() / channels;
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t first = 0; first < rows; first += kRowsPerBlock) {
      std::ranges::fill(block, 0.0f);
      const std::size_t last = std::min(rows, first + kRowsPerBlock);
      for (std::size_t r = first; r < last; ++r) add_row(block.data(), &dy[r * channels], channels);
      for (std::size_t c = 0; c < channels; ++c) total[c] += static_cast<double>(block[c]);
    }
  });
  for (std::size_t c = 0; c < channels; ++c) db[c] = static_cast<float>(total[c]);
}

}  // namespace

void register_fast_bias_kernels(KernelTable& table) {
  table.set(OpId::kBiasGrad, DType::kFloat32, bias_grad);
}

}  // namespace tutti::internal
