// Reductions: sums, means, products, any() and all(), extremes and their positions.
// SPDX-License-Identifier: Apache-2.0
//
// The order of folding depends only on the shape; there are no atomics. *Kept* axes are those of
// the result; *reduced* axes are folded. A *row* is the input of one element of the result. A few
// long rows are divided into *parts*, whose results a second launch folds. A *fold* has Value (its
// type), identity(), of(element, position in the row), combine(a, b) and result(value).
#include <limits>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/strided_axes.h"
#include "tensor/cuda/team.h"

namespace tutti::cuda {
namespace {

struct Reduction {
  StridedAxes<1> kept, reduced;
  // numbers of parts per row and of elements per part
  std::int64_t parts = 1, part_size = 0;
};

/// Columns per block, and threads per column, for a fold along an outer axis.
inline constexpr int kColumns = 32, kLanesOfColumn = 8;

/// Writes the result of a row, or of one part of it.
template <class Fold, class Y>
__device__ __forceinline__ void write_fold(const Fold& fold, typename Fold::Value value,
                                           std::int64_t parts, std::int64_t at,
                                           typename Fold::Value* of_parts, Y* y) {
  if (parts > 1) {
    of_parts[at] = value;
  } else {
    y[at] = element<Y>(fold.result(value));
  }
}

/// Uses a team of threads per part of a row. Each lane processes kWidth adjacent elements at a
/// time, in one load if `is_wide`.
template <int kWidth, class Fold, class T, class Y>
__global__ void __launch_bounds__(kThreads)
    fold_rows(const __grid_constant__ Reduction r, bool is_wide, int lanes, Fold fold, const T* x,
              typename Fold::Value* of_parts, Y* y) {
  using Value = typename Fold::Value;
  __shared__ Value shared[kWarpsOfBlock];
  const Teams teams(lanes);
  teams.for_each_row(r.kept.count * r.parts, [&](std::int64_t at) {
    const bool is_active = at < r.kept.count * r.parts;
    Value value = fold.identity();
    if (is_active) {
      const std::int64_t row = r.parts == 1 ? at : quotient_of_large(at, r.parts);
      const std::int64_t first = (at - row * r.parts) * r.part_size;
      const std::int64_t past = first + r.part_size;
      const std::int64_t end = past < r.reduced.count ? past : r.reduced.count;
      std::int64_t base[1], offset[1];
      r.kept.offsets_of(row, base);
      for (std::int64_t i = first + std::int64_t{teams.lane()} * kWidth; i < end;
           i += std::int64_t{lanes} * kWidth) {
        if (is_wide && i + kWidth <= end) {
          const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(x + base[0] + i);
          for (int k = 0; k < kWidth; ++k) {
            value = fold.combine(value, fold.of(number(pack.elements[k]), i + k));
          }
          continue;
        }
        for (int k = 0; k < kWidth && i + k < end; ++k) {
          r.reduced.offsets_of(i + k, offset);
          value = fold.combine(value, fold.of(number(x[base[0] + offset[0]]), i + k));
        }
      }
    }
    const auto combine = [&fold](Value a, Value b) { return fold.combine(a, b); };
    value = teams.combine(value, combine, shared);
    if (is_active && teams.lane() == 0) write_fold(fold, value, r.parts, at, of_parts, y);
  });
}

/// Folds reduced axes that precede a kept axis: neighbouring threads fold neighbouring rows.
/// blockIdx.y is the number of the part.
template <class Fold, class T, class Y>
__global__ void __launch_bounds__(kThreads)
    fold_columns(const __grid_constant__ Reduction r, Fold fold, const T* x,
                 typename Fold::Value* of_parts, Y* y) {
  using Value = typename Fold::Value;
  __shared__ Value shared[kLanesOfColumn][kColumns];
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t first = std::int64_t{blockIdx.y} * r.part_size;
  const std::int64_t past = first + r.part_size;
  const std::int64_t end = past < r.reduced.count ? past : r.reduced.count;
  for (std::int64_t group = blockIdx.x; group * kColumns < r.kept.count; group += gridDim.x) {
    const std::int64_t row = group * kColumns + column;
    Value value = fold.identity();
    if (row < r.kept.count) {
      std::int64_t base[1], offset[1];
      r.kept.offsets_of(row, base);
#pragma unroll 4
      for (std::int64_t i = first + lane; i < end; i += kLanesOfColumn) {
        r.reduced.offsets_of(i, offset);
        value = fold.combine(value, fold.of(number(x[base[0] + offset[0]]), i));
      }
    }
    shared[lane][column] = value;
    for (int half = kLanesOfColumn / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half) {
        shared[lane][column] = fold.combine(shared[lane][column], shared[lane + half][column]);
      }
    }
    if (lane == 0 && row < r.kept.count) {
      write_fold(fold, shared[0][column], r.parts, row * r.parts + blockIdx.y, of_parts, y);
    }
    __syncthreads();
  }
}

/// Folds the partial results of each row. Uses one team of threads per row.
template <class Fold, class Y>
__global__ void __launch_bounds__(kThreads)
    fold_parts(std::int64_t rows, std::int64_t parts, int lanes, Fold fold,
               const typename Fold::Value* of_parts, Y* y) {
  using Value = typename Fold::Value;
  __shared__ Value shared[kWarpsOfBlock];
  const Teams teams(lanes);
  teams.for_each_row(rows, [&](std::int64_t row) {
    Value value = fold.identity();
    if (row < rows) {
      for (std::int64_t i = teams.lane(); i < parts; i += lanes) {
        value = fold.combine(value, of_parts[row * parts + i]);
      }
    }
    const auto combine = [&fold](Value a, Value b) { return fold.combine(a, b); };
    value = teams.combine(value, combine, shared);
    if (row < rows && teams.lane() == 0) y[row] = element<Y>(fold.result(value));
  });
}

/// Returns the axes of `shape` whose bits are set in `axes`, with their strides in the full tensor.
inline StridedAxes<1> chosen_axes(const Shape& shape, std::uint32_t axes) {
  const Strides dense = dense_strides(shape);
  Strides strides{};
  Shape chosen = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if ((axes >> axis & 1u) == 0) chosen = chosen.with_dim(axis, 1);
    strides[static_cast<std::size_t>(axis)] = dense[static_cast<std::size_t>(axis)];
  }
  return StridedAxes<1>(chosen, {strides});
}

