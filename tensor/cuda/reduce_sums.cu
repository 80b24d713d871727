// Sums, means and products over axes; any and all.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/reduction.h"

namespace tutti::cuda {
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

template <class... Ts>
void set_numbers(KernelTable& table) {
  (table.set(OpId::kReduceSum, dtype_of<Ts>(), sum<Ts>), ...);
  (table.set(OpId::kReduceProduct, dtype_of<Ts>(), product<Ts>), ...);
}
template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kReduceMean, dtype_of<Ts>(), mean<Ts>), ...);
}

}  // namespace

void register_sum_kernels(KernelTable& table) {
  set_numbers<TUTTI_NUMBER_TYPES>(table);
  set_floating<TUTTI_FLOATING_TYPES>(table);
  table.set(OpId::kReduceAny, DType::kBool, truth<true>);
  table.set(OpId::kReduceAll, DType::kBool, truth<false>);
}

}  // namespace tutti::cuda
