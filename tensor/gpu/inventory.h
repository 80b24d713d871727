// Discovery of this process's GPUs: the module, logical devices, and descriptions for the log.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/device_backend.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {

// Effect of CUDA_VISIBLE_DEVICES on the GPUs of a machine.

/// Returns the indices of the GPUs that CUDA shows if CUDA_VISIBLE_DEVICES is `mask`, in CUDA's
/// order. "1,0" reorders the GPUs, "" and "-1" hide all, an invalid index ends the list, and a
/// repeated index hides all. If the variable is not set, returns all `num_devices` indices. Returns
/// nullopt if `mask` names GPUs by UUID ("GPU-...", "MIG-..."), because their indices are unknown.
std::optional<std::vector<int>> visible_devices(const std::optional<std::string>& mask,
                                                int num_devices);

/// Throws kInvalidArgument, naming `who`, unless each GPU has 1 to 64 parts and the limit is >= 0.
void check_virtual_gpus(std::string_view who, const VirtualGpus& virtual_gpus);

/// Returns the logical GPUs of all physical GPUs, those of GPU 0 first. `mask` is
/// CUDA_VISIBLE_DEVICES, which the backend has applied. Throws kInvalidArgument if a GPU has less
/// memory than its logical GPUs may use.
std::vector<LogicalGpu> split_gpus(const DeviceBackend& backend,
                                   const std::optional<std::string>& mask,
                                   const VirtualGpus& virtual_gpus);

/// Returns one line: "Found device 0 with properties: ...".
std::string describe(const PhysicalDevice& device, int ordinal);
/// Returns one line: "Created gpu:0 -> (device: 0, ...)".
std::string describe(const LogicalGpu& gpu);
/// Returns a table that shows which GPU can access the memory of which other GPU: a header line,
/// then a line per GPU.
std::vector<std::string> describe_peers(const DeviceBackend& backend);
/// Returns the lines of the three functions above, in the order in which they are logged.
std::vector<std::string> describe(const DeviceBackend& backend, std::span<const LogicalGpu> gpus);

// Opening the module that provides the GPUs.

/// Values of TUTTI_CUDA: off, auto and require.
enum class CudaMode { kOff, kAuto, kRequire };

struct BackendRequest {
  CudaMode mode = CudaMode::kAuto;
  std::string module;  // TUTTI_CUDA_MODULE; empty: this build's module
  /// Reads TUTTI_CUDA and TUTTI_CUDA_MODULE. Throws kInvalidArgument if TUTTI_CUDA is not the name
  /// of a CudaMode.
  static BackendRequest from_environment();
};

struct LoadedBackend {
  DeviceBackend* backend = nullptr;  // lives as long as the process
  std::string module;                // path of the backend's module
  bool is_simulated = false;
  std::string reason;                // why there is no backend and what to do, in one line
  std::vector<std::string> missing;  // CUDA libraries not found
};

/// Opens the driver and the module; a module for simulated GPUs needs no driver. If something is
/// missing, returns a reason instead of throwing.
LoadedBackend load_backend(const BackendRequest& request);

/// Name of a shared library and the path where it was found; the path is empty if it was not found.
struct FoundLibrary {
  std::string name, path;
};
/// Returns the result for a module that could not be opened, for the reason `why`; names the
/// missing libraries, if any.
LoadedBackend explain_failure(const std::string& module, const std::string& why,
                              std::span<const FoundLibrary> libraries);
/// Searches for the libraries as the module does: first on the system's library path, then in the
/// folders of this build's CUDA.
std::vector<FoundLibrary> find_libraries(std::span<const std::string> names);
/// Returns the libraries that this build's module needs: "libcudart.so.13", ...; empty if the build
/// has no CUDA.
std::vector<std::string> needed_libraries();
/// Returns the paths at which this build's module may be found, in search order.
std::vector<std::string> module_candidates();

namespace internal {
struct GpusForTest {
  std::vector<LogicalGpu> gpus;
  DeviceBackend* backend = nullptr;
};
/// Makes logical_gpus() and gpu_backend() return `gpus` until the next call with nullptr. For tests
/// only, on one thread; call close_gpus_for_test() before and after.
void set_gpus_for_test(const GpusForTest* gpus);
/// Closes the opened devices, so that tests can replace the backend; the next use opens them again.
/// Requires: no tensor is stored on a device.
void close_gpus_for_test();
}  // namespace internal

}  // namespace tutti