/// Chooses the number of parts: enough to fill a large GPU with blocks, but not so many that a part
/// has fewer than `least` elements.
inline void cut_rows(Reduction& r, std::int64_t num_blocks, std::int64_t least) {
  constexpr std::int64_t kEnoughBlocks = 1024;
  const std::int64_t length = r.reduced.count;
  const std::int64_t wanted =
      (kEnoughBlocks + num_blocks - 1) / std::max<std::int64_t>(num_blocks, 1);
  r.parts = std::clamp<std::int64_t>(std::min(wanted, length / least), 1, 256);
  r.part_size = (length + r.parts - 1) / r.parts;
  r.part_size = (r.part_size + 15) / 16 * 16;  // packs do not straddle parts
  r.parts = std::max<std::int64_t>(
      (length + r.part_size - 1) / std::max<std::int64_t>(r.part_size, 1), 1);
}

/// Folds x over `axes` into y.
template <class Fold, class T, class Y>
void reduce(const KernelCall& call, std::uint32_t axes, const Fold& fold) {
  using Value = typename Fold::Value;
  const Shape& shape = call.inputs[0].shape;
  const T* const x = call.in<T>(0);
  Y* const y = call.out<Y>(0);
  Reduction r{chosen_axes(shape, ~axes), chosen_axes(shape, axes)};
  const std::int64_t rows = r.kept.count, length = r.reduced.count;
  if (rows == 0) return;
  constexpr int kWidth = static_cast<int>(std::min<std::size_t>(16 / sizeof(T), 8));
  const bool by_columns =
      r.kept.stride(0, r.kept.rank - 1) == 1 && r.kept.innermost() >= kColumns / 4 && length > 1;
  const int lanes = Teams::lanes_for((length + kWidth - 1) / kWidth);
  const std::int64_t groups = (rows + kColumns - 1) / kColumns;
  if (by_columns) {
    cut_rows(r, groups, 64);
  } else {
    cut_rows(r, std::max<std::int64_t>(rows * lanes / kThreads, 1), 8192);
  }
  auto* const of_parts = static_cast<Value*>(
      r.parts > 1
          ? call.workspace.allocate(static_cast<std::size_t>(rows * r.parts) * sizeof(Value))
          : nullptr);
  if (by_columns) {
    const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(groups, 65'535)),
                    static_cast<unsigned>(r.parts));
    launch_cooperative(fold_columns<Fold, T, Y>, grid, kThreads, call.stream, r, fold, x, of_parts,
                       y);
  } else {
    bool is_wide = r.reduced.rank == 1 && r.reduced.stride(0, 0) == 1 && is_aligned(x, 16);
    for (int axis = 0; axis < r.kept.rank; ++axis) {
      is_wide = is_wide && r.kept.stride(0, axis) % kWidth == 0;
    }
    launch_cooperative(fold_rows<kWidth, Fold, T, Y>, Teams::blocks_for_rows(rows * r.parts, lanes),
                       kThreads, call.stream, r, is_wide, lanes, fold, x, of_parts, y);
  }
  if (r.parts == 1) return;
  const int lanes_of_parts = Teams::lanes_for(r.parts);
  launch_cooperative(fold_parts<Fold, Y>, Teams::blocks_for_rows(rows, lanes_of_parts), kThreads,
                     call.stream, rows, r.parts, lanes_of_parts, fold, of_parts, y);
}

