// Elementwise operations: arithmetic, gradients of activations, comparisons, choices, conversions.
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

void register_unary(KernelTable& table) {
  set_unary<Negate, TUTTI_NUMBER_TYPES>(table, OpId::kNegate);
  set_unary<Square, TUTTI_NUMBER_TYPES>(table, OpId::kSquare);
  set_unary<Abs, TUTTI_NUMBER_TYPES>(table, OpId::kAbs);
  set_unary<Sign, TUTTI_NUMBER_TYPES>(table, OpId::kSign);
  set_unary<Relu, TUTTI_NUMBER_TYPES>(table, OpId::kRelu);
  set_unary<Exp, TUTTI_FLOATING_TYPES>(table, OpId::kExp);
  set_unary<Log, TUTTI_FLOATING_TYPES>(table, OpId::kLog);
  set_unary<Sqrt, TUTTI_FLOATING_TYPES>(table, OpId::kSqrt);
  set_unary<Rsqrt, TUTTI_FLOATING_TYPES>(table, OpId::kRsqrt);
  set_unary<Reciprocal, TUTTI_FLOATING_TYPES>(table, OpId::kReciprocal);
  set_unary<Floor, TUTTI_FLOATING_TYPES>(table, OpId::kFloor);
  set_unary<Ceil, TUTTI_FLOATING_TYPES>(table, OpId::kCeil);
  set_unary<Round, TUTTI_FLOATING_TYPES>(table, OpId::kRound);
  set_unary<Erf, TUTTI_FLOATING_TYPES>(table, OpId::kErf);
  set_unary<Log1p, TUTTI_FLOATING_TYPES>(table, OpId::kLog1p);
  set_unary<Expm1, TUTTI_FLOATING_TYPES>(table, OpId::kExpm1);
  set_unary<Sin, TUTTI_FLOATING_TYPES>(table, OpId::kSin);
  set_unary<Cos, TUTTI_FLOATING_TYPES>(table, OpId::kCos);
  set_unary<Sigmoid, TUTTI_FLOATING_TYPES>(table, OpId::kSigmoid);
  set_unary<Tanh, TUTTI_FLOATING_TYPES>(table, OpId::kTanh);
  set_unary<Softplus, TUTTI_FLOATING_TYPES>(table, OpId::kSoftplus);
  set_unary<Elu, TUTTI_FLOATING_TYPES>(table, OpId::kElu);
  set_unary<Gelu, TUTTI_FLOATING_TYPES>(table, OpId::kGelu);
  set_unary<GeluTanh, TUTTI_FLOATING_TYPES>(table, OpId::kGeluTanh);
  set_unary<LogicalNot, bool>(table, OpId::kLogicalNot);
}

void register_binary(KernelTable& table) {
  set_binary<Add, TUTTI_NUMBER_TYPES>(table, OpId::kAdd);
  set_binary<Subtract, TUTTI_NUMBER_TYPES>(table, OpId::kSubtract);
  set_binary<Multiply, TUTTI_NUMBER_TYPES>(table, OpId::kMultiply);
  set_binary<Maximum, TUTTI_NUMBER_TYPES>(table, OpId::kMaximum);
  set_binary<Minimum, TUTTI_NUMBER_TYPES>(table, OpId::kMinimum);
  set_binary<AddRelu, TUTTI_NUMBER_TYPES>(table, OpId::kAddRelu);
  set_binary<Divide, TUTTI_FLOATING_TYPES>(table, OpId::kDivide);
  set_binary<Power, TUTTI_NUMBER_TYPES>(table, OpId::kPower);
  set_binary<FloorDivide, TUTTI_NUMBER_TYPES>(table, OpId::kFloorDivide);
  set_binary<FloorMod, TUTTI_NUMBER_TYPES>(table, OpId::kFloorMod);
  set_binary<ReluGrad, TUTTI_FLOATING_TYPES>(table, OpId::kReluGrad);
  set_binary<SigmoidGrad, TUTTI_FLOATING_TYPES>(table, OpId::kSigmoidGrad);
  set_binary<TanhGrad, TUTTI_FLOATING_TYPES>(table, OpId::kTanhGrad);
  set_binary<EluGrad, TUTTI_FLOATING_TYPES>(table, OpId::kEluGrad);
  set_binary<GeluGrad, TUTTI_FLOATING_TYPES>(table, OpId::kGeluGrad);
  set_binary<GeluTanhGrad, TUTTI_FLOATING_TYPES>(table, OpId::kGeluTanhGrad);
}

void register_comparisons(KernelTable& table) {
  set_predicate<Equal, TUTTI_NUMBER_TYPES, bool>(table, OpId::kEqual);
  set_predicate<NotEqual, TUTTI_NUMBER_TYPES, bool>(table, OpId::kNotEqual);
  set_predicate<Less, TUTTI_NUMBER_TYPES>(table, OpId::kLess);
  set_predicate<LessEqual, TUTTI_NUMBER_TYPES>(table, OpId::kLessEqual);
  set_predicate<Greater, TUTTI_NUMBER_TYPES>(table, OpId::kGreater);
  set_predicate<GreaterEqual, TUTTI_NUMBER_TYPES>(table, OpId::kGreaterEqual);
  set_predicate<LogicalAnd, bool>(table, OpId::kLogicalAnd);
  set_predicate<LogicalOr, bool>(table, OpId::kLogicalOr);
  table.set(OpId::kWhere, DType::kBool, where);
}

}  // namespace

void register_elementwise_kernels(KernelTable& table) {
  register_unary(table);
  register_binary(table);
  register_comparisons(table);
  set_clip<TUTTI_NUMBER_TYPES>(table);
  set_cast<TUTTI_NUMBER_TYPES, bool>(table);
}

}  // namespace tutti::cuda
