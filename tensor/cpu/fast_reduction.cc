// Fast reductions over one group of adjacent axes: [outer, count, inner] -> [outer, inner].
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "tensor/cpu/ordered_fold.h"
#include "tensor/cpu/registration.h"
#include "tensor/cpu/vectorized.h"

namespace tutti::internal {

// All reductions follow the order of cpu/ordered_fold.h. Contiguous sequences (inner = 1) are
// folded directly; otherwise, kTile adjacent columns are folded together, each in the same order.
// The reference kernel handles other patterns of axes.

namespace {

// Number of columns folded at once, chosen so that kFoldLanes rows of this length fit into the L1
// cache.
constexpr std::int64_t kTile = 64;

struct Extents {
  std::int64_t outer = 1;
  std::int64_t count = 1;
  std::int64_t inner = 1;
};

/// Returns the extents before, along and after the reduced axes; nullopt if these axes are not
/// adjacent (axes of length 1 are skipped).
std::optional<Extents> extents(const Shape& shape, std::uint32_t axes) {
  Extents result;
  bool reduced_before = false;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t size = shape.begin()[axis];
    if (size == 1) continue;
    if (axes >> axis & 1u) {
      if (result.inner != 1) return std::nullopt;
      result.count *= size;
      reduced_before = true;
    } else {
      (reduced_before ? result.inner : result.outer) *= size;
    }
  }
  return result;
}

/// Same as BlockCounter, but for rows of kTile columns.
template <class Function, class T>
class TileCounter {
 public:
  void add(const T* values) {
    std::size_t top = top_;
    for (std::uint64_t bits = num_blocks_; bits & 1; bits >>= 1) --top;
    copy(values, levels_[top_]);
    for (; top_ > top; --top_) merge_top();
    ++top_;
    ++num_blocks_;
  }
  const T* result() {
    for (--top_; top_ > 0; --top_) merge_top();
    return levels_[0].data();
  }

 private:
  using Row = std::array<T, kTile>;
  static void copy(const T* from, Row& to) { std::copy_n(from, kTile, to.data()); }
  /// Folds levels_[top_] into levels_[top_ - 1].
  void merge_top() {
    for (std::size_t i = 0; i < kTile; ++i) {
      levels_[top_ - 1][i] = Function{}(levels_[top_ - 1][i], levels_[top_][i]);
    }
  }

  std::array<Row, kMaxFoldLevels> levels_;
  std::size_t top_ = 0;
  std::uint64_t num_blocks_ = 0;
};

template <class T>
using TileLanes = std::array<std::array<T, kTile>, kFoldLanes>;

/// Folds `count` rows (at most kFoldBlock) of `width` columns into lanes[0].
template <class Function, class T>
[[gnu::always_inline]] inline void fold_tile(const T* __restrict x, std::int64_t row_stride,
                                             std::int64_t count, std::int64_t width,
                                             TileLanes<T>& lanes) {
  for (auto& lane : lanes) lane.fill(identity<T>(Function{}));
  for (std::int64_t row = 0; row < count; ++row) {
    T* __restrict lane = lanes[static_cast<std::size_t>(row % kFoldLanes)].data();
    const T* __restrict in = x + row * row_stride;
    if (width == kTile) {
      for (std::int64_t i = 0; i < kTile; ++i) lane[i] = Function{}(lane[i], in[i]);
    } else {
      for (std::int64_t i = 0; i < width; ++i) lane[i] = Function{}(lane[i], in[i]);
    }
  }
  for (std::size_t step = kFoldLanes / 2; step > 0; step /= 2) {
    for (std::size_t lane = 0; lane < step; ++lane) {
      T* __restrict low = lanes[lane].data();
      const T* __restrict high = lanes[lane + step].data();
      for (std::int64_t i = 0; i < kTile; ++i) low[i] = Function{}(low[i], high[i]);
    }
  }
}

/// Folds `count` rows of `width` <= kTile columns into y.
template <class Function, class T>
[[gnu::always_inline]] inline void fold_columns(const T* x, std::int64_t row_stride,
                                                std::int64_t count, std::int64_t width, T* y) {
  TileLanes<T> lanes;
  if (count <= kFoldBlock) {
    fold_tile<Function>(x, row_stride, count, width, lanes);
    std::copy_n(lanes[0].data(), width, y);
    return;
  }
  TileCounter<Function, T> blocks;
  for (std::int64_t row = 0; row < count; row += kFoldBlock) {
    fold_tile<Function>(x + row * row_stride, row_stride, std::min(kFoldBlock, count - row), width,
                        lanes);
    blocks.add(lanes[0].data());
  }
  std::copy_n(blocks.result(), width, y);
}

template <class Function, class T>
void fold(const Extents& extents, const T* x, T* y) {
  const auto [outer, count, inner] = extents;
  vectorized([ =, outer = outer, count = count, inner = inner ]() __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < outer; ++i) {
      const T* from = x + i * count * inner;
      if (inner == 1) {
        y[i] = ordered_fold<Function>(from, count);
        continue;
      }
      for (std::int64_t column = 0; column < inner; column += kTile) {
        fold_columns<Function>(from + column, inner, count, std::min(kTile, inner - column),
                               y + i * inner + column);
      }
    }
  });
}

