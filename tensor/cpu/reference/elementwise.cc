// Elementwise operations and dropout, one element after the other.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

/// Where element `index` of a tensor of shape `to` comes from in a tensor of shape `from` that
/// broadcasts to it.
std::size_t broadcast_index(std::size_t index, const Shape& from, const Shape& to) {
  std::size_t result = 0;
  std::size_t stride = 1;
  for (int axis = to.rank() - 1, source = from.rank() - 1; source >= 0; --axis, --source) {
    const auto size = static_cast<std::size_t>(to.begin()[axis]);
    const auto source_size = static_cast<std::size_t>(from.begin()[source]);
    if (source_size != 1) result += index % size * stride;
    stride *= source_size;
    index /= size;
  }
  return result;
}

/// Iterates over a broadcast input in the order of the output.
template <class T>
class BroadcastInput {
 public:
  BroadcastInput(const KernelArgs& args, std::size_t i)
      : elements_(args.in<T>(i)),
        from_(args.inputs[i].shape()),
        to_(args.outputs[0].shape()),
        is_whole_(from_ == to_) {}
  T operator[](std::size_t index) const {
    return elements_[is_whole_ ? index : broadcast_index(index, from_, to_)];
  }

 private:
  std::span<const T> elements_;
  const Shape& from_;
  const Shape& to_;
  bool is_whole_;
};

template <class Function, class T>
void unary(const KernelArgs& args) {
  const std::span<const T> x = args.in<T>(0);
  const auto y = args.out<std::invoke_result_t<Function, T>>(0);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = Function{}(x[i]);
}

template <class Function, class T>
void binary(const KernelArgs& args) {
  const BroadcastInput<T> a(args, 0);
  const BroadcastInput<T> b(args, 1);
  const auto y = args.out<std::invoke_result_t<Function, T, T>>(0);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = Function{}(a[i], b[i]);
}

template <class T>
void clip(const KernelArgs& args) {
  const auto& bounds = args.attributes_as<ClipAttributes>();
  const bool is_integer = std::is_integral_v<T>;
  const T low = converted<T>(is_integer ? std::ceil(bounds.low) : bounds.low);
  const T high = converted<T>(is_integer ? std::floor(bounds.high) : bounds.high);
  const std::span<const T> x = args.in<T>(0);
  const std::span<T> y = args.out<T>(0);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}

template <class From>
void cast(const KernelArgs& args) {
  const std::span<const From> x = args.in<From>(0);
  visit_dtype(args.attributes_as<CastAttributes>().to, [&]<class To>() {
    const std::span<To> y = args.out<To>(0);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = converted<To>(x[i]);
  });
}

void where(const KernelArgs& args) {
  visit_dtype(args.outputs[0].dtype(), [&]<class T>() {
    const BroadcastInput<bool> condition(args, 0);
    const BroadcastInput<T> a(args, 1);
    const BroadcastInput<T> b(args, 2);
    const std::span<T> y = args.out<T>(0);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = condition[i] ? a[i] : b[i];
  });
}

template <class Function, class... Ts>
void set_unary(KernelTable& table, OpId op) {
  (table.set(op, dtype_of<Ts>(), unary<Function, Ts>), ...);
}

template <class Function, class... Ts>
void set_binary(KernelTable& table, OpId op) {
  (table.set(op, dtype_of<Ts>(), binary<Function, Ts>), ...);
}

template <class... Ts>
void set_clip_and_cast(KernelTable& table) {
  (table.set(OpId::kClip, dtype_of<Ts>(), clip<Ts>), ...);
  (table.set(OpId::kCast, dtype_of<Ts>(), cast<Ts>), ...);
  table.set(OpId::kCast, DType::kBool, cast<bool>);
}

/// Operations on floating types alone.
template <class Function>
void set_floating_unary(KernelTable& table, OpId op) {
  set_unary<Function, float, double>(table, op);
}
template <class Function>
void set_floating_binary(KernelTable& table, OpId op) {
  set_binary<Function, float, double>(table, op);
}

/// Operations on all types but bool.
template <class Function>
void set_number_unary(KernelTable& table, OpId op) {
  set_unary<Function, float, double, std::int32_t, std::int64_t, std::uint8_t>(table, op);
}
template <class Function>
void set_number_binary(KernelTable& table, OpId op) {
  set_binary<Function, float, double, std::int32_t, std::int64_t, std::uint8_t>(table, op);
}

