// Opens the module that knows GPUs, or says what is missing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tensor/device_backend.h"

namespace tutti {

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

}  // namespace tutti
