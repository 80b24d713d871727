// Processing of many arrays in one launch: maps each block to its array and elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/cuda/elements.h"

namespace tutti::cuda {

/// Items, and the distribution of a launch's blocks among them. Passed to kernels by value, so at
/// most 4 KB together with all other parameters.
template <class Item, int kCapacity>
struct Batch {
  struct Share {
    int item;
    std::int64_t first;  // this block's first element, as an index into the item
  };

  /// Returns the item that this thread block works on, and the block's first element within that
  /// item.
  __device__ __forceinline__ Share share(std::int64_t per_block) const {
    int low = 0, high = count - 1;  // finds the last item whose first block is not after this block
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_block[middle] <= blockIdx.x) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return {low, (std::int64_t{blockIdx.x} - first_block[low]) * per_block};
  }

  Item items[kCapacity];
  std::uint32_t first_block[kCapacity] = {};
  std::uint32_t num_blocks = 0;
  int count = 0;
};

/// Divides `items` into batches and calls launch_batch(batch) for each. size_of_item(item) returns
/// the item's number of elements; empty items are skipped.
template <int kCapacity, class Item, class SizeOf, class Launch>
void for_each_batch(std::span<const Item> items, std::int64_t per_block, const SizeOf& size_of_item,
                    const Launch& launch_batch) {
  constexpr std::uint32_t kMaxBlocks = 1u << 30;
  Batch<Item, kCapacity> batch;
  const auto flush = [&] {
    if (batch.count > 0) launch_batch(batch);
    batch.count = 0;
    batch.num_blocks = 0;
  };
  for (const Item& item : items) {
    const std::int64_t blocks = (size_of_item(item) + per_block - 1) / per_block;
    if (blocks == 0) continue;
    if (batch.count == kCapacity || batch.num_blocks + blocks > kMaxBlocks) flush();
    batch.items[batch.count] = item;
    batch.first_block[batch.count++] = batch.num_blocks;
    batch.num_blocks += static_cast<std::uint32_t>(blocks);
  }
  flush();
}

}  // namespace tutti::cuda
