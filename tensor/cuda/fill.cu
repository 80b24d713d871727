// Sets all elements of a tensor to one value.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>

#include "tutti/tensor/cuda/copies.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

template <class T>
__global__ void fill_elements(T* data, std::int64_t count, T value) {
  for (std::int64_t i = thread_number(); i < count; i += num_threads()) data[i] = value;
}

}  // namespace

void fill(const DeviceTensor& tensor, double value, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(tensor.shape.num_elements());
  if (count == 0) return;
  const std::size_t size = size_of(tensor.dtype);
  std::array<std::byte, sizeof(Bytes16)> pattern;  // the value, as often as it fits
  visit_dtype(tensor.dtype, [&]<class T>() {
    const T element = static_cast<T>(value);
    for (std::size_t i = 0; i < pattern.size(); i += size) {
      std::memcpy(pattern.data() + i, &element, size);
    }
  });
  const std::size_t unit = copy_unit(size, count * size, tensor.data, tensor.data);
  visit_bytes(unit, [&]<class T>() {
    T units;
    std::memcpy(&units, pattern.data(), sizeof(T));
    const std::size_t num_units = count * size / unit;
    launch(fill_elements<T>, blocks_for(num_units), kThreads, stream, static_cast<T*>(tensor.data),
           static_cast<std::int64_t>(num_units), units);
  });
}

}  // namespace tutti::cuda
