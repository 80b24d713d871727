// Conversions between types, and clipping.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/map.h"

namespace tutti::cuda {
namespace {

using internal::converted;

// To a 16-bit type: element() rounds, once, whatever the number's type.
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

template <class... Ts>
void set_clip(KernelTable& table) {
  (table.set(OpId::kClip, dtype_of<Ts>(), clip<Ts>), ...);
}
template <class... Ts>
void set_cast(KernelTable& table) {
  (table.set(OpId::kCast, dtype_of<Ts>(), cast<Ts>), ...);
}

}  // namespace

void register_cast_kernels(KernelTable& table) {
  set_clip<TUTTI_NUMBER_TYPES>(table);
  set_cast<TUTTI_NUMBER_TYPES, bool>(table);
}

}  // namespace tutti::cuda
