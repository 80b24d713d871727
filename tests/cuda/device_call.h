// Runs one operation on a simulated GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/math_libraries.h"
#include "tensor/kernel_table.h"
#include "tests/support/op_table.h"
#include "tests/support/tensor_matchers.h"

namespace tutti::testing {

/// Memory of the simulated GPU, freed by the destructor. Also serves as the workspace of kernels.
class DeviceArena final : public Workspace {
 public:
  DeviceArena() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "test"); }
  ~DeviceArena() override {
    (void)cudaStreamSynchronize(stream_);
    for (void* block : blocks_) (void)cudaFree(block);
    (void)cudaStreamDestroy(stream_);
  }
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  /// Returns memory that is filled with a non-zero pattern, which kernels must overwrite.
  void* allocate(std::size_t bytes) override {
    void* block = nullptr;
    cuda::check(cudaMalloc(&block, bytes + 64), "test");
    blocks_.push_back(block);
    cuda::check(cudaMemsetAsync(block, 0x5a, bytes + 64, stream_), "test");
    return block;
  }
  /// Returns a tensor whose data begin `misalignment` elements after an aligned address.
  DeviceTensor allocate(const Shape& shape, DType dtype, std::size_t misalignment = 0) {
    const auto count = static_cast<std::size_t>(shape.num_elements());
    auto* const data = static_cast<std::byte*>(allocate((count + misalignment) * size_of(dtype)));
    return {data + misalignment * size_of(dtype), shape, dtype};
  }
  DeviceTensor upload(const Tensor& tensor, std::size_t misalignment = 0) {
    const DeviceTensor result = allocate(tensor.shape(), tensor.dtype(), misalignment);
    write(result.data, tensor.bytes().data(), tensor.num_bytes());
    return result;
  }
  void write(void* to, const void* from, std::size_t bytes) {
    cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "test");
    cuda::check(cudaStreamSynchronize(stream_), "test");
  }
  void read(void* to, const void* from, std::size_t bytes) {
    cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "test");
    cuda::check(cudaStreamSynchronize(stream_), "test");
  }
  Tensor download(const DeviceTensor& tensor) {
    MutableTensor result(tensor.shape, tensor.dtype, {});
    read(result.data(), tensor.data,
         static_cast<std::size_t>(tensor.shape.num_elements()) * size_of(tensor.dtype));
    return result.freeze();
  }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<void*> blocks_;
};

inline const cuda::KernelTable& device_kernels() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable filled;
    cuda::register_kernels(filled);
    return filled;
  }();
  return table;
}

struct DeviceRunOptions {
  std::size_t misalignment = 0;              // misalignment of all tensors, in elements
  cuda::MathLibraries* libraries = nullptr;  // null: creates new libraries
  Workspace* workspace = nullptr;            // null: uses the arena
};

/// Runs `call` on the simulated GPU and returns the results.
inline std::vector<Tensor> run_on_device(const OpCall& call, DeviceRunOptions options = {}) {
  DeviceArena arena;
  cuda::MathLibraries own_libraries;
  std::vector<DeviceTensor> inputs, outputs;
  for (const Tensor& input : call.inputs) {
    inputs.push_back(arena.upload(input, options.misalignment));
  }
  for (const TensorSpec& spec : call.outputs) {
    outputs.push_back(arena.allocate(spec.shape, spec.dtype, options.misalignment));
  }
  const cuda::Kernel kernel = device_kernels().find(call.op, call.inputs[0].dtype());
  if (kernel == nullptr) {
    fail(ErrorCode::kUnimplemented, to_string(call.op), ": no CUDA kernel for ",
         call.inputs[0].dtype());
  }
  kernel({inputs, outputs, call.attributes, nullptr, arena.stream(),
          options.libraries != nullptr ? *options.libraries : own_libraries,
          options.workspace != nullptr ? *options.workspace : arena});
  std::vector<Tensor> results;
  for (const DeviceTensor& output : outputs) results.push_back(arena.download(output));
  return results;
}

inline OpCall device_test_call(OpId op, std::vector<Tensor> inputs, std::vector<TensorSpec> outputs,
                               Attributes attributes = {}) {
  OpCall call;
  call.op = op;
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  call.attributes = std::move(attributes);
  return call;
}

}  // namespace tutti::testing
