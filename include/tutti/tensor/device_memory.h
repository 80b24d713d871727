// Memory use and memory limits of devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>

#include "tutti/tensor/device.h"

namespace tutti {

class BufferAllocator;

/// Limit for set_memory_limit() that counts the memory in use without limiting it.
inline constexpr std::size_t kUnlimitedMemory = std::numeric_limits<std::size_t>::max();

/// Memory use of a device's tensors: the current use, its peak since reset_peak_memory(), and the
/// limit. In bytes, rounded up to size classes (by at most a quarter). Equivalent of
/// tf.config.experimental.get_memory_info.
struct DeviceMemory {
  std::size_t in_use = 0;
  std::size_t peak = 0;
  std::size_t limit = kUnlimitedMemory;
};

/// Gives a virtual CPU device a separate memory of `bytes` bytes. Tensors created on the device use
/// this memory, and values from other devices are copied to it instead of shared. An allocation
/// beyond the limit throws kResourceExhausted, naming the device and the requested, used and
/// maximum bytes. With kUnlimitedMemory, bytes are only counted. Existing tensors stay in the
/// memory that CPU devices share, and are not counted. Throws kUnimplemented for a GPU: use
/// set_virtual_gpus(). The environment variable TUTTI_CPU_MEMORY sets limits in MiB for the devices
/// that it names, e.g. "cpu:0-3=64,cpu:4=512". Thread-safe while no tensors are created on the
/// device. Equivalent of tf.config.LogicalDeviceConfiguration.
void set_memory_limit(Device device, std::size_t bytes);
/// Makes the device share the memory of the other CPU devices again.
void clear_memory_limit(Device device);

/// Returns the memory use of `device`. CPU devices without a separate memory are counted together.
DeviceMemory device_memory(Device device);
/// Resets the peak to the current usage.
void reset_peak_memory(Device device);

namespace internal {
/// Returns the allocator for tensors of a CPU device.
BufferAllocator& cpu_allocator(Device device);
/// Returns the allocator for tensors on `device`, a CPU or a GPU.
BufferAllocator& allocator_of(Device device);
/// Returns true if tensors on the two devices can share their elements.
bool share_memory(Device a, Device b);
}  // namespace internal

}  // namespace tutti
