// The GPUs that the CUDA runtime shows, and what opens them.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/backend.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "tensor/cuda/context.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/math_libraries.h"

namespace tutti::cuda {
namespace {

std::string version_text(int version) {  // 13000: 13.0
  return concat(version / 1000, ".", version % 1000 / 10);
}

/// Gives the calling thread the GPU back that it had selected.
class SelectionScope {
 public:
  SelectionScope() { (void)cudaGetDevice(&ordinal_); }
  ~SelectionScope() { (void)cudaSetDevice(ordinal_); }
  SelectionScope(const SelectionScope&) = delete;
  SelectionScope& operator=(const SelectionScope&) = delete;

 private:
  int ordinal_ = 0;
};

/// 0 where the driver does not tell.
double memory_clock_ghz(int ordinal) {
  int kilohertz = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, ordinal) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0.0;
  }
  return kilohertz / 1e6;
}

}  // namespace

std::string Backend::description() const {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return concat("CUDA ", version_text(runtime), ", driver ", version_text(driver), ", ",
                math_libraries_description());
}

PhysicalDevice Backend::inspect(int ordinal) const {
  const SelectionScope selection;
  const Gpu gpu(ordinal);
  return gpu.use([&] {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    PhysicalDevice device;
    device.name = properties.name;
    device.major = properties.major;
    device.minor = properties.minor;
    device.num_multiprocessors = properties.multiProcessorCount;
    device.memory_clock_ghz = memory_clock_ghz(ordinal);
    std::array<char, 32> bus_id{};
    check(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), ordinal),
          "cudaDeviceGetPCIBusId");
    device.pci_bus_id = bus_id.data();
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    device.free_bytes = static_cast<std::int64_t>(free);
    device.total_bytes = static_cast<std::int64_t>(total);
    return device;
  });
}

bool Backend::can_access_peer(int from, int to) const {
  if (from == to) return true;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
  return can != 0;
}

int Backend::gpu_of(const void* data) const {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  const bool is_device =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  return is_device ? attributes.device : -1;
}

std::shared_ptr<void> Backend::keep_selection() const { return std::make_shared<SelectionScope>(); }

std::unique_ptr<DeviceContext> Backend::open(int ordinal) {
  return std::make_unique<Context>(ordinal);
}

void* Backend::allocate_pinned(std::size_t bytes) {
  const NotCaptured not_captured;
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "allocate_pinned");
  return data;
}

void Backend::release_pinned(void* data) noexcept {
  const NotCaptured not_captured;
  (void)cudaFreeHost(data);
  (void)cudaGetLastError();
}

// The one symbol that the module exports: the backend, or why there is none.

namespace {

/// Why the runtime shows no GPU.
std::string reason_without_gpu(cudaError_t status) {
  const char* const mask = std::getenv("CUDA_VISIBLE_DEVICES");
  if (status == cudaErrorNoDevice && mask != nullptr) {
    return concat("CUDA_VISIBLE_DEVICES='", mask, "' shows no GPU; try without it");
  }
  if (status == cudaErrorNoDevice) return "CUDA finds no GPU in this machine; see nvidia-smi";
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    return concat("the NVIDIA driver is too old: it knows CUDA ", driver / 1000, ".",
                  driver % 1000 / 10, ", expected ", CUDART_VERSION / 1000, ".",
                  CUDART_VERSION % 1000 / 10, " or later; install a newer driver");
  }
  return concat("CUDA cannot start: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status),
                "; see nvidia-smi");
}

/// Lives as long as the process. Throws what is in the way.
DeviceBackend* open_backend(const char* build_id) {
  if (std::string_view(build_id) != backend_build_id()) {
    fail(ErrorCode::kFailedPrecondition, "the CUDA module is of another build: expected ", build_id,
         ", got ", backend_build_id(), "; build and install both together");
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    fail(ErrorCode::kUnavailable,
         reason_without_gpu(count == 0 && status == cudaSuccess ? cudaErrorNoDevice : status));
  }
  static Backend& backend = *std::make_unique<Backend>(count).release();
  return &backend;
}

}  // namespace
}  // namespace tutti::cuda

extern "C" __attribute__((visibility("default"))) tutti::DeviceBackend* tutti_open_backend(
    const char* build_id, char* reason, std::size_t size) {
  try {
    return tutti::cuda::open_backend(build_id);
  } catch (const std::exception& error) {
    std::snprintf(reason, size, "%s", error.what());
  } catch (...) {
    std::snprintf(reason, size, "the CUDA module failed for an unknown reason");
  }
  return nullptr;
}
