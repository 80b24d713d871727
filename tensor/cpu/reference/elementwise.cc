// Elementwise operations and dropout, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

/// Returns the index of the element, in a tensor of shape `from`, that becomes element `index` when
/// the tensor is broadcast to shape `to`.
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

/// A broadcast input, read in output order.
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
void unary_kernel(const KernelArgs& args) {
  const std::span<const T> x = args.in<T>(0);
  const auto y = args.out<std::invoke_result_t<Function, T>>(0);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = Function{}(x[i]);
}

template <class Function, class T>
void binary_kernel(const KernelArgs& args) {
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

/// Registers one kernel for each formula and element type.
struct FormulaKernels {
  template <class Function, class... Ts>
  void unary(OpId op, ElementTypes<Ts...>) {
    (table.set(op, dtype_of<Ts>(), unary_kernel<Function, Ts>), ...);
  }
  template <class Function, class... Ts>
  void binary(OpId op, ElementTypes<Ts...>) {
    (table.set(op, dtype_of<Ts>(), binary_kernel<Function, Ts>), ...);
  }
  KernelTable& table;
};

template <class... Ts>
void set_clip_and_cast(KernelTable& table, ElementTypes<Ts...>) {
  (table.set(OpId::kClip, dtype_of<Ts>(), clip<Ts>), ...);
  (table.set(OpId::kCast, dtype_of<Ts>(), cast<Ts>), ...);
  table.set(OpId::kCast, DType::kBool, cast<bool>);
  table.set(OpId::kCast, DType::kBFloat16, cast<BFloat16>);
  table.set(OpId::kCast, DType::kFloat16, cast<Float16>);
}

/// Applies dropout with a mask that depends only on the key and the element's index.
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
  using Numbers = ElementTypes<float, double, std::int32_t, std::int64_t, std::uint8_t>;
  list_elementwise_formulas(FormulaKernels{table}, ElementTypes<float, double>(), Numbers());
  set_clip_and_cast(table, Numbers());
  table.set(OpId::kWhere, DType::kBool, where);
  table.set(OpId::kDropout, DType::kFloat32, dropout<float>);
  table.set(OpId::kDropout, DType::kFloat64, dropout<double>);
}

}  // namespace tutti::internal
