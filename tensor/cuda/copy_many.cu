// Many small copies in one launch: what packs gradients into buckets and unpacks them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/batches.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

constexpr int kItems = 128;  // of 24 bytes
constexpr std::int64_t kBytesPerBlock = 32 * 1024;

/// Bytes [first, end) in units of T, the last ones singly.
template <class T>
__device__ __forceinline__ void copy_bytes(const DeviceCopy& copy, std::int64_t first,
                                           std::int64_t end) {
  constexpr std::int64_t kUnit = sizeof(T);
  const auto* const from = static_cast<const char*>(copy.from);
  auto* const to = static_cast<char*>(copy.to);
  const std::int64_t whole = first + (end - first) / kUnit * kUnit;
#pragma unroll 4
  for (std::int64_t i = first + threadIdx.x * kUnit; i < whole; i += kThreads * kUnit) {
    *reinterpret_cast<T*>(to + i) = *reinterpret_cast<const T*>(from + i);
  }
  for (std::int64_t i = whole + threadIdx.x; i < end; i += kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ Batch<DeviceCopy, kItems> batch) {
  const auto share = batch.share(kBytesPerBlock);
  const DeviceCopy& copy = batch.items[share.item];
  const auto bytes = static_cast<std::int64_t>(copy.bytes);
  const std::int64_t past = share.first + kBytesPerBlock, end = past < bytes ? past : bytes;
  const auto bits =
      reinterpret_cast<std::uintptr_t>(copy.from) | reinterpret_cast<std::uintptr_t>(copy.to);
  if (bits % 16 == 0) {
    copy_bytes<Bytes16>(copy, share.first, end);
  } else if (bits % 4 == 0) {
    copy_bytes<std::uint32_t>(copy, share.first, end);
  } else if (bits % 2 == 0) {
    copy_bytes<std::uint16_t>(copy, share.first, end);
  } else {
    copy_bytes<std::uint8_t>(copy, share.first, end);
  }
}

}  // namespace

void copy_many(std::span<const DeviceCopy> copies, cudaStream_t stream) {
  for_each_batch<kItems>(
      copies, kBytesPerBlock,
      [](const DeviceCopy& copy) { return static_cast<std::int64_t>(copy.bytes); },
      [stream](const Batch<DeviceCopy, kItems>& batch) {
        launch(copy_kernel, batch.num_blocks, kThreads, stream, batch);
      });
}

}  // namespace tutti::cuda
