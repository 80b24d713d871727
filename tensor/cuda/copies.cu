// Copies between strided tensors, many small copies at once, and matrix transposition.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/strided_axes.h"

#include <algorithm>

#include "tensor/cuda/batches.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {

// Copies between strided tensors: plain copies in wide units, transpositions tile by tile.

namespace {

constexpr int kTile = 32;
constexpr int kTileRows = static_cast<int>(kThreads) / kTile;

template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_elements(const __grid_constant__ StridedAxes<2> axes, const T* from, T* to) {
  std::int64_t offsets[2];
  for (std::int64_t i = thread_number(); i < axes.count; i += num_threads()) {
    axes.offsets_of(i, offsets);
    to[offsets[1]] = from[offsets[0]];
  }
}

/// Swap of the axes `along` and `across`, within a loop over `others`: `from` is contiguous along
/// `across`, and `to` is contiguous along `along`.
struct Transposition {
  StridedAxes<2> others;
  std::int64_t along = 0, across = 0;           // their sizes
  std::int64_t from_stride = 0, to_stride = 0;  // strides: `along` in `from`, `across` in `to`
  std::int64_t tiles_along = 0, tiles_across = 0;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_tiles(const __grid_constant__ Transposition t, const T* from, T* to) {
  __shared__ T tile[kTile][kTile + 1];  // extra column avoids bank conflicts
  const int x = static_cast<int>(threadIdx.x) % kTile;
  const int y = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t num_tiles = t.tiles_along * t.tiles_across;
  for (std::int64_t n = blockIdx.x; n < num_tiles * t.others.count; n += gridDim.x) {
    const std::int64_t other = quotient_of_large(n, num_tiles), place = n - other * num_tiles;
    const std::int64_t row_of_tiles = quotient_of_large(place, t.tiles_across);
    const std::int64_t first_along = row_of_tiles * kTile;
    const std::int64_t first_across = (place - row_of_tiles * t.tiles_across) * kTile;
    std::int64_t offsets[2];
    t.others.offsets_of(other, offsets);
    for (int i = y; i < kTile; i += kTileRows) {
      if (first_along + i < t.along && first_across + x < t.across) {
        tile[i][x] = from[offsets[0] + (first_along + i) * t.from_stride + first_across + x];
      }
    }
    __syncthreads();
    for (int i = y; i < kTile; i += kTileRows) {
      if (first_along + x < t.along && first_across + i < t.across) {
        to[offsets[1] + (first_across + i) * t.to_stride + first_along + x] = tile[x][i];
      }
    }
    __syncthreads();
  }
}

/// Returns the axis along which `from` is contiguous, if `to` is contiguous along another axis (the
/// innermost one); -1 if tiles would not help.
int axis_across(const StridedAxes<2>& axes) {
  if (axes.stride(1, axes.rank - 1) != 1 || axes.stride(0, axes.rank - 1) == 1) return -1;
  for (int axis = 0; axis + 1 < axes.rank; ++axis) {
    if (axes.stride(0, axis) == 1) return axis;
  }
  return -1;
}

StridedAxes<2> without_tiled_axes(const StridedAxes<2>& axes, int across) {
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  std::array<Strides, 2> strides{};
  std::size_t rank = 0;
  for (int axis = 0; axis + 1 < axes.rank; ++axis) {
    if (axis == across) continue;
    dims[rank] = axes.sizes[axis];
    for (std::size_t k = 0; k < 2; ++k) strides[k][rank] = axes.stride(static_cast<int>(k), axis);
    ++rank;
  }
  return StridedAxes<2>(Shape(std::span<const std::int64_t>(dims.data(), rank)), strides);
}

template <class T>
void launch_tiles(const StridedAxes<2>& axes, int across, const T* from, T* to,
                  cudaStream_t stream) {
  Transposition t;
  t.others = without_tiled_axes(axes, across);
  t.along = axes.innermost();
  t.across = axes.sizes[across];
  t.from_stride = axes.stride(0, axes.rank - 1);
  t.to_stride = axes.stride(1, across);
  t.tiles_along = (t.along + kTile - 1) / kTile;
  t.tiles_across = (t.across + kTile - 1) / kTile;
  const std::int64_t num_tiles = t.tiles_along * t.tiles_across * t.others.count;
  launch_cooperative(transpose_tiles<T>,
                     static_cast<unsigned>(std::min<std::int64_t>(num_tiles, 65'535)), kThreads,
                     stream, t, from, to);
}

/// Returns the largest power of two, in bytes, that divides the length of the innermost runs and
/// all other strides of `axes`; `element_size` if the runs are not contiguous.
std::size_t common_bytes(const StridedAxes<2>& axes, std::size_t element_size) {
  if (axes.stride(0, axes.rank - 1) != 1 || axes.stride(1, axes.rank - 1) != 1) {
    return element_size;
  }
  auto bits = static_cast<std::uint64_t>(axes.innermost());
  for (int axis = 0; axis + 1 < axes.rank; ++axis) {
    bits |= static_cast<std::uint64_t>(axes.stride(0, axis) | axes.stride(1, axis));
  }
  return static_cast<std::size_t>(bits & (~bits + 1)) * element_size;  // the lowest set bit
}

}  // namespace

std::size_t copy_unit(std::size_t element_size, std::size_t bytes, const void* from,
                      const void* to) {
  std::size_t unit = 16;
  while (unit > element_size &&
         (bytes % unit != 0 || !is_aligned(from, unit) || !is_aligned(to, unit))) {
    unit /= 2;
  }
  return unit;
}

void copy_strided(const Shape& shape, std::size_t element_size, const StridedElements& from,
                  const StridedElements& to, cudaStream_t stream) {
  if (shape.num_elements() == 0) return;
  StridedAxes<2> axes(shape, {from.strides, to.strides});
  const int across = axis_across(axes);
  const std::size_t unit =
      across < 0 ? copy_unit(element_size, common_bytes(axes, element_size), from.data, to.data)
                 : element_size;
  if (unit > element_size) {
    const auto factor = static_cast<std::int64_t>(unit / element_size);
    axes = axes.in_packs(factor);
    for (int axis = 0; axis < axes.rank; ++axis) {
      for (int k = 0; k < 2; ++k) axes.strides[k][axis] /= factor;
    }
  }
  visit_bytes(unit, [&]<class T>() {
    const T* const source = static_cast<const T*>(from.data);
    T* const target = static_cast<T*>(const_cast<void*>(to.data));
    if (across >= 0) {
      if constexpr (!std::is_same_v<T, Bytes16>) launch_tiles(axes, across, source, target, stream);
    } else {
      launch(copy_elements<T>, blocks_for(static_cast<std::size_t>(axes.count)), kThreads, stream,
             axes, source, target);
    }
  });
}

// Many small copies in one launch, to pack gradients into buckets and unpack them.

namespace {

constexpr int kItems = 128;  // copies per launch; a DeviceCopy has 24 bytes
constexpr std::int64_t kBytesPerBlock = 32 * 1024;

/// Copies bytes [first, end) in units of T, and the last bytes one by one.
template <class T>
__device__ __forceinline__ void copy_bytes(const DeviceCopy& copy, std::int64_t first,
                                           std::int64_t end) {
  constexpr std::int64_t kUnit = sizeof(T);
  const auto* const from = static_cast<const char*>(copy.from);
  auto* const to = static_cast<char*>(copy.to);
  const std::int64_t whole = first + (end - first) / kUnit * kUnit;
#pragma unroll 4
  for (std::int64_t i = first + threadIdx.x * kUnit; i < whole; i += kThreads * kUnit) {
    *reinterpret_cast<T*>(to + i) = *reinterpret_cast<const T*>(from + i);
  }
  for (std::int64_t i = whole + threadIdx.x; i < end; i += kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ Batch<DeviceCopy, kItems> batch) {
  const auto share = batch.share(kBytesPerBlock);
  const DeviceCopy& copy = batch.items[share.item];
  const auto bytes = static_cast<std::int64_t>(copy.bytes);
  const std::int64_t past = share.first + kBytesPerBlock, end = past < bytes ? past : bytes;
  const auto bits =
      reinterpret_cast<std::uintptr_t>(copy.from) | reinterpret_cast<std::uintptr_t>(copy.to);
  if (bits % 16 == 0) {
    copy_bytes<Bytes16>(copy, share.first, end);
  } else if (bits % 4 == 0) {
    copy_bytes<std::uint32_t>(copy, share.first, end);
  } else if (bits % 2 == 0) {
    copy_bytes<std::uint16_t>(copy, share.first, end);
  } else {
    copy_bytes<std::uint8_t>(copy, share.first, end);
  }
}

}  // namespace

void copy_many(std::span<const DeviceCopy> copies, cudaStream_t stream) {
  for_each_batch<kItems>(
      copies, kBytesPerBlock,
      [](const DeviceCopy& copy) { return static_cast<std::int64_t>(copy.bytes); },
      [stream](const Batch<DeviceCopy, kItems>& batch) {
        launch(copy_kernel, batch.num_blocks, kThreads, stream, batch);
      });
}

// Matrix transposition, which converts filters between tutti's layout (HWIO) and cuDNN's (OHWI).

namespace {

constexpr std::int64_t kMaxGridRows = 65'535;

// Each shared tile has one extra column, so that the elements of a column are in different banks.
template <class Bits>
__global__ void transpose_matrix_tiles(const Bits* from, Bits* to, std::int64_t rows,
                                       std::int64_t columns) {
  __shared__ Bits tile[kTile][kTile + 1];
  const std::int64_t left = std::int64_t{blockIdx.x} * kTile;
  for (std::int64_t top = std::int64_t{blockIdx.y} * kTile; top < rows;
       top += std::int64_t{gridDim.y} * kTile) {
    for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kTileRows) {
      const std::int64_t row = top + i, column = left + threadIdx.x;
      if (row < rows && column < columns) tile[i][threadIdx.x] = from[row * columns + column];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kTileRows) {
      const std::int64_t row = top + threadIdx.x, column = left + i;
      if (row < rows && column < columns) to[column * rows + row] = tile[threadIdx.x][i];
    }
    __syncthreads();
  }
}

template <class Bits>
void transpose_as(const void* from, void* to, std::int64_t rows, std::int64_t columns,
                  cudaStream_t stream) {
  const auto tiles = [](std::int64_t extent) { return (extent + kTile - 1) / kTile; };
  const dim3 grid(static_cast<unsigned>(tiles(columns)),
                  static_cast<unsigned>(std::min(tiles(rows), kMaxGridRows)));
  launch_cooperative(transpose_matrix_tiles<Bits>, grid, dim3(kTile, kTileRows), stream,
                     static_cast<const Bits*>(from), static_cast<Bits*>(to), rows, columns);
}

}  // namespace

void transpose_matrix(DType dtype, const void* from, void* to, std::int64_t rows,
                      std::int64_t columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  switch (size_of(dtype)) {
    case 2:
      return transpose_as<std::uint16_t>(from, to, rows, columns, stream);
    case 4:
      return transpose_as<std::uint32_t>(from, to, rows, columns, stream);
    case 8:
      return transpose_as<std::uint64_t>(from, to, rows, columns, stream);
    default:
      fail(ErrorCode::kUnimplemented, "transpose_matrix: expected a type of 2, 4 or 8 bytes, got ",
           to_string(dtype));
  }
}

}  // namespace tutti::cuda
