// Reductions: sums, means, products, truth, extremes and where they stand.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cuda/axis_folds.h"
#include "tensor/cuda/kernels.h"

namespace tutti::cuda {

// Sums, means and products over axes; any and all.

namespace {

using internal::Add;
using internal::Multiply;

// A mean is a sum that is divided.
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

// any: whether one is true; all: whether none is false.
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

// Largest and smallest elements over axes, and where they stand.

// What loses against everything: what a maximum (minimum) of nothing is.
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

// The first of the extreme elements. As on the CPU, which compares each element with the best so
// far: a NaN at the front stays, others lose.
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
