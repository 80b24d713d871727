// Sets all elements of a tensor to one value.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

template <class T>
__global__ void fill_elements(T* data, std::size_t count, T value) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    data[i] = value;
  }
}

}  // namespace

void fill(const DeviceTensor& tensor, double value, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(tensor.shape.num_elements());
  if (count == 0) return;
  visit_dtype(tensor.dtype, [&]<class T>() {
    launch(fill_elements<T>, blocks_for(count), kThreads, stream, static_cast<T*>(tensor.data),
           count, static_cast<T>(value));
  });
}

}  // namespace tutti::cuda
