// Helpers for tests of reductions on GPUs. These tests need four simulated GPUs and the simulated
// NCCL.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/scopes.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/warnings.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing {

using Environment = test_scopes::EnvironmentScope;

inline Device gpu(int index) { return {DeviceType::kGpu, index}; }

inline std::vector<Device> gpus(int count) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(gpu(i));
  return devices;
}

inline std::unique_ptr<CrossDeviceOps> make_on(const std::string& name,
                                               const std::vector<Device>& devices,
                                               const CommunicationOptions& options = {}) {
  return build_cross_device_ops(make_cross_device_ops(name, options),
                                Group{static_cast<int>(devices.size()), 0, devices});
}

/// Returns [r + 1, 10 (r + 1), 100 (r + 1)] for each replica r, on that replica's device.
inline PerReplica<Tensor> powers_of_ten(const std::vector<Device>& devices) {
  std::vector<Tensor> values;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const float one = static_cast<float>(r) + 1.0f;
    values.push_back(Tensor::from<float>({3}, {one, 10 * one, 100 * one}, devices[r]));
  }
  return PerReplica<Tensor>(std::move(values));
}

/// Returns the calls made to the simulated NCCL since this function was last called, one per line.
inline std::string take_nccl_notes() {
  static void* const library = ::dlopen(std::getenv("TUTTI_NCCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  using Notes = const char* (*)();
  return reinterpret_cast<Notes>(::dlsym(library, "tutti_simulated_nccl_notes"))();
}

}  // namespace tutti::testing
