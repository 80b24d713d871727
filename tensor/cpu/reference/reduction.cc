// Reductions: each output element collects its inputs in row-major order and folds them.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "tutti/tensor/cpu/ordered_fold.h"
#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/strided_loop.h"

namespace tutti::internal {
namespace {

/// The axes of `shape` with (or without) their bit in `axes`, and their strides in the whole.
struct AxisGroup {
  AxisGroup(const Shape& shape, std::uint32_t axes) {
    const Strides dense = dense_strides(shape);
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (!(axes >> axis & 1u)) continue;
      sizes.push_back(shape.begin()[axis]);
      strides.push_back(dense[static_cast<std::size_t>(axis)]);
    }
  }

  std::int64_t num_elements() const {
    std::int64_t count = 1;
    for (std::int64_t size : sizes) count *= size;
    return count;
  }

  /// Where element `index` of the group, in row-major order, stands in the whole.
  std::int64_t offset(std::int64_t index) const {
    std::int64_t result = 0;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      result += index % sizes[i] * strides[i];
      index /= sizes[i];
    }
    return result;
  }

  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

/// Calls body(output index, elements) for each output element.
template <class T, class Body>
void for_each_group(const KernelArgs& args, std::uint32_t axes, const Body& body) {
  const AxisGroup reduced(args.inputs[0].shape(), axes);
  const AxisGroup kept(args.inputs[0].shape(), ~axes);
  const T* x = args.in<T>(0).data();
  const auto count = static_cast<std::size_t>(reduced.num_elements());
  const auto elements = std::make_unique<T[]>(count);
  for (std::int64_t output = 0; output < args.outputs[0].num_elements(); ++output) {
    const T* start = x + kept.offset(output);
    for (std::size_t i = 0; i < count; ++i) {
      elements[i] = start[reduced.offset(static_cast<std::int64_t>(i))];
    }
    body(static_cast<std::size_t>(output), std::span<const T>(elements.get(), count));
  }
}

template <class Function, class T>
void reduce(const KernelArgs& args) {
  const std::span<T> y = args.out<T>(0);
  for_each_group<T>(args, args.attributes_as<AxesAttributes>().axes,
                    [&](std::size_t output, std::span<const T> elements) {
                      y[output] = ordered_fold<Function>(
                          elements.data(), static_cast<std::int64_t>(elements.size()));
                    });
}

template <class T>
void mean(const KernelArgs& args) {
  const std::span<T> y = args.out<T>(0);
  for_each_group<T>(args, args.attributes_as<AxesAttributes>().axes,
                    [&](std::size_t output, std::span<const T> elements) {
                      y[output] = ordered_fold<Add>(elements.data(),
                                                    static_cast<std::int64_t>(elements.size())) /
                                  static_cast<T>(elements.size());
                    });
}

template <class Wins, class T>
void arg_extreme(const KernelArgs& args) {
  const std::span<std::int64_t> y = args.out<std::int64_t>(0);
  const int axis = args.attributes_as<AxisAttributes>().axis;
  for_each_group<T>(args, 1u << axis, [&](std::size_t output, std::span<const T> elements) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < elements.size(); ++i) {
      if (Wins{}(elements[i], elements[best])) best = i;
    }
    y[output] = static_cast<std::int64_t>(best);
  });
}

template <class... Ts>
void set_numbers(KernelTable& table) {
  (table.set(OpId::kReduceSum, dtype_of<Ts>(), reduce<Add, Ts>), ...);
  (table.set(OpId::kReduceProduct, dtype_of<Ts>(), reduce<Multiply, Ts>), ...);
  (table.set(OpId::kReduceMax, dtype_of<Ts>(), reduce<Maximum, Ts>), ...);
  (table.set(OpId::kReduceMin, dtype_of<Ts>(), reduce<Minimum, Ts>), ...);
  (table.set(OpId::kArgMax, dtype_of<Ts>(), arg_extreme<Greater, Ts>), ...);
  (table.set(OpId::kArgMin, dtype_of<Ts>(), arg_extreme<Less, Ts>), ...);
}

}  // namespace

void register_reduction_kernels(KernelTable& table) {
  set_numbers<float, double, std::int32_t, std::int64_t, std::uint8_t>(table);
  table.set(OpId::kReduceMean, DType::kFloat32, mean<float>);
  table.set(OpId::kReduceMean, DType::kFloat64, mean<double>);
  table.set(OpId::kReduceAny, DType::kBool, reduce<LogicalOr, bool>);
  table.set(OpId::kReduceAll, DType::kBool, reduce<LogicalAnd, bool>);
}

}  // namespace tutti::internal
