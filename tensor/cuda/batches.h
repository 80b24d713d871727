// Work on many arrays in one launch: which array a block works on, and where in it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/cuda/elements.h"

namespace tutti::cuda {

/// Some items, and the blocks of a launch shared out among them. Passed to kernels by value: with
/// all else at most 4 KB.
template <class Item, int kCapacity>
struct Batch {
  struct Share {
    int item;
    std::int64_t first;  // element of the item with which the block begins
  };

  /// The item of this block.
  __device__ __forceinline__ Share share(std::int64_t per_block) const {
    int low = 0, high = count - 1;  // the last item whose first block is not behind this one
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

/// Cuts `items` into batches and calls launch_batch(batch) for each. size_of_item(item): its number
/// of elements; items without any are left out.
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
