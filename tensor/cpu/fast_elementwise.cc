// Elementwise kernels that the compiler vectorizes, including casts and dropout.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cpu/registration.h"
#include "tensor/cpu/strided_loop.h"
#include "tensor/cpu/vectorized.h"
#include "tensor/half_conversion.h"

namespace tutti::internal {

// Elementwise operations on floats, in long runs that the compiler turns into vector instructions.
//
// Broadcasting is reduced to runs in which each input either advances by one element or repeats one
// element. Two inputs have three such combinations, each with its own loop. The formulas are those
// of the reference kernels, so results are bit-identical.

namespace {

template <class Function, class T>
void unary(const KernelArgs& args) {
  using Result = std::invoke_result_t<Function, T>;
  const T* x = args.in<T>(0).data();
  Result* y = args.out<Result>(0).data();
  const std::int64_t count = args.outputs[0].num_elements();
  vectorized([=]() __attribute__((always_inline)) {
    const T* __restrict in = x;
    Result* __restrict out = y;
    for (std::int64_t i = 0; i < count; ++i) out[i] = Function{}(in[i]);
  });
}

/// Computes `count` elements; an input with stride 0 supplies one value for all elements.
template <class Function, class T, class Result>
[[gnu::always_inline]] inline void binary_run(const T* __restrict a, std::int64_t a_stride,
                                              const T* __restrict b, std::int64_t b_stride,
                                              Result* __restrict y, std::int64_t count) {
  if (a_stride == b_stride) {  // both 1, or both 0 because count is 1
    for (std::int64_t i = 0; i < count; ++i) y[i] = Function{}(a[i], b[i]);
  } else if (b_stride == 0) {
    const T value = *b;
    for (std::int64_t i = 0; i < count; ++i) y[i] = Function{}(a[i], value);
  } else {
    const T value = *a;
    for (std::int64_t i = 0; i < count; ++i) y[i] = Function{}(value, b[i]);
  }
}

template <class Function, class T>
void binary(const KernelArgs& args) {
  using Result = std::invoke_result_t<Function, T, T>;
  const Shape& shape = args.outputs[0].shape();
  const StridedLoop<3> loop(
      shape, {broadcast_strides(args.inputs[0].shape(), shape),
              broadcast_strides(args.inputs[1].shape(), shape), dense_strides(shape)});
  const T* a = args.in<T>(0).data();
  const T* b = args.in<T>(1).data();
  Result* y = args.out<Result>(0).data();
  vectorized([&]() __attribute__((always_inline)) {
    const std::int64_t a_stride = loop.run_stride(0);
    const std::int64_t b_stride = loop.run_stride(1);
    loop.for_each_run([&](const std::array<std::int64_t, 3>& offsets)
                          __attribute__((always_inline)) {
                            binary_run<Function>(a + offsets[0], a_stride, b + offsets[1], b_stride,
                                                 y + offsets[2], loop.run_length());
                          });
  });
}

/// Reads both values for every element to avoid a branch.
template <std::int64_t kAStride, std::int64_t kBStride, class T>
[[gnu::always_inline]] inline void where_run(const bool* __restrict condition,
                                             const T* __restrict a, const T* __restrict b,
                                             T* __restrict y, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T first = a[i * kAStride];
    const T second = b[i * kBStride];
    y[i] = condition[i] ? first : second;
  }
}

template <class T>
void where_typed(const KernelArgs& args) {
  const Shape& shape = args.outputs[0].shape();
  const StridedLoop<4> loop(
      shape, {broadcast_strides(args.inputs[0].shape(), shape),
              broadcast_strides(args.inputs[1].shape(), shape),
              broadcast_strides(args.inputs[2].shape(), shape), dense_strides(shape)});
  const bool* condition = args.in<bool>(0).data();
  const T* a = args.in<T>(1).data();
  const T* b = args.in<T>(2).data();
  T* y = args.out<T>(0).data();
  const std::int64_t count = loop.run_length();
  const std::int64_t c_stride = loop.run_stride(0);
  const std::int64_t a_stride = loop.run_stride(1);
  const std::int64_t b_stride = loop.run_stride(2);
  vectorized([&]() __attribute__((always_inline)) {
    loop.for_each_run([&](const std::array<std::int64_t, 4>& offsets)
                          __attribute__((always_inline)) {
                            const bool* c = condition + offsets[0];
                            const T* first = a + offsets[1];
                            const T* second = b + offsets[2];
                            T* out = y + offsets[3];
                            if (c_stride == 0) {  // one condition for the whole run
                              const T* from = *c ? first : second;
                              const std::int64_t stride = *c ? a_stride : b_stride;
                              for (std::int64_t i = 0; i < count; ++i) out[i] = from[i * stride];
                            } else if (a_stride == 1 && b_stride == 1) {
                              where_run<1, 1>(c, first, second, out, count);
                            } else if (a_stride == 1) {
                              where_run<1, 0>(c, first, second, out, count);
                            } else if (b_stride == 1) {
                              where_run<0, 1>(c, first, second, out, count);
                            } else {
                              where_run<0, 0>(c, first, second, out, count);
                            }
                          });
  });
}

void where(const KernelArgs& args) {
  visit_dtype(args.outputs[0].dtype(), [&]<class T>() { where_typed<T>(args); });
}

}  // namespace