/// Type in which elements of type T are folded: int32 for one-byte types, whose results are
/// truncated.
template <class T>
using FoldValue = std::conditional_t<sizeof(T) == 1, std::int32_t, Number<T>>;

// Reductions over axes: sums, means, products, any() and all().

using internal::Add;
using internal::Multiply;

// Sum, or mean: the sum divided by the number of elements.
template <class V>
struct Sum {
  using Value = V;
  __device__ V identity() const { return V{0}; }
  template <class T>
  __device__ V of(T value, std::int64_t) const {
    return static_cast<V>(value);
  }
  __device__ V combine(V a, V b) const { return Add{}(a, b); }
  __device__ V result(V sum) const {
    if constexpr (std::is_floating_point_v<V>) {
      return is_mean ? sum / divisor : sum;
    } else {
      return sum;
    }
  }
  bool is_mean = false;
  V divisor{1};
};

template <class V>
struct Product {
  using Value = V;
  __device__ V identity() const { return V{1}; }
  template <class T>
  __device__ V of(T value, std::int64_t) const {
    return static_cast<V>(value);
  }
  __device__ V combine(V a, V b) const { return Multiply{}(a, b); }
  __device__ V result(V value) const { return value; }
};

// Fold that returns true if any element is true (kAny), or if all are (!kAny).
template <bool kAny>
struct Truth {
  using Value = int;
  __device__ int identity() const { return kAny ? 0 : 1; }
  __device__ int of(bool value, std::int64_t) const { return value ? 1 : 0; }
  __device__ int combine(int a, int b) const { return kAny ? a | b : a & b; }
  __device__ bool result(int value) const { return value != 0; }
};

std::uint32_t axes_of(const KernelCall& call) { return call.attributes_as<AxesAttributes>().axes; }

template <class T>
void sum(const KernelCall& call) {
  reduce<Sum<FoldValue<T>>, T, T>(call, axes_of(call), {});
}

template <class T>
void mean(const KernelCall& call) {
  const std::uint32_t axes = axes_of(call);
  const std::int64_t count = chosen_axes(call.inputs[0].shape, axes).count;
  reduce<Sum<FoldValue<T>>, T, T>(call, axes, {true, static_cast<FoldValue<T>>(count)});
}

