// Devices, their properties and errors in the simulated CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include "tests/cuda_simulation/state.h"

using tutti::cuda_simulation::call;
using tutti::cuda_simulation::call_gpu;
using tutti::cuda_simulation::this_thread;
using tutti::cuda_simulation::World;

namespace {

constexpr int kMultiprocessors = 4, kMajor = 9, kMinor = 0;

/// Returns the version in TUTTI_SIMULATED_CUDA_DRIVER ("11080" is CUDA 11.8), by default the
/// runtime's.
int driver_version() {
  const char* const version = std::getenv("TUTTI_SIMULATED_CUDA_DRIVER");
  return version ? std::atoi(version) : CUDART_VERSION;
}

bool exists(const World& world, int gpu) {
  return gpu >= 0 && static_cast<std::size_t>(gpu) < world.gpus.size();
}

/// Differs for each GPU of the machine, so that tests can distinguish them.
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
        return cudaErrorNotSupported;  // add it here when a kernel needs it
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

}  // extern "C"
