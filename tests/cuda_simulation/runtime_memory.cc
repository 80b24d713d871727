// Memory and copies in the simulated CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/cuda_simulation/state.h"

using tutti::cuda_simulation::Arena;
using tutti::cuda_simulation::call;
using tutti::cuda_simulation::call_gpu;
using tutti::cuda_simulation::Item;
using tutti::cuda_simulation::Queue;
using tutti::cuda_simulation::this_thread;
using tutti::cuda_simulation::World;

namespace {

enum class Place { kDevice, kPinned, kPageable, kInvalid };

Place place_of(const World& world, const void* data, std::size_t bytes) {
  const int gpu = world.arena.gpu_of(data, bytes);
  if (gpu >= 0) return Place::kDevice;
  if (gpu == Arena::kNowhere) return Place::kInvalid;
  return world.is_pinned(data) ? Place::kPinned : Place::kPageable;
}

bool fits(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t put_copy(World& world, const std::shared_ptr<Queue>& queue, void* to, const void* from,
                     std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  const Place source = place_of(world, from, bytes), target = place_of(world, to, bytes);
  if (source == Place::kInvalid || target == Place::kInvalid ||
      !fits(kind, source == Place::kDevice, target == Place::kDevice)) {
    return cudaErrorInvalidValue;
  }
  const bool pageable = source == Place::kPageable || target == Place::kPageable;
  if (pageable && queue->capture) {
    return invalidate(*queue->capture, cudaErrorStreamCaptureUnsupported);
  }
  Item item;
  if (source == Place::kPageable) {  // read now: the caller may change it after the return
    const auto* const begin = static_cast<const std::byte*>(from);
    item.work = [to, bytes, copy = std::vector<std::byte>(begin, begin + bytes)] {
      std::memcpy(to, copy.data(), bytes);
    };
  } else {
    item.work = [to, from, bytes] { std::memmove(to, from, bytes); };
  }
  const cudaError_t status = put(world, queue, std::move(item));
  if (status != cudaSuccess || target != Place::kPageable) return status;
  return run_until(world, record(world, queue));
}

cudaError_t put_fill(World& world, const std::shared_ptr<Queue>& queue, void* data, int value,
                     std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  if (place_of(world, data, bytes) != Place::kDevice) return cudaErrorInvalidValue;
  Item item;
  item.work = [data, value, bytes] { std::memset(data, value, bytes); };
  return put(world, queue, std::move(item));
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return call_gpu([&](World& world) {
    *data = nullptr;
    if (const cudaError_t status = refuse_while_capturing(world); status != cudaSuccess) {
      return status;
    }
    if (bytes == 0) return cudaSuccess;
    if (++world.num_allocations == world.machine.faults.allocation) {
      return cudaErrorMemoryAllocation;
    }
    *data = world.arena.allocate(this_thread().gpu, bytes);
    return *data ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

cudaError_t cudaFree(void* data) {
  return call_gpu([&](World& world) {
    if (!data) return cudaSuccess;
    if (const cudaError_t status = refuse_while_capturing(world); status != cudaSuccess) {
      return status;
    }
    const int gpu = world.arena.gpu_of(data);
    if (gpu < 0) return cudaErrorInvalidValue;
    run_all(world, gpu);  // as CUDA does
    switch (world.arena.release(data)) {
      case Arena::Freed::kYes:
        return cudaSuccess;
      case Arena::Freed::kNoBlock:
        return cudaErrorInvalidValue;
      case Arena::Freed::kOverrun:
        std::fprintf(stderr, "simulated GPU %d: something wrote behind the end of a block\n", gpu);
        return world.gpus[static_cast<std::size_t>(gpu)].failure = cudaErrorIllegalAddress;
    }
    return cudaErrorUnknown;
  });
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return call_gpu([&](World& world) {
    if (const cudaError_t status = refuse_while_capturing(world); status != cudaSuccess) {
      return status;
    }
    constexpr std::size_t kAlignment = 512;
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    *data = std::aligned_alloc(kAlignment, rounded);
    if (!*data) return cudaErrorMemoryAllocation;
    const std::shared_ptr<void> owned(*data, &std::free);
    world.pinned[static_cast<const std::byte*>(*data)] = {bytes, owned};
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  return cudaMallocHost(data, bytes);
}

cudaError_t cudaFreeHost(void* data) {
  return call([&](World& world) {
    if (!data) return cudaSuccess;
    if (const cudaError_t status = refuse_while_capturing(world); status != cudaSuccess) {
      return status;
    }
    for (std::size_t gpu = 0; gpu < world.gpus.size(); ++gpu) run_all(world, static_cast<int>(gpu));
    return world.pinned.erase(static_cast<const std::byte*>(data)) ? cudaSuccess
                                                                   : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call_gpu([&](World& world) {
    const auto queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    return put_copy(world, queue, to, from, bytes, kind);
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return call_gpu([&](World& world) {
    if (const cudaError_t status = refuse_while_capturing(world); status != cudaSuccess) {
      return status;
    }
    const auto queue = world.queue_of(nullptr);
    const cudaError_t status = put_copy(world, queue, to, from, bytes, kind);
    return status != cudaSuccess ? status : run_until(world, record(world, queue));
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_gpu, const void* from, int from_gpu, size_t bytes,
                                cudaStream_t stream) {
  return call_gpu([&](World& world) {
    const auto queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    if (bytes > 0 &&
        (world.arena.gpu_of(to, bytes) != to_gpu || world.arena.gpu_of(from, bytes) != from_gpu)) {
      return cudaErrorInvalidValue;
    }
    return put_copy(world, queue, to, from, bytes, cudaMemcpyDeviceToDevice);
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return call_gpu([&](World& world) {
    const auto queue = world.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    return put_fill(world, queue, data, value, bytes);
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call_gpu([&](World& world) {
    *total = world.arena.total();
    *free = *total - world.arena.used(this_thread().gpu);
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return call_gpu([&](World& world) {
    *attributes = {};
    attributes->device = -2;
    const int gpu = world.arena.gpu_of(data);
    if (gpu >= 0) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = gpu;
      attributes->devicePointer = const_cast<void*>(data);
    } else if (world.is_pinned(data)) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = this_thread().gpu;
      attributes->devicePointer = attributes->hostPointer = const_cast<void*>(data);
    } else {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->hostPointer = const_cast<void*>(data);
    }
    return cudaSuccess;
  });
}

}  // extern "C"
