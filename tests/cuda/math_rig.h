// Runs single kernels of the CUDA backend on a (simulated) GPU and compares them with the CPU's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/math_libraries.h"
#include "tensor/kernel_table.h"
#include "tests/cuda_simulation/math_simulation.h"
#include "tests/tensor/random_values.h"

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

/// A stream, the libraries and the kernels of one device.
class MathRig {
 public:
  MathRig() {
    cuda_simulation::set_math_behavior({});
    cuda_simulation::reset_math_counts();
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    cuda::register_matmul_kernels(table);
    cuda::register_convolution_kernels(table);
    cuda::register_pooling_kernels(table);
    cuda::register_batch_normalization_kernels(table);
    cuda::register_softmax_kernels(table);
  }
  ~MathRig() {
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    cuda_simulation::set_math_behavior({});
  }
  MathRig(const MathRig&) = delete;
  MathRig& operator=(const MathRig&) = delete;

  /// Inputs to the device, the kernel, outputs back. Everything lies `offset` elements off the
  /// alignment that memory has.
  std::vector<Tensor> run(const OpCall& call) {
    std::vector<std::unique_ptr<DeviceBytes>> memory;
    std::vector<DeviceTensor> inputs, outputs;
    const auto place = [&](const Shape& shape, DType dtype) {
      const std::size_t bytes = static_cast<std::size_t>(shape.num_elements()) * size_of(dtype);
      const std::size_t skip = static_cast<std::size_t>(offset) * size_of(dtype);
      memory.push_back(std::make_unique<DeviceBytes>(bytes + skip));
      return DeviceTensor{memory.back()->get() + skip, shape, dtype};
    };
    for (const Tensor& input : call.inputs) {
      inputs.push_back(place(input.shape(), input.dtype()));
      cuda::check(cudaMemcpyAsync(inputs.back().data, input.bytes().data(), input.num_bytes(),
                                  cudaMemcpyHostToDevice, stream),
                  "cudaMemcpyAsync");
    }
    for (const TensorSpec& spec : call.outputs) outputs.push_back(place(spec.shape, spec.dtype));
    const cuda::Kernel kernel = table.find(call.op, call.inputs[0].dtype());
    if (kernel == nullptr) fail(ErrorCode::kUnimplemented, "no kernel");
    kernel({inputs, outputs, call.attributes, nullptr, stream, libraries, workspace});
    return download(outputs);
  }

  cuda::KernelTable table;
  cuda::MathLibraries libraries{cuda::MathOptions{}};
  TestWorkspace workspace;
  cudaStream_t stream = nullptr;
  int offset = 0;

 private:
  std::vector<Tensor> download(const std::vector<DeviceTensor>& outputs) {
    std::vector<Tensor> results;
    for (const DeviceTensor& output : outputs) {
      MutableTensor host(output.shape, output.dtype, {});
      cuda::check(cudaMemcpyAsync(host.data(), output.data, host.num_bytes(),
                                  cudaMemcpyDeviceToHost, stream),
                  "cudaMemcpyAsync");
      cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      results.push_back(host.freeze());
    }
    cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    workspace.clear();
    return results;
  }
};

/// Relative to the largest element: some roundings of the type.
inline double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1e-12;
    case DType::kBFloat16:
      return 0x1p-7;
    case DType::kFloat16:
      return 0x1p-10;
    default:
      return 2e-6;
  }
}

inline void expect_close(const Tensor& actual, const Tensor& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  ASSERT_EQ(actual.dtype(), expected.dtype()) << what;
  const std::vector<double> a = actual.to_doubles(), e = expected.to_doubles();
  double largest = 0.0;
  for (const double value : e) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < e.size(); ++i) {
    if (std::isnan(e[i])) {
      ASSERT_TRUE(std::isnan(a[i])) << what << ", element " << i << ": " << a[i];
    } else {
      ASSERT_NEAR(a[i], e[i], tolerance * largest) << what << ", element " << i;
    }
  }
}

/// Runs `call` on the rig and on the CPU's reference kernels and compares all results.
inline std::vector<Tensor> expect_like_cpu(MathRig& rig, const OpCall& call,
                                           const std::string& what, double factor = 1.0) {
  const std::vector<Tensor> actual = rig.run(call);
  const std::vector<Tensor> expected = run_kernel(reference_kernels(), call);
  EXPECT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect_close(
        actual[i], expected[i], factor * tolerance_of(expected[i].dtype()),
        concat(to_string(call.op), " ", call.inputs[0].dtype(), " ", what, ", output ", i));
  }
  return actual;
}

inline constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                                   DType::kFloat16};

}  // namespace tutti::math_rig
