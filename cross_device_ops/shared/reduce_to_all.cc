// One pass over memory: combine a block of all inputs, store it to all outputs.
// SPDX-License-Identifier: Apache-2.0
//
// The sum of two floating inputs goes from registers to both outputs. Everything else is combined
// block by block, a *block* being a run of elements that stays in the first-level cache until it
// has been copied.
#include "tutti/cross_device_ops/shared/reduce_to_all.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kBlockBytes = 8 * 1024;

// In place, so that every store hits a line that was just read.
template <class T>
void sum_both(T* __restrict a, T* __restrict b, std::size_t count) {
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) {
      const T sum = a[i] + b[i];
      a[i] = sum;
      b[i] = sum;
    }
  });
}

bool sums_both(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
               std::span<std::byte* const> outputs) {
  return op == ReduceOp::kSum && (dtype == DType::kFloat32 || dtype == DType::kFloat64) &&
         inputs.size() == 2 && outputs.size() == 2 && inputs[0] == outputs[0] &&
         inputs[1] == outputs[1] && inputs[0] != inputs[1];
}

}  // namespace

void reduce_to_all(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count) {
  if (sums_both(op, dtype, inputs, outputs)) {
    return visit_arithmetic_floating(dtype, "reduce_to_all", [&]<class T>() {
      sum_both(reinterpret_cast<T*>(outputs[0]), reinterpret_cast<T*>(outputs[1]), count);
    });
  }
  alignas(64) std::array<std::byte, kBlockBytes> block;
  const std::size_t size = size_of(dtype);
  const std::size_t most = kBlockBytes / size;
  std::array<const std::byte*, 64> few;
  std::vector<const std::byte*> many(inputs.size() > few.size() ? inputs.size() : 0);
  const std::span<const std::byte*> starts =
      many.empty() ? std::span(few).first(inputs.size()) : std::span(many);
  for (std::size_t first = 0; first < count; first += most) {
    const std::size_t n = std::min(most, count - first);
    for (std::size_t i = 0; i < inputs.size(); ++i) starts[i] = inputs[i] + first * size;
    reduce_along_tree(op, dtype, starts, block.data(), n);
    for (std::byte* output : outputs) std::memcpy(output + first * size, block.data(), n * size);
  }
}

}  // namespace tutti::internal
