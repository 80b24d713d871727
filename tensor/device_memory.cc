// Virtual CPU devices, each with its own memory.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/device_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "core/names.h"
#include "tensor/buffer_allocator.h"
#include "tensor/gpu_device.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

/// Allocators, one for each device that ever had its own memory. They live as long as the process,
/// because tensors in static storage may live that long.
class CpuMemories {
 public:
  /// Returns the device's allocator; nullptr if the device shares the host's memory.
  BufferAllocator* own(Device device) const {
    return active_[index(device)].load(std::memory_order_acquire);
  }
  void enable(Device device, std::size_t bytes);
  void disable(Device device) { active_[index(device)].store(nullptr, std::memory_order_release); }
  void read_environment();

 private:
  static std::size_t index(Device device) { return static_cast<std::size_t>(device.index); }
  std::array<std::atomic<BufferAllocator*>, kNumVirtualCpuDevices> active_{};
  Mutex mutex_;
  std::array<std::shared_ptr<BufferAllocator>, kNumVirtualCpuDevices> made_
      TUTTI_GUARDED_BY(mutex_);
};

void CpuMemories::enable(Device device, std::size_t bytes) {
  MutexLock lock(mutex_);
  std::shared_ptr<BufferAllocator>& allocator = made_[index(device)];
  if (!allocator) {
    allocator = std::make_shared<BufferAllocator>(
        host_memory(), BufferAllocatorOptions{
                           .name = device.to_string(),
                           .advice = "try a smaller batch, or place parts of the model on several "
                                     "devices (docs/model_parallelism.md)",
                           .max_cached = kMaxCachedBytes});
  }
  allocator->set_limit(bytes);
  active_[index(device)].store(allocator.get(), std::memory_order_release);
}

[[noreturn]] void fail_environment(std::string_view text) {
  fail(ErrorCode::kInvalidArgument, "TUTTI_CPU_MEMORY: cannot read '", text,
       "'; expected devices and MiB such as 'cpu:0-3=64,cpu:4=512'");
}

void CpuMemories::read_environment() {
  const char* const value = std::getenv("TUTTI_CPU_MEMORY");
  for (std::string_view rest = value ? value : ""; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) fail_environment(entry);
    const std::string_view number = entry.substr(equals + 1);
    const auto mebibytes = internal::parse_number<std::size_t>(number);
    if (!mebibytes || *mebibytes >= kUnlimitedMemory >> 20) fail_environment(entry);
    for (const Device& device : parse_devices(entry.substr(0, equals))) {
      if (device.type != DeviceType::kCpu) fail_environment(entry);
      enable(device, *mebibytes << 20);
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
}

CpuMemories& memories() {
  // Never destroyed, like the host's allocator.
  static CpuMemories& all = []() -> CpuMemories& {
    CpuMemories& made = *std::make_unique<CpuMemories>().release();
    made.read_environment();
    return made;
  }();
  return all;
}

void require_cpu(Device device, const char* who) {
  require_available(device);
  if (device.type == DeviceType::kCpu) return;
  fail(ErrorCode::kUnimplemented, who, ": expected a virtual CPU device, got ", device,
       "; call set_virtual_gpus({.memory_limit = ...}) before the first use of a GPU");
}

}  // namespace

void set_memory_limit(Device device, std::size_t bytes) {
  require_cpu(device, "set_memory_limit");
  memories().enable(device, bytes);
}

void clear_memory_limit(Device device) {
  require_cpu(device, "clear_memory_limit");
  memories().disable(device);
}

DeviceMemory device_memory(Device device) {
  require_available(device);
  const BufferAllocator& allocator = internal::allocator_of(device);
  const AllocatorStatistics statistics = allocator.statistics();
  return {statistics.in_use, statistics.peak_in_use, allocator.limit()};
}

void reset_peak_memory(Device device) {
  require_available(device);
  internal::allocator_of(device).reset_peak();
}

namespace internal {

BufferAllocator& cpu_allocator(Device device) {
  BufferAllocator* const own = memories().own(device);
  return own ? *own : host_allocator();
}

BufferAllocator& allocator_of(Device device) {
  return device.type == DeviceType::kCpu ? cpu_allocator(device)
                                         : GpuDevice::of(device).allocator();
}

bool share_memory(Device a, Device b) {
  if (a.type != DeviceType::kCpu || b.type != DeviceType::kCpu) return a == b;
  return a == b || &cpu_allocator(a) == &cpu_allocator(b);
}

}  // namespace internal
}  // namespace tutti
