// Sums in place of several ranks' memory: the tree's bits, with and without asking for memory
// ahead.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/reduce_to_all.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tutti {
namespace {

using internal::kAheadBytes;
using internal::reduce_to_all;

/// Values of some ranks, with one more at each end that nobody may touch.
template <class T>
std::vector<std::vector<T>> values_of_ranks(std::size_t ranks, std::size_t count) {
  std::vector<std::vector<T>> values(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < count + 2; ++i) {
      values[r].push_back(static_cast<T>(std::sin(0.7 * double(i) + double(r)) / 3.0));
    }
  }
  return values;
}

/// Neighbours first, then their sums, one element at a time.
template <class T>
T slow_tree(const std::vector<std::vector<T>>& values, std::size_t i) {
  std::vector<T> sums;
  for (const std::vector<T>& each : values) sums.push_back(each[i]);
  for (std::size_t step = 1; step < sums.size(); step *= 2) {
    for (std::size_t r = 0; r + step < sums.size(); r += 2 * step) sums[r] += sums[r + step];
  }
  return sums[0];
}

template <class T>
void expect_the_trees_bits(std::size_t ranks, std::size_t count, std::size_t ahead) {
  const auto inputs = values_of_ranks<T>(ranks, count);
  auto values = inputs;
  std::vector<std::byte*> outputs;
  for (std::vector<T>& each : values) {
    outputs.push_back(reinterpret_cast<std::byte*>(each.data() + 1));
  }
  const std::vector<const std::byte*> starts(outputs.begin(), outputs.end());
  reduce_to_all(ReduceOp::kSum, dtype_of<T>(), starts, outputs, count, ahead);
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<T> expected = inputs[r];
    for (std::size_t i = 1; i <= count; ++i) expected[i] = slow_tree(inputs, i);
    EXPECT_EQ(values[r], expected)
        << "rank " << r << " of " << ranks << ", " << count << " elements, ahead " << ahead;
  }
}

TEST(ReduceToAll, AskingForMemoryAheadChangesNoBit) {
  for (std::size_t ranks = 2; ranks <= 9; ++ranks) {  // 9: not in registers
    for (const std::size_t count : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 1003u, 5000u}) {
      for (const std::size_t ahead : {std::size_t{0}, kAheadBytes}) {
        expect_the_trees_bits<float>(ranks, count, ahead);
        expect_the_trees_bits<double>(ranks, count, ahead);
      }
    }
  }
}

}  // namespace
}  // namespace tutti
