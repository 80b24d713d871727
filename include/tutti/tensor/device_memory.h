// Memory per device: what tensors take there, how much they may take.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>

#include "tutti/tensor/device.h"

namespace tutti {

class BufferAllocator;

/// For set_memory_limit(): counted, but not limited.
inline constexpr std::size_t kUnlimitedMemory = std::numeric_limits<std::size_t>::max();

/// What tensors of a device take now, took at most since reset_peak_memory(), and may take: bytes,
/// rounded up to size classes (at most a quarter above what was asked for).
/// tf.config.experimental.get_memory_info.
struct DeviceMemory {
  std::size_t in_use = 0;
  std::size_t peak = 0;
  std::size_t limit = kUnlimitedMemory;
};

/// Gives a virtual CPU device a memory of its own, of `bytes`: tensors made there count against it,
/// values that come from other devices are copied instead of shared, and a request beyond it throws
/// kResourceExhausted naming device, request, use and limit. kUnlimitedMemory: it is counted only.
/// Tensors that exist already stay uncounted in the memory that all other CPU devices share.
/// Throws kUnimplemented for a GPU: set_virtual_gpus(). The environment variable TUTTI_CPU_MEMORY
/// does the same for all devices that it names, in MiB: "cpu:0-3=64,cpu:4=512".
/// Threads: any, while nothing is made on the device. tf.config.LogicalDeviceConfiguration.
void set_memory_limit(Device device, std::size_t bytes);
/// Back to the memory that CPU devices share.
void clear_memory_limit(Device device);

/// For a CPU device without limit: what all such devices use together.
DeviceMemory device_memory(Device device);
/// The peak starts anew at what is in use.
void reset_peak_memory(Device device);

namespace internal {
/// Where tensors of a CPU device get memory.
BufferAllocator& cpu_allocator(Device device);
/// Where those of any device do.
BufferAllocator& allocator_of(Device device);
/// Whether tensors of both devices can share their elements.
bool share_memory(Device a, Device b);
}  // namespace internal

}  // namespace tutti
