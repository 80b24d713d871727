// The math libraries of a simulated GPU, with a workspace that is limited and counted.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "tests/cuda/device_call.h"
#include "tests/cuda_simulation/math_simulation.h"

namespace tutti::math_rig {

/// Memory of the device that is freed at the end.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes) {
    cuda::check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

/// Gives up to `limit` bytes a piece.
class TestWorkspace : public Workspace {
 public:
  void* allocate(std::size_t bytes) override {
    if (bytes > limit) {
      fail(ErrorCode::kResourceExhausted, "gpu:0: no memory for a workspace of ", bytes, " bytes");
    }
    largest = std::max(largest, bytes);
    return pieces_.emplace_back(std::make_unique<DeviceBytes>(bytes))->get();
  }
  void clear() { pieces_.clear(); }
  std::size_t limit = std::size_t{64} << 20;
  std::size_t largest = 0;

 private:
  std::vector<std::unique_ptr<DeviceBytes>> pieces_;
};

/// The libraries and the workspace of one device, whose calls are counted.
class MathRig {
 public:
  MathRig() {
    cuda_simulation::set_math_behavior({});
    cuda_simulation::reset_math_counts();
  }
  ~MathRig() { cuda_simulation::set_math_behavior({}); }
  MathRig(const MathRig&) = delete;
  MathRig& operator=(const MathRig&) = delete;

  std::vector<Tensor> run(const OpCall& call) {
    std::vector<Tensor> results =
        testing::run_on_device(call, {0, nullptr, &libraries, &workspace});
    workspace.clear();
    return results;
  }
  /// Runs `call` and compares the results with those of the reference kernels.
  void expect_like_reference(const OpCall& call, double ulps = 100.0) {
    SCOPED_TRACE(testing::OpCase{call}.name());
    const std::vector<Tensor> actual = run(call);
    const std::vector<Tensor> expected = run_kernel(reference_kernels(), call);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      testing::expect_close(actual[i], expected[i], ulps);
    }
  }

  cuda::MathLibraries libraries{cuda::MathOptions{}};
  TestWorkspace workspace;
};

inline constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                                   DType::kFloat16};

}  // namespace tutti::math_rig
