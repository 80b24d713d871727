// Memory of the ranks in a measurement: gradients, their values, and the expected results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/collective.h"

namespace tutti::bench {

/// Memory in separate pages, which are huge pages if the system has them. Each page is allocated
/// near the core that writes it first.
class BenchMemory {
 public:
  /// Throws kResourceExhausted if there is not enough memory.
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

/// Returns the names of networks whose gradient sizes are built in, and "one": a single buffer.
std::vector<std::string> known_gradients();
/// Returns the element counts of a network's gradients, scaled to a total of `total` elements.
/// Omits gradients without elements.
std::vector<std::size_t> scaled_gradients(std::string_view network, std::size_t total);
/// Returns the size in bytes of a list whose gradients begin at multiples of 64 bytes, as tensors
/// do.
std::size_t bytes_of_list(std::span<const std::size_t> counts, DType dtype);
std::vector<Elements> list_at(std::byte* memory, std::span<const std::size_t> counts, DType dtype);
std::vector<Elements> list_in(const BenchMemory& memory, std::span<const std::size_t> counts,
                              DType dtype);

/// Fills the list with small integers, which are exact in every type and depend on the rank and the
/// element index.
void fill(std::span<const Elements> list, int rank, ReduceOp op);
/// Errors in the results of one rank.
struct ListErrors {
  std::size_t num_wrong = 0;
  double largest = 0.0;        // largest error of a sum, comparable with max_relative_error()
  std::uint32_t checksum = 0;  // checksum of all bytes, which must be equal on all ranks
};
/// Counts the elements that differ from the combination of the fill() values of all ranks. Sums may
/// deviate by `max_relative_error`.
ListErrors errors_of(std::span<const Elements> list, int num_ranks, ReduceOp op,
                     double max_relative_error);

}  // namespace tutti::bench
