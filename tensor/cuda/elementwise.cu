// Elementwise operations: arithmetic, gradients of activations, comparisons, where, clip and casts.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/map.h"

namespace tutti::cuda {

using namespace internal;  // the formulas

namespace {

struct Choose {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

void where(const KernelCall& call) {
  visit_bytes(size_of(call.outputs[0].dtype), [&]<class T>() {
    if constexpr (!std::is_same_v<T, Bytes16>) {
      map<3>(Choose{}, call.outputs[0].shape, call.out<T>(0),
             {call.inputs[0].shape, call.inputs[1].shape, call.inputs[2].shape}, call.stream,
             call.in<bool>(0), call.in<T>(1), call.in<T>(2));
    }
  });
}

// Leaves rounding to a 16-bit type to element(), so that each value is rounded only once.
template <class To>
struct Cast {
  template <class From>
  __device__ auto operator()(From value) const {
    if constexpr (Half<To>) {
      return value;
    } else {
      return converted<To>(value);
    }
  }
};

template <class From>
void cast(const KernelCall& call) {
  const Shape flat{call.outputs[0].shape.num_elements()};
  visit_dtype(call.outputs[0].dtype, [&]<class To>() {
    map<1>(Cast<To>{}, flat, call.out<To>(0), {flat}, call.stream, call.in<From>(0));
  });
}

template <class T>
struct Clip {
  __device__ T operator()(T x) const { return x < low ? low : x > high ? high : x; }
  T low, high;
};

template <class T>
void clip(const KernelCall& call) {
  using N = Number<T>;
  const auto& bounds = call.attributes_as<ClipAttributes>();
  const bool is_integer = std::is_integral_v<T>;
  const Clip<N> function{converted<N>(is_integer ? std::ceil(bounds.low) : bounds.low),
                         converted<N>(is_integer ? std::floor(bounds.high) : bounds.high)};
  const Shape flat{call.outputs[0].shape.num_elements()};
  map<1>(function, flat, call.out<T>(0), {flat}, call.stream, call.in<T>(0));
}

/// Registers one kernel for each formula and element type.
struct FormulaKernels {
  template <class F, class... Ts>
  void unary(OpId op, ElementTypes<Ts...>) {
    (table.set(op, dtype_of<Ts>(), unary_kernel<F, Ts>), ...);
  }
  template <class F, class... Ts>
  void binary(OpId op, ElementTypes<Ts...>) {
    (table.set(op, dtype_of<Ts>(), binary_kernel<F, Ts>), ...);
  }
  KernelTable& table;
};

template <class... Ts>
void set_clip(KernelTable& table) {
  (table.set(OpId::kClip, dtype_of<Ts>(), clip<Ts>), ...);
}
template <class... Ts>
void set_cast(KernelTable& table) {
  (table.set(OpId::kCast, dtype_of<Ts>(), cast<Ts>), ...);
}

}  // namespace

void register_elementwise_kernels(KernelTable& table) {
  list_elementwise_formulas(FormulaKernels{table}, ElementTypes<TUTTI_FLOATING_TYPES>(),
                            ElementTypes<TUTTI_NUMBER_TYPES>());
  table.set(OpId::kWhere, DType::kBool, where);
  set_clip<TUTTI_NUMBER_TYPES>(table);
  set_cast<TUTTI_NUMBER_TYPES, bool>(table);
}

}  // namespace tutti::cuda
