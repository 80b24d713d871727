// Transposes a matrix: filters between our layout (HWIO) and cuDNN's (OHWI).
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

constexpr int kTile = 32;     // rows and columns that a block moves at a time
constexpr int kTileRows = 8;  // of which its threads take so many at once
constexpr std::int64_t kMaxGridRows = 65'535;

// One more column than needed, so that a column's elements lie in different banks.
template <class Bits>
__global__ void transpose_tiles(const Bits* from, Bits* to, std::int64_t rows,
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
void run(const void* from, void* to, std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  const auto tiles = [](std::int64_t extent) { return (extent + kTile - 1) / kTile; };
  const dim3 grid(static_cast<unsigned>(tiles(columns)),
                  static_cast<unsigned>(std::min(tiles(rows), kMaxGridRows)));
  launch_cooperative(transpose_tiles<Bits>, grid, dim3(kTile, kTileRows), stream,
                     static_cast<const Bits*>(from), static_cast<Bits*>(to), rows, columns);
}

}  // namespace

void transpose_matrix(DType dtype, const void* from, void* to, std::int64_t rows,
                      std::int64_t columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  switch (size_of(dtype)) {
    case 2:
      return run<std::uint16_t>(from, to, rows, columns, stream);
    case 4:
      return run<std::uint32_t>(from, to, rows, columns, stream);
    case 8:
      return run<std::uint64_t>(from, to, rows, columns, stream);
    default:
      fail(ErrorCode::kUnimplemented, "transpose_matrix: expected 2, 4 or 8 bytes an element, got ",
           to_string(dtype));
  }
}

}  // namespace tutti::cuda
