// One pass over memory: combine a block of all inputs, store it to all outputs.
// SPDX-License-Identifier: Apache-2.0
//
// Up to eight floating inputs in place are summed in registers and stored to all. Everything else
// is combined block by block, a *block* being a run of elements that stays in the first-level cache
// until it has been copied.
#include "tutti/cross_device_ops/reduce_to_all.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/element_arithmetic.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kSumBlockBytes = 8 * 1024;

template <std::size_t n, class T>
void sum_in_registers(std::span<std::byte* const> buffers, std::size_t first, std::size_t end) {
  std::array<T*, n> at;
  for (std::size_t r = 0; r < n; ++r) at[r] = reinterpret_cast<T*>(buffers[r]);
  vectorized([=]() __attribute__((always_inline)) {
#if !defined(__clang__)
#pragma GCC ivdep
#endif
    for (std::size_t i = first; i < end; ++i) {
      T values[n];
      for (std::size_t r = 0; r < n; ++r) values[r] = at[r][i];
      const T sum = sum_of_tree<0, n>(values);
      for (std::size_t r = 0; r < n; ++r) at[r][i] = sum;
    }
  });
}

/// sum_in_registers() of whole lines, asking for those that are `ahead` bytes further on. Returns
/// how many elements that were.
template <std::size_t n, class T>
std::size_t sum_lines_ahead(std::span<std::byte* const> buffers, std::size_t count,
                            std::size_t ahead) {
  constexpr std::size_t kLineBytes = 64, kLine = kLineBytes / sizeof(T);
  const std::size_t num_lines = count / kLine;
  std::array<std::byte*, n> at;
  for (std::size_t r = 0; r < n; ++r) at[r] = buffers[r];
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t place = 0; place < num_lines * kLineBytes; place += kLineBytes) {
      T lines[n][kLine];
      for (std::size_t r = 0; r < n; ++r) {
        __builtin_prefetch(at[r] + place + ahead);
        std::memcpy(lines[r], at[r] + place, kLineBytes);
      }
      T sums[kLine];
      for (std::size_t i = 0; i < kLine; ++i) {
        T values[n];
        for (std::size_t r = 0; r < n; ++r) values[r] = lines[r][i];
        sums[i] = sum_of_tree<0, n>(values);
      }
      for (std::size_t r = 0; r < n; ++r) std::memcpy(at[r] + place, sums, kLineBytes);
    }
  });
  return num_lines * kLine;
}

/// The sum to two places, each of which may be exactly one of the inputs.
template <std::size_t n, class T>
void sum_into_both(std::span<const std::byte* const> inputs, T* first, T* second,
                   std::size_t count) {
  std::array<const T*, n> at;
  for (std::size_t r = 0; r < n; ++r) at[r] = reinterpret_cast<const T*>(inputs[r]);
  vectorized([=]() __attribute__((always_inline)) {
#if !defined(__clang__)
#pragma GCC ivdep
#endif
    for (std::size_t i = 0; i < count; ++i) {
      T values[n];
      for (std::size_t r = 0; r < n; ++r) values[r] = at[r][i];
      first[i] = second[i] = sum_of_tree<0, n>(values);
    }
  });
}

template <class Pointer>
bool are_aligned(std::span<const Pointer> pointers, DType dtype) {
  return std::ranges::all_of(pointers, [&](const std::byte* data) {
    return reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0;
  });
}

bool is_float_sum(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs) {
  return op == ReduceOp::kSum && (dtype == DType::kFloat32 || dtype == DType::kFloat64) &&
         are_aligned(inputs, dtype);
}

bool fits_registers(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs) {
  if (!is_float_sum(op, dtype, inputs)) return false;
  if (inputs.size() < 2 || inputs.size() > kMostInRegisters) return false;
  if (!std::ranges::equal(inputs, outputs)) return false;
  for (std::size_t a = 0; a < inputs.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (inputs[a] == inputs[b]) return false;
    }
  }
  return true;
}

bool fits_two_outputs(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                      std::span<std::byte* const> outputs) {
  return is_float_sum(op, dtype, inputs) && inputs.size() >= 2 &&
         inputs.size() <= kMostInRegisters && outputs.size() == 2 && outputs[0] != outputs[1] &&
         are_aligned(std::span<std::byte* const>(outputs), dtype);
}

}  // namespace

void reduce_to_all(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count, std::size_t ahead) {
  if (fits_registers(op, dtype, inputs, outputs)) {
    return visit_arithmetic_floating(dtype, "reduce_to_all", [&]<class T>() {
      with_size(outputs.size(), [&]<std::size_t n>() {
        const std::size_t done = ahead > 0 ? sum_lines_ahead<n, T>(outputs, count, ahead) : 0;
        sum_in_registers<n, T>(outputs, done, count);
      });
    });
  }
  if (fits_two_outputs(op, dtype, inputs, outputs)) {
    return visit_arithmetic_floating(dtype, "reduce_to_all", [&]<class T>() {
      with_size(inputs.size(), [&]<std::size_t n>() {
        sum_into_both<n, T>(inputs, reinterpret_cast<T*>(outputs[0]),
                            reinterpret_cast<T*>(outputs[1]), count);
      });
    });
  }
  alignas(64) std::array<std::byte, kSumBlockBytes> block;
  const std::size_t size = size_of(dtype);
  const std::size_t most = kSumBlockBytes / size;
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