template <OpId kOp, class Function, class T>
void reduce(const KernelArgs& args) {
  const Shape& shape = args.inputs[0].shape();
  const auto found = extents(shape, args.attributes_as<AxesAttributes>().axes);
  if (!found) {
    reference_kernels().find(kOp, dtype_of<T>())(args);
    return;
  }
  const std::span<T> y = args.out<T>(0);
  fold<Function>(*found, args.in<T>(0).data(), y.data());
  if constexpr (kOp == OpId::kReduceMean) {
    for (T& value : y) value /= static_cast<T>(found->count);
  }
}

template <class Wins, class T>
void arg_extreme(const KernelArgs& args) {
  const auto [outer, count, inner] =
      *extents(args.inputs[0].shape(), 1u << args.attributes_as<AxisAttributes>().axis);
  const T* x = args.in<T>(0).data();
  std::int64_t* y = args.out<std::int64_t>(0).data();
  for (std::int64_t i = 0; i < outer * inner; ++i) {
    const T* from = x + i / inner * count * inner + i % inner;
    std::int64_t best = 0;
    for (std::int64_t k = 1; k < count; ++k) {
      if (Wins{}(from[k * inner], from[best * inner])) best = k;
    }
    y[i] = best;
  }
}

template <class T>
void set_reductions(KernelTable& table) {
  constexpr DType kDType = dtype_of<T>();
  table.set(OpId::kReduceSum, kDType, reduce<OpId::kReduceSum, Add, T>);
  table.set(OpId::kReduceMean, kDType, reduce<OpId::kReduceMean, Add, T>);
  table.set(OpId::kReduceMax, kDType, reduce<OpId::kReduceMax, Maximum, T>);
  table.set(OpId::kReduceMin, kDType, reduce<OpId::kReduceMin, Minimum, T>);
  table.set(OpId::kArgMax, kDType, arg_extreme<Greater, T>);
  table.set(OpId::kArgMin, kDType, arg_extreme<Less, T>);
}

// Bias gradient for floats: the sum over rows, vectorised over channels.
//
// The 64 rows of each block are added in float, and the block sums in double. This is fast and
// accurate, and the order depends only on the shape.

constexpr std::size_t kRowsPerBlock = 64;

[[gnu::always_inline]] inline void add_row(float* __restrict sums, const float* __restrict row,
                                           std::size_t channels) {
  for (std::size_t c = 0; c < channels; ++c) sums[c] += row[c];
}

void bias_grad(const KernelArgs& args) {
  const auto dy = args.in<float>(0);
  const auto db = args.out<float>(0);
  const std::size_t channels = db.size();
  std::vector<float> block(channels);
  std::vector<double> total(channels);
  const std::size_t rows = dy.size() / channels;
  vectorized([&]() __attribute__((always_inline)) {
    for (std::size_t first = 0; first < rows; first += kRowsPerBlock) {
      std::ranges::fill(block, 0.0f);
      const std::size_t last = std::min(rows, first + kRowsPerBlock);
      for (std::size_t r = first; r < last; ++r) add_row(block.data(), &dy[r * channels], channels);
      for (std::size_t c = 0; c < channels; ++c) total[c] += static_cast<double>(block[c]);
    }
  });
  for (std::size_t c = 0; c < channels; ++c) db[c] = static_cast<float>(total[c]);
}

}  // namespace

void register_fast_reduction_kernels(KernelTable& table) {
  set_reductions<float>(table);
  set_reductions<double>(table);
  table.set(OpId::kBiasGrad, DType::kFloat32, bias_grad);
}

}  // namespace tutti::internal
