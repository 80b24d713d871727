// Finds the GPUs of this process: opens the module, splits its GPUs, describes them for the log.
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

// What CUDA_VISIBLE_DEVICES makes of the GPUs of a machine.

/// Indices of the GPUs that CUDA shows for this value of CUDA_VISIBLE_DEVICES, in CUDA's order:
/// "1,0" renumbers, "" and "-1" hide all, an invalid index cuts the list there, an index that
/// stands twice hides all. Without a value: all of `num_devices`. Empty optional when GPUs are
/// named by UUID ("GPU-...", "MIG-..."), which says nothing about indices.
std::optional<std::vector<int>> visible_devices(const std::optional<std::string>& mask,
                                                int num_devices);

/// Throws kInvalidArgument naming `who` for numbers below 1.
void check_virtual_gpus(std::string_view who, const VirtualGpus& virtual_gpus);

/// The parts of all GPUs: those of GPU 0 first. `mask` is CUDA_VISIBLE_DEVICES, which the backend
/// has obeyed. Throws kInvalidArgument when a GPU has less memory than its parts may take.
std::vector<LogicalGpu> split_gpus(const DeviceBackend& backend,
                                   const std::optional<std::string>& mask,
                                   const VirtualGpus& virtual_gpus);

/// "Found device 0 with properties: ...": one line.
std::string describe(const PhysicalDevice& device, int ordinal);
/// "Created gpu:0 -> (device: 0, ...)": one line.
std::string describe(const LogicalGpu& gpu);
/// Which GPU reaches which one's memory: a line of columns, then a line each.
std::vector<std::string> describe_peers(const DeviceBackend& backend);
/// All of these, as the log has them.
std::vector<std::string> describe(const DeviceBackend& backend, std::span<const LogicalGpu> gpus);

// Opens the module that knows GPUs, or says what is missing.

/// TUTTI_CUDA=off|auto|require.
enum class CudaMode { kOff, kAuto, kRequire };

struct BackendRequest {
  CudaMode mode = CudaMode::kAuto;
  std::string module;  // TUTTI_CUDA_MODULE; empty: the one of this build
  /// Throws kInvalidArgument for another TUTTI_CUDA.
  static BackendRequest from_environment();
};

struct LoadedBackend {
  DeviceBackend* backend = nullptr;  // lives as long as the process
  std::string module;                // its file
  bool is_simulated = false;
  std::string reason;                // why there is no backend, and what to do; one line
  std::vector<std::string> missing;  // CUDA libraries that were not found
};

/// Opens the driver first, and the module only where there is one (a module of simulated GPUs needs
/// none). Throws nothing for what is missing.
LoadedBackend load_backend(const BackendRequest& request);

/// A shared library, and the file where it was found; empty: nowhere.
struct FoundLibrary {
  std::string name, path;
};
/// The result for a module that the system did not open because of `why`: names the libraries that
/// are missing, if any.
LoadedBackend explain_failure(const std::string& module, const std::string& why,
                              std::span<const FoundLibrary> libraries);
/// Looks where the module would find them: as the system does, then in the folders of
/// this build's CUDA.
std::vector<FoundLibrary> find_libraries(std::span<const std::string> names);
/// What the module of this build needs: "libcudart.so.13", ... Empty in a build without CUDA.
std::vector<std::string> needed_libraries();
/// Where the module of this build is looked for, in this order.
std::vector<std::string> module_candidates();

namespace internal {
struct GpusForTest {
  std::vector<LogicalGpu> gpus;
  DeviceBackend* backend = nullptr;
};
/// While `gpus` is not nullptr, logical_gpus() and gpu_backend() answer from it. Only for tests, in
/// one thread; call close_gpus_for_test() before and after.
void set_gpus_for_test(const GpusForTest* gpus);
/// Closes the opened devices, so that the next use opens them anew. Only where no tensor lives on
/// one: for tests that replace the backend.
void close_gpus_for_test();
}  // namespace internal

}  // namespace tutti
