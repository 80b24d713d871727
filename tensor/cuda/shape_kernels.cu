// Operations that move elements without computing, and operations that fill tensors with one value.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <numeric>

#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/strided_axes.h"

namespace tutti::cuda {

// Operations that move elements.

namespace {

std::size_t element_size(const KernelCall& call) { return size_of(call.inputs[0].dtype); }

StridedElements whole(const DeviceTensor& tensor) {
  return {tensor.data, dense_strides(tensor.shape)};
}

/// Returns the offset of the element at `begin`.
std::int64_t offset_of(const std::array<std::int64_t, Shape::kMaxRank>& begin,
                       const Strides& strides) {
  return std::inner_product(begin.begin(), begin.end(), strides.begin(), std::int64_t{0});
}

void copy(const KernelCall& call) {
  const auto count = static_cast<std::size_t>(call.inputs[0].shape.num_elements());
  check(cudaMemcpyAsync(call.outputs[0].data, call.inputs[0].data, count * element_size(call),
                        cudaMemcpyDeviceToDevice, call.stream),
        "copy of a tensor");
}

void transpose(const KernelCall& call) {
  const auto& permutation = call.attributes_as<TransposeAttributes>().permutation;
  const Shape& shape = call.outputs[0].shape;
  const Strides dense = dense_strides(call.inputs[0].shape);
  Strides strides{};
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(shape.rank()); ++axis) {
    strides[axis] = dense[static_cast<std::size_t>(permutation[axis])];
  }
  copy_strided(shape, element_size(call), {call.inputs[0].data, strides}, whole(call.outputs[0]),
               call.stream);
}

void slice(const KernelCall& call) {
  const Strides strides = dense_strides(call.inputs[0].shape);
  const std::int64_t start = offset_of(call.attributes_as<SliceAttributes>().begin, strides);
  copy_strided(call.outputs[0].shape, element_size(call),
               {moved(call.inputs[0].data, start, element_size(call)), strides},
               whole(call.outputs[0]), call.stream);
}

// Fills the output before copying, so the inner part is written twice. This rarely matters, because
// convolutions pad images themselves.
void pad(const KernelCall& call) {
  const auto& attributes = call.attributes_as<PadAttributes>();
  fill(call.outputs[0], attributes.value, call.stream);
  const Strides strides = dense_strides(call.outputs[0].shape);
  const std::int64_t start = offset_of(attributes.before, strides);
  copy_strided(call.inputs[0].shape, element_size(call), whole(call.inputs[0]),
               {moved(call.outputs[0].data, start, element_size(call)), strides}, call.stream);
}

void concat(const KernelCall& call) {
  const int axis = call.attributes_as<AxisAttributes>().axis;
  const Strides strides = dense_strides(call.outputs[0].shape);
  std::int64_t start = 0;
  for (const DeviceTensor& input : call.inputs) {
    copy_strided(input.shape, element_size(call), whole(input),
                 {moved(call.outputs[0].data, start, element_size(call)), strides}, call.stream);
    start += input.shape.dim(axis) * strides[static_cast<std::size_t>(axis)];
  }
}

void broadcast_to(const KernelCall& call) {
  const Shape& shape = call.outputs[0].shape;
  copy_strided(shape, element_size(call),
               {call.inputs[0].data, broadcast_strides(call.inputs[0].shape, shape)},
               whole(call.outputs[0]), call.stream);
}

void reverse(const KernelCall& call) {
  const std::uint32_t axes = call.attributes_as<AxesAttributes>().axes;
  const Shape& shape = call.inputs[0].shape;
  const Strides dense = dense_strides(shape);
  Strides backwards = dense;
  std::int64_t start = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if ((axes >> axis & 1u) == 0) continue;
    const auto at = static_cast<std::size_t>(axis);
    start += dense[at] * (shape.dim(axis) - 1);
    backwards[at] = -dense[at];
  }
  copy_strided(shape, element_size(call),
               {moved(call.inputs[0].data, start, element_size(call)), backwards},
               whole(call.outputs[0]), call.stream);
}

}  // namespace

void register_shape_kernels(KernelTable& table) {
  table.set(OpId::kReshape, kAllDTypes, copy);
  table.set(OpId::kStopGradient, kAllDTypes, copy);
  table.set(OpId::kTranspose, kAllDTypes, transpose);
  table.set(OpId::kSlice, kAllDTypes, slice);
  table.set(OpId::kPad, kAllDTypes, pad);
  table.set(OpId::kConcat, kAllDTypes, concat);
  table.set(OpId::kBroadcastTo, kAllDTypes, broadcast_to);
  table.set(OpId::kReverse, kAllDTypes, reverse);
}

// Fills a tensor with one value.

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
  std::array<std::byte, sizeof(Bytes16)> pattern;  // the value, repeated to fill 16 bytes
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
