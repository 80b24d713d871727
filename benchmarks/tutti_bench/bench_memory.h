// Memory of the ranks of a measurement: gradients, their values and what must come out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/collective.h"

namespace tutti::bench {

/// Pages of its own, large ones where the system has them; touched first by whoever writes first.
class BenchMemory {
 public:
  /// Throws kResourceExhausted.
  explicit BenchMemory(std::size_t num_bytes);
  ~BenchMemory();
  BenchMemory(BenchMemory&& other) noexcept;
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

/// Networks whose lists of gradients are known, and "one": a single buffer.
std::vector<std::string> known_gradients();
/// Numbers of elements of a network's gradients, scaled so that there are `total` elements in all;
/// what would have none is left out.
std::vector<std::size_t> scaled_gradients(std::string_view network, std::size_t total);
/// Bytes that a list needs when each gradient begins at a multiple of 64 bytes, as tensors do.
std::size_t bytes_of_list(std::span<const std::size_t> counts, DType dtype);
std::vector<Elements> list_at(std::byte* memory, std::span<const std::size_t> counts, DType dtype);
std::vector<Elements> list_in(const BenchMemory& memory, std::span<const std::size_t> counts,
                              DType dtype);

/// Small whole numbers, exact in every type, different per rank and element.
void fill(std::span<const Elements> list, int rank, ReduceOp op);
/// Errors in the results of a rank.
struct ListErrors {
  std::size_t num_wrong = 0;
  double largest = 0.0;        // error of a sum, in the units of max_relative_error()
  std::uint32_t checksum = 0;  // of all bytes: results of all ranks are equal
};
/// Counts the elements that are not the combination of what fill() gave all ranks. Sums may differ
/// from it by `max_relative_error`.
ListErrors errors_of(std::span<const Elements> list, int num_ranks, ReduceOp op,
                     double max_relative_error);

}  // namespace tutti::bench