void register_unary(KernelTable& table) {
  set_number_unary<Negate>(table, OpId::kNegate);
  set_number_unary<Square>(table, OpId::kSquare);
  set_number_unary<Abs>(table, OpId::kAbs);
  set_number_unary<Sign>(table, OpId::kSign);
  set_number_unary<Relu>(table, OpId::kRelu);
  set_floating_unary<Exp>(table, OpId::kExp);
  set_floating_unary<Log>(table, OpId::kLog);
  set_floating_unary<Sqrt>(table, OpId::kSqrt);
  set_floating_unary<Rsqrt>(table, OpId::kRsqrt);
  set_floating_unary<Reciprocal>(table, OpId::kReciprocal);
  set_floating_unary<Floor>(table, OpId::kFloor);
  set_floating_unary<Ceil>(table, OpId::kCeil);
  set_floating_unary<Round>(table, OpId::kRound);
  set_floating_unary<Erf>(table, OpId::kErf);
  set_floating_unary<Log1p>(table, OpId::kLog1p);
  set_floating_unary<Expm1>(table, OpId::kExpm1);
  set_floating_unary<Sin>(table, OpId::kSin);
  set_floating_unary<Cos>(table, OpId::kCos);
  set_floating_unary<Sigmoid>(table, OpId::kSigmoid);
  set_floating_unary<Tanh>(table, OpId::kTanh);
  set_floating_unary<Softplus>(table, OpId::kSoftplus);
  set_floating_unary<Elu>(table, OpId::kElu);
  set_floating_unary<Gelu>(table, OpId::kGelu);
  set_floating_unary<GeluTanh>(table, OpId::kGeluTanh);
  set_unary<LogicalNot, bool>(table, OpId::kLogicalNot);
  set_clip_and_cast<float, double, std::int32_t, std::int64_t, std::uint8_t>(table);
  table.set(OpId::kCast, DType::kBFloat16, cast<BFloat16>);
  table.set(OpId::kCast, DType::kFloat16, cast<Float16>);
}

void register_binary(KernelTable& table) {
  set_number_binary<Add>(table, OpId::kAdd);
  set_number_binary<Subtract>(table, OpId::kSubtract);
  set_number_binary<Multiply>(table, OpId::kMultiply);
  set_number_binary<Maximum>(table, OpId::kMaximum);
  set_number_binary<Minimum>(table, OpId::kMinimum);
  set_number_binary<AddRelu>(table, OpId::kAddRelu);
  set_floating_binary<Divide>(table, OpId::kDivide);
  set_number_binary<Power>(table, OpId::kPower);
  set_number_binary<FloorDivide>(table, OpId::kFloorDivide);
  set_number_binary<FloorMod>(table, OpId::kFloorMod);
  set_number_binary<Equal>(table, OpId::kEqual);
  set_number_binary<NotEqual>(table, OpId::kNotEqual);
  set_binary<Equal, bool>(table, OpId::kEqual);
  set_binary<NotEqual, bool>(table, OpId::kNotEqual);
  set_number_binary<Less>(table, OpId::kLess);
  set_number_binary<LessEqual>(table, OpId::kLessEqual);
  set_number_binary<Greater>(table, OpId::kGreater);
  set_number_binary<GreaterEqual>(table, OpId::kGreaterEqual);
  set_binary<LogicalAnd, bool>(table, OpId::kLogicalAnd);
  set_binary<LogicalOr, bool>(table, OpId::kLogicalOr);
}

void register_gradients(KernelTable& table) {
  set_floating_binary<ReluGrad>(table, OpId::kReluGrad);
  set_floating_binary<SigmoidGrad>(table, OpId::kSigmoidGrad);
  set_floating_binary<TanhGrad>(table, OpId::kTanhGrad);
  set_floating_binary<EluGrad>(table, OpId::kEluGrad);
  set_floating_binary<GeluGrad>(table, OpId::kGeluGrad);
  set_floating_binary<GeluTanhGrad>(table, OpId::kGeluTanhGrad);
}

/// The mask is a function of the key and the element's index.
template <class T>
void dropout(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<DropoutAttributes>();
  const RandomStream stream(attributes.key);
  const float rate = static_cast<float>(attributes.rate);
  const T scale = static_cast<T>(1.0 / (1.0 - attributes.rate));
  const auto x = args.in<T>(0);
  const auto y = args.out<T>(0);
  std::array<float, 1024> draws;
  for (std::size_t first = 0; first < x.size(); first += draws.size()) {
    const std::size_t count = std::min(draws.size(), x.size() - first);
    stream.fill_uniform(first, std::span(draws).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      y[first + i] = draws[i] < rate ? T{0} : x[first + i] * scale;
    }
  }
}

}  // namespace

void register_elementwise_kernels(KernelTable& table) {
  register_unary(table);
  register_binary(table);
  register_gradients(table);
  table.set(OpId::kWhere, DType::kBool, where);
  table.set(OpId::kDropout, DType::kFloat32, dropout<float>);
  table.set(OpId::kDropout, DType::kFloat64, dropout<double>);
}

}  // namespace tutti::internal
