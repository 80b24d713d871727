// Operations with indices: one_hot, gather, scatter_rows.
// SPDX-License-Identifier: Apache-2.0
//
// A kernel cannot throw: for out-of-range indices, gather returns zeros and scatter does nothing,
// as in tf on GPUs (docs/deviations.md).
#include <array>
#include <cstring>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/strided_axes.h"

namespace tutti::cuda {
namespace {

struct Indices {
  explicit Indices(const DeviceTensor& tensor)
      : data(tensor.data),
        count(tensor.shape.num_elements()),
        is_wide(tensor.dtype == DType::kInt64) {}
  __device__ __forceinline__ std::int64_t operator[](std::int64_t i) const {
    return is_wide ? static_cast<const std::int64_t*>(data)[i]
                   : std::int64_t{static_cast<const std::int32_t*>(data)[i]};
  }
  const void* data;
  std::int64_t count;
  bool is_wide;
};

std::int64_t row_size(const Shape& shape) {
  std::int64_t size = 1;
  for (int axis = 1; axis < shape.rank(); ++axis) size *= shape.begin()[axis];
  return size;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    one_hot_kernel(Indices indices, const __grid_constant__ StridedAxes<2> axes, T on, T off,
                   T* y) {
  std::int64_t offsets[2];  // offset of the index; class number
  for (std::int64_t i = thread_number(); i < axes.count; i += num_threads()) {
    axes.offsets_of(i, offsets);
    y[i] = indices[offsets[0]] == offsets[1] ? on : off;
  }
}

void one_hot(const KernelCall& call) {
  const auto& attributes = call.attributes_as<OneHotAttributes>();
  const Indices indices(call.inputs[0]);
  const std::int64_t depth = call.outputs[0].shape.dim(-1);
  if (indices.count * depth == 0) return;
  const Strides of_index{1, 0}, of_class{0, 1};
  const StridedAxes<2> axes(Shape{indices.count, depth}, {of_index, of_class});
  visit_dtype(call.outputs[0].dtype, [&]<class T>() {
    launch(one_hot_kernel<T>, blocks_for(static_cast<std::size_t>(axes.count)), kThreads,
           call.stream, indices, axes, static_cast<T>(attributes.on),
           static_cast<T>(attributes.off), call.out<T>(0));
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Indices indices, const __grid_constant__ StridedAxes<2> axes,
                  std::int64_t num_rows, std::int64_t size, const T* x, T* y) {
  std::int64_t offsets[2];  // offset of the row's index, and offset within the row
  for (std::int64_t i = thread_number(); i < axes.count; i += num_threads()) {
    axes.offsets_of(i, offsets);
    const std::int64_t row = indices[offsets[0]];
    y[i] = row >= 0 && row < num_rows ? x[row * size + offsets[1]] : T{};
  }
}

void gather(const KernelCall& call) {
  const Indices indices(call.inputs[1]);
  const Shape& shape = call.inputs[0].shape;
  const std::size_t element_size = size_of(call.inputs[0].dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(row_size(shape)) * element_size;
  if (indices.count == 0 || row_bytes == 0) return;
  const std::size_t unit =
      copy_unit(element_size, row_bytes, call.inputs[0].data, call.outputs[0].data);
  const auto size = static_cast<std::int64_t>(row_bytes / unit);
  const Strides of_index{1, 0}, within_row{0, 1};
  const StridedAxes<2> axes(Shape{indices.count, size}, {of_index, within_row});
  visit_bytes(unit, [&]<class T>() {
    launch(gather_kernel<T>, blocks_for(static_cast<std::size_t>(axes.count)), kThreads,
           call.stream, indices, axes, shape.dim(0), size, call.in<T>(0), call.out<T>(0));
  });
}

/// If `mine` is the first position whose index is `row`, calls body(position) for every such
/// position, in order, and returns true. Otherwise returns false: another block handles the row.
/// The order of additions is therefore fixed. For up to about 100,000 positions, comparing all
/// pairs costs less than sorting. All threads of the block must call this function.
template <class Body>
__device__ __forceinline__ bool for_each_of_row(const Indices& indices, std::int64_t mine,
                                                std::int64_t row, const Body& body) {
  constexpr int kWarps = static_cast<int>(kThreads) / 32;
  __shared__ unsigned matches[kWarps];  // bit i of word w: position 32 w + i of the chunk
  bool is_first = true;
  for (std::int64_t chunk = 0; is_first && chunk < indices.count; chunk += kThreads) {
    const std::int64_t position = chunk + threadIdx.x;
    const bool match = position < indices.count && indices[position] == row;
    const unsigned ballot = __ballot_sync(0xffffffffu, match);
    if (threadIdx.x % 32 == 0) matches[threadIdx.x / 32] = ballot;
    __syncthreads();
    for (int w = 0; is_first && w < kWarps; ++w) {
      for (unsigned bits = matches[w]; bits != 0; bits &= bits - 1) {
        const std::int64_t at = chunk + 32 * w + __ffs(static_cast<int>(bits)) - 1;
        if (at < mine) is_first = false;
        if (!is_first) break;
        body(at);
      }
    }
    __syncthreads();
  }
  return is_first;
}

/// Uses one block per position in `indices`. The block for a row's first position adds the values
/// of all positions of that row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(Indices indices, std::int64_t num_rows, std::int64_t size, const T* values,
                   T* y) {
  const std::int64_t column = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  for (std::int64_t mine = blockIdx.x; mine < indices.count; mine += gridDim.x) {
    const std::int64_t row = indices[mine];
    if (row < 0 || row >= num_rows) continue;
    Number<T> sum{0};
    const bool is_first = for_each_of_row(indices, mine, row, [&](std::int64_t at) {
      if (column < size) sum = internal::Add{}(sum, number(values[at * size + column]));
    });
    if (is_first && column < size) y[row * size + column] = element<T>(sum);
  }
}

/// Same as scatter_kernel(), but combines the values with the previous values of the rows. Rounds
/// after each combination, not once at the end.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scatter_into_kernel(ScatterOp op, Indices indices, std::int64_t num_rows, std::int64_t size,
                        const T* values, T* y) {
  const std::int64_t column = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  for (std::int64_t mine = blockIdx.x; mine < indices.count; mine += gridDim.x) {
    const std::int64_t row = indices[mine];
    if (row < 0 || row >= num_rows) continue;
    T* const place = y + row * size + column;
    T result = column < size ? *place : T{};
    const bool is_first = for_each_of_row(indices, mine, row, [&](std::int64_t at) {
      if (column >= size) return;
      result =
          element<T>(internal::scattered(op, number(result), number(values[at * size + column])));
    });
    if (is_first && column < size) *place = result;
  }
}

dim3 grid_of_scatter(const Indices& indices, std::int64_t size) {
  return {static_cast<unsigned>(std::min<std::int64_t>(indices.count, 1 << 20)),
          static_cast<unsigned>((size + kThreads - 1) / kThreads)};
}

template <class T>
void scatter_rows(const KernelCall& call) {
  const Indices indices(call.inputs[1]);
  const Shape& shape = call.outputs[0].shape;
  const std::int64_t size = row_size(shape);
  const auto bytes = static_cast<std::size_t>(shape.num_elements()) * sizeof(T);
  if (bytes == 0) return;
  check(cudaMemsetAsync(call.outputs[0].data, 0, bytes, call.stream), "scatter_rows");
  if (indices.count == 0) return;
  launch_cooperative(scatter_kernel<T>, grid_of_scatter(indices, size), kThreads, call.stream,
                     indices, shape.dim(0), size, call.in<T>(0), call.out<T>(0));
}

template <class... Ts>
void set_scatter(KernelTable& table) {
  (table.set(OpId::kScatterRows, dtype_of<Ts>(), scatter_rows<Ts>), ...);
}

}  // namespace

void register_indexing_kernels(KernelTable& table) {
  table.set(OpId::kGather, kAllDTypes, gather);
  table.set(OpId::kOneHot, DType::kInt32, one_hot);
  table.set(OpId::kOneHot, DType::kInt64, one_hot);
  set_scatter<TUTTI_NUMBER_TYPES>(table);
}

void scatter(const DeviceScatter& scatter, cudaStream_t stream) {
  const Indices indices(scatter.indices);
  const std::int64_t num_rows = scatter.rows.shape.dim(0), size = row_size(scatter.rows.shape);
  if (indices.count == 0 || num_rows == 0 || size == 0) return;
  visit_dtype(scatter.rows.dtype, [&]<class T>() {
    launch_cooperative(scatter_into_kernel<T>, grid_of_scatter(indices, size), kThreads, stream,
                       scatter.op, indices, num_rows, size,
                       static_cast<const T*>(scatter.values.data),
                       static_cast<T*>(scatter.rows.data));
  });
}

}  // namespace tutti::cuda
