// Largest and smallest elements over axes, and where they stand.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/reduction.h"

namespace tutti::cuda {
namespace {

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
  (table.set(OpId::kReduceMax, dtype_of<Ts>(), extreme<Ts, true>), ...);
  (table.set(OpId::kReduceMin, dtype_of<Ts>(), extreme<Ts, false>), ...);
  (table.set(OpId::kArgMax, dtype_of<Ts>(), arg_extreme<Ts, true>), ...);
  (table.set(OpId::kArgMin, dtype_of<Ts>(), arg_extreme<Ts, false>), ...);
}

}  // namespace

void register_extreme_kernels(KernelTable& table) { set_numbers<TUTTI_NUMBER_TYPES>(table); }

}  // namespace tutti::cuda