template <class T>
void product(const KernelCall& call) {
  reduce<Product<FoldValue<T>>, T, T>(call, axes_of(call), {});
}

template <bool kAny>
void truth(const KernelCall& call) {
  reduce<Truth<kAny>, bool, bool>(call, axes_of(call), {});
}

// Largest and smallest elements over axes, and their positions.

// Returns the identity element of the maximum (kLargest) or of the minimum.
template <class V, bool kLargest>
__device__ constexpr V worst() {
  using Limits = std::numeric_limits<V>;
  if constexpr (Limits::has_infinity) {
    return kLargest ? -Limits::infinity() : Limits::infinity();
  } else {
    return kLargest ? Limits::lowest() : Limits::max();
  }
}

template <class V, bool kLargest>
struct Extreme {
  using Value = V;
  __device__ V identity() const { return worst<V, kLargest>(); }
  template <class T>
  __device__ V of(T value, std::int64_t) const {
    return static_cast<V>(value);
  }
  __device__ V combine(V a, V b) const {
    if constexpr (kLargest) {
      return internal::Maximum{}(a, b);
    } else {
      return internal::Minimum{}(a, b);
    }
  }
  __device__ V result(V value) const { return value; }
};

// Finds the first extreme element. As on the CPU, which compares each element with the best so far,
// a NaN in the first position wins, and other NaNs lose.
template <class V, bool kLargest>
struct ExtremePlace {
  using Value = Place<V>;
  static constexpr long long kNowhere = -1;

  __device__ Value identity() const { return {worst<V, kLargest>(), kNowhere}; }
  template <class T>
  __device__ Value of(T element, std::int64_t index) const {
    const V value = static_cast<V>(element);
    if (value != value && index > 0) return identity();
    return {value, static_cast<long long>(index)};
  }
  __device__ Value combine(Value a, Value b) const {
    if (a.index == kNowhere || b.index == kNowhere) return a.index == kNowhere ? b : a;
    if (a.value != a.value || b.value != b.value) return a.value != a.value ? a : b;
    if (a.value == b.value) return a.index < b.index ? a : b;
    return (kLargest ? a.value > b.value : a.value < b.value) ? a : b;
  }
  __device__ std::int64_t result(Value value) const {
    return value.index == kNowhere ? 0 : value.index;
  }
};

template <class T, bool kLargest>
void extreme(const KernelCall& call) {
  reduce<Extreme<FoldValue<T>, kLargest>, T, T>(call, call.attributes_as<AxesAttributes>().axes,
                                                {});
}

template <class T, bool kLargest>
void arg_extreme(const KernelCall& call) {
  const std::uint32_t axes = 1u << call.attributes_as<AxisAttributes>().axis;
  reduce<ExtremePlace<FoldValue<T>, kLargest>, T, std::int64_t>(call, axes, {});
}

template <class... Ts>
void set_numbers(KernelTable& table) {
  (table.set(OpId::kReduceSum, dtype_of<Ts>(), sum<Ts>), ...);
  (table.set(OpId::kReduceProduct, dtype_of<Ts>(), product<Ts>), ...);
  (table.set(OpId::kReduceMax, dtype_of<Ts>(), extreme<Ts, true>), ...);
  (table.set(OpId::kReduceMin, dtype_of<Ts>(), extreme<Ts, false>), ...);
  (table.set(OpId::kArgMax, dtype_of<Ts>(), arg_extreme<Ts, true>), ...);
  (table.set(OpId::kArgMin, dtype_of<Ts>(), arg_extreme<Ts, false>), ...);
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kReduceMean, dtype_of<Ts>(), mean<Ts>), ...);
}

}  // namespace

void register_reduction_kernels(KernelTable& table) {
  set_numbers<TUTTI_NUMBER_TYPES>(table);
  set_floating<TUTTI_FLOATING_TYPES>(table);
  table.set(OpId::kReduceAny, DType::kBool, truth<true>);
  table.set(OpId::kReduceAll, DType::kBool, truth<false>);
}

}  // namespace tutti::cuda
