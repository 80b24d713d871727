// Devices, errors, memory and copies in the simulated CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/cuda_simulation/state.h"

using namespace tutti::cuda_simulation;  // NOLINT: definitions of another library's symbols

namespace {

constexpr int kMultiprocessors = 4, kMajor = 9, kMinor = 0;

/// Returns the driver's version from TUTTI_SIMULATED_CUDA_DRIVER ("11080" is CUDA 11.8). The
/// default is the version of the runtime.
int driver_version() {
  const char* const version = std::getenv("TUTTI_SIMULATED_CUDA_DRIVER");
  return version ? std::atoi(version) : CUDART_VERSION;
}

bool exists(const World& world, int gpu) {
  return gpu >= 0 && static_cast<std::size_t>(gpu) < world.gpus.size();
}

/// Returns a clock rate that is different for each GPU, so that tests can distinguish the GPUs.
int memory_clock_khz(int physical) { return 1'000'000 + 100'000 * physical; }

void write_bus_id(char* text, int length, int physical) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", 2 + physical);
}

const char* describe(cudaError_t error, bool name) {
  switch (error) {
#define TUTTI_SIMULATED_ERROR(code, text) \
  case code:                              \
    return name ? #code : text;
    TUTTI_SIMULATED_ERROR(cudaSuccess, "no error")
    TUTTI_SIMULATED_ERROR(cudaErrorInvalidValue, "invalid argument")
    TUTTI_SIMULATED_ERROR(cudaErrorMemoryAllocation, "out of memory")
    TUTTI_SIMULATED_ERROR(cudaErrorInsufficientDriver,
                          "CUDA driver version is insufficient for CUDA runtime version")
    TUTTI_SIMULATED_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected")
    TUTTI_SIMULATED_ERROR(cudaErrorInvalidDevice, "invalid device ordinal")
    TUTTI_SIMULATED_ERROR(cudaErrorPeerAccessUnsupported,
                          "peer access is not supported between these two devices")
    TUTTI_SIMULATED_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle")
    TUTTI_SIMULATED_ERROR(cudaErrorIllegalState,
                          "the operation cannot be performed in the present state")
    TUTTI_SIMULATED_ERROR(cudaErrorNotReady, "device not ready")
    TUTTI_SIMULATED_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered")
    TUTTI_SIMULATED_ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated")
    TUTTI_SIMULATED_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")
    TUTTI_SIMULATED_ERROR(cudaErrorLaunchFailure, "unspecified launch failure")
    TUTTI_SIMULATED_ERROR(cudaErrorNotSupported, "operation not supported")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureUnsupported,
                          "operation not permitted when stream is capturing")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureInvalidated,
                          "operation failed due to a previous error during capture")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureMerge,
                          "operation would result in a merge of separate capture sequences")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureUnmatched,
                          "capture was not ended in the same stream as it began")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureIsolation,
                          "dependency created on uncaptured work in another stream")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureImplicit,
                          "operation would make the legacy stream depend on a capturing stream")
    TUTTI_SIMULATED_ERROR(cudaErrorCapturedEvent,
                          "operation not permitted on an event last recorded in a capture")
    TUTTI_SIMULATED_ERROR(cudaErrorStreamCaptureWrongThread,
                          "attempt to terminate a thread-local capture from another thread")
#undef TUTTI_SIMULATED_ERROR
    default:
      return name ? "cudaErrorUnknown" : "unknown error";
  }
}

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
  if (source == Place::kPageable) {  // read now, because the caller may change it later
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

cudaError_t cudaGetDeviceCount(int* count) {
  return call([&](World& world) {
    *count = static_cast<int>(world.gpus.size());
    if (driver_version() < CUDART_VERSION) return cudaErrorInsufficientDriver;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int gpu) {
  return call([&](World& world) {
    if (!exists(world, gpu)) return cudaErrorInvalidDevice;
    this_thread().gpu = gpu;
    return world.gpus[static_cast<std::size_t>(gpu)].failure;
  });
}

cudaError_t cudaGetDevice(int* gpu) {
  *gpu = this_thread().gpu;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int gpu) {
  return call([&](World& world) {
    if (!exists(world, gpu)) return cudaErrorInvalidDevice;
    const int physical = world.visible[static_cast<std::size_t>(gpu)];
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "Simulated GPU");
    properties->totalGlobalMem = world.arena.total();
    properties->major = kMajor;
    properties->minor = kMinor;
    properties->multiProcessorCount = kMultiprocessors;
    properties->pciBusID = 2 + physical;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int gpu) {
  return call([&](World& world) {
    if (!exists(world, gpu)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMemoryClockRate:
        *value = memory_clock_khz(world.visible[static_cast<std::size_t>(gpu)]);
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = kMultiprocessors;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = kMajor;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = kMinor;
        return cudaSuccess;
      default:
        return cudaErrorNotSupported;  // add attributes above when a kernel needs them
    }
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int gpu) {
  return call([&](World& world) {
    if (!exists(world, gpu)) return cudaErrorInvalidDevice;
    write_bus_id(text, length, world.visible[static_cast<std::size_t>(gpu)]);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int peer) {
  return call([&](World& world) {
    if (!exists(world, gpu) || !exists(world, peer)) return cudaErrorInvalidDevice;
    *can = gpu != peer && world.machine.faults.peers ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int) {
  return call_gpu([&](World& world) {
    if (!exists(world, peer) || peer == this_thread().gpu) return cudaErrorInvalidDevice;
    return world.machine.faults.peers ? cudaSuccess : cudaErrorPeerAccessUnsupported;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t last = this_thread().last_error;
  this_thread().last_error = cudaSuccess;
  return last;
}

const char* cudaGetErrorName(cudaError_t error) { return describe(error, true); }
const char* cudaGetErrorString(cudaError_t error) { return describe(error, false); }

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = nullptr;
  return call_uncaptured([&](World& world) {
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
    run_all(world, gpu);  // cudaFree() synchronizes, as in CUDA
    switch (world.arena.release(data)) {
      case Arena::Freed::kYes:
        return cudaSuccess;
      case Arena::Freed::kNoBlock:
        return cudaErrorInvalidValue;
      case Arena::Freed::kOverrun:
        std::fprintf(stderr, "simulated GPU %d: memory after a block was overwritten\n", gpu);
        return world.gpus[static_cast<std::size_t>(gpu)].failure = cudaErrorIllegalAddress;
    }
    return cudaErrorUnknown;
  });
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return call_uncaptured([&](World& world) {
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
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    return put_copy(world, queue, to, from, bytes, kind);
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return call_uncaptured([&](World& world) {
    const auto queue = world.queue_of(nullptr);
    const cudaError_t status = put_copy(world, queue, to, from, bytes, kind);
    return status != cudaSuccess ? status : run_until(world, record(world, queue));
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_gpu, const void* from, int from_gpu, size_t bytes,
                                cudaStream_t stream) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
    if (bytes > 0 &&
        (world.arena.gpu_of(to, bytes) != to_gpu || world.arena.gpu_of(from, bytes) != from_gpu)) {
      return cudaErrorInvalidValue;
    }
    return put_copy(world, queue, to, from, bytes, cudaMemcpyDeviceToDevice);
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  return call_stream(stream, [&](World& world, const std::shared_ptr<Queue>& queue) {
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