// Fused activations, applied to whole results.

void activate(FusedActivation activation, std::span<float> values) {
  if (activation == FusedActivation::kNone) return;
  if (activation == FusedActivation::kRelu) {
    vectorized([&]() __attribute__((always_inline)) {
      for (float& value : values) value = value <= 0.0f ? 0.0f : value;
    });
    return;
  }
  vectorized([&]() __attribute__((always_inline)) {
    if (activation == FusedActivation::kSigmoid) {
      for (float& value : values) value = Sigmoid{}(value);
    } else {
      for (float& value : values) value = Tanh{}(value);
    }
  });
}

// Casts between float32 and the 16-bit types; reference kernels perform all other casts.

namespace {

void cast(const KernelArgs& args) {
  const Tensor& from = args.inputs[0];
  const MutableTensor& to = args.outputs[0];
  const auto count = static_cast<std::size_t>(from.num_elements());
  if (from.dtype() == DType::kFloat32 && is_half(to.dtype())) {
    narrow(args.in<float>(0).data(), to.dtype(), to.data(), count);
  } else if (is_half(from.dtype()) && to.dtype() == DType::kFloat32) {
    widen(from.dtype(), from.bytes().data(), args.out<float>(0).data(), count);
  } else {
    reference_kernels().find(OpId::kCast, from.dtype())(args);
  }
}

// Dropout on float tensors, without a branch per element.

void dropout(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<DropoutAttributes>();
  const RandomStream stream(attributes.key);
  const float rate = static_cast<float>(attributes.rate);
  const float scale = static_cast<float>(1.0 / (1.0 - attributes.rate));
  const auto x = args.in<float>(0);
  const auto y = args.out<float>(0);
  std::array<float, 1024> draws;
  for (std::size_t first = 0; first < x.size(); first += draws.size()) {
    const std::size_t count = std::min(draws.size(), x.size() - first);
    stream.fill_uniform(first, std::span(draws).first(count));
    const float* __restrict from = x.data() + first;
    float* __restrict to = y.data() + first;
    vectorized([&]() __attribute__((always_inline)) {
      for (std::size_t i = 0; i < count; ++i) {
        // Uses a mask instead of a product, so that a dropped infinity becomes 0.
        const std::int32_t kept = -static_cast<std::int32_t>(draws[i] >= rate);
        to[i] = std::bit_cast<float>(kept & std::bit_cast<std::int32_t>(from[i] * scale));
      }
    });
  }
}

template <class Function>
void set_unary(KernelTable& table, OpId op) {
  table.set(op, DType::kFloat32, unary<Function, float>);
}

template <class Function>
void set_binary(KernelTable& table, OpId op) {
  table.set(op, DType::kFloat32, binary<Function, float>);
  table.set(op, DType::kFloat64, binary<Function, double>);
}

template <class Function>
void set_comparison(KernelTable& table, OpId op) {
  table.set(op, DType::kFloat32, binary<Function, float>);
}

}  // namespace

void register_fast_elementwise_kernels(KernelTable& table) {
  set_unary<Negate>(table, OpId::kNegate);
  set_unary<Sqrt>(table, OpId::kSqrt);
  set_unary<Rsqrt>(table, OpId::kRsqrt);
  set_unary<Square>(table, OpId::kSquare);
  set_unary<Abs>(table, OpId::kAbs);
  set_unary<Reciprocal>(table, OpId::kReciprocal);
  set_unary<Relu>(table, OpId::kRelu);
  set_unary<Exp>(table, OpId::kExp);
  set_unary<Sigmoid>(table, OpId::kSigmoid);
  set_unary<Tanh>(table, OpId::kTanh);
  set_unary<GeluTanh>(table, OpId::kGeluTanh);

  set_binary<Add>(table, OpId::kAdd);
  set_binary<Subtract>(table, OpId::kSubtract);
  set_binary<Multiply>(table, OpId::kMultiply);
  set_binary<Divide>(table, OpId::kDivide);
  set_binary<Maximum>(table, OpId::kMaximum);
  set_binary<Minimum>(table, OpId::kMinimum);
  set_binary<Power>(table, OpId::kPower);
  set_binary<AddRelu>(table, OpId::kAddRelu);
  set_binary<ReluGrad>(table, OpId::kReluGrad);
  set_binary<SigmoidGrad>(table, OpId::kSigmoidGrad);
  set_binary<TanhGrad>(table, OpId::kTanhGrad);
  set_binary<EluGrad>(table, OpId::kEluGrad);
  table.set(OpId::kGeluTanhGrad, DType::kFloat32, binary<GeluTanhGrad, float>);

  set_comparison<Equal>(table, OpId::kEqual);
  set_comparison<NotEqual>(table, OpId::kNotEqual);
  set_comparison<Less>(table, OpId::kLess);
  set_comparison<LessEqual>(table, OpId::kLessEqual);
  set_comparison<Greater>(table, OpId::kGreater);
  set_comparison<GreaterEqual>(table, OpId::kGreaterEqual);
  table.set(OpId::kWhere, DType::kBool, where);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    table.set(OpId::kCast, dtype, cast);
  }
  table.set(OpId::kDropout, DType::kFloat32, dropout);
}

}  // namespace tutti::internal
