// Reductions, cumulative sums, top_k and the reversal of axes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <vector>

#include "tensor/cpu/elementwise_functions.h"
#include "tensor/cpu/ordered_fold.h"
#include "tensor/cpu/registration.h"
#include "tensor/cpu/strided_loop.h"

namespace tutti::internal {

// Reductions: the inputs of each output element are collected in row-major order and then folded.

namespace {

/// The axes of `shape` whose bits are set in `axes`, and their strides in the full tensor.
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

  /// Returns the offset, in the full tensor, of the group's element with row-major index `index`.
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

/// Calls body(output index, elements) for each output element; `elements` are its inputs.
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

// Cumulative sums, top_k and the reversal of axes.

template <class T>
void cumulative_sum(const KernelArgs& args) {
  const auto& attributes = args.attributes_as<CumulativeSumAttributes>();
  const Shape& shape = args.inputs[0].shape();
  const auto length = static_cast<std::size_t>(shape.dim(attributes.axis));
  const auto stride =
      static_cast<std::size_t>(dense_strides(shape)[static_cast<std::size_t>(attributes.axis)]);
  const auto x = args.in<T>(0);
  const auto y = args.out<T>(0);
  using Sum = std::conditional_t<std::is_floating_point_v<T>, double, T>;
  for (std::size_t first = 0; first < x.size(); first += length * stride) {
    for (std::size_t i = first; i < first + stride; ++i) {
      Sum sum{0};
      for (std::size_t step = 0; step < length; ++step) {
        const std::size_t at = i + (attributes.reverse ? length - 1 - step : step) * stride;
        const Sum next = Add{}(sum, static_cast<Sum>(x[at]));
        y[at] = static_cast<T>(attributes.exclusive ? sum : next);
        sum = next;
      }
    }
  }
}

/// Returns true if a precedes b in descending order; NaN is larger than all numbers.
template <class T>
bool is_larger(T a, T b) {
  return a > b || (a != a && b == b);
}

template <class T>
void top_k(const KernelArgs& args) {
  const auto n = static_cast<std::size_t>(args.inputs[0].shape().dim(-1));
  const auto k = static_cast<std::size_t>(args.outputs[0].shape().dim(-1));
  const auto x = args.in<T>(0);
  const auto values = args.out<T>(0);
  const auto indices = args.out<std::int64_t>(1);
  std::vector<std::int64_t> order(n);
  for (std::size_t row = 0; row * k < values.size(); ++row) {
    const T* elements = x.data() + row * n;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                      [elements](std::int64_t a, std::int64_t b) {
                        if (is_larger(elements[a], elements[b])) return true;
                        return !is_larger(elements[b], elements[a]) && a < b;
                      });
    for (std::size_t i = 0; i < k; ++i) {
      indices[row * k + i] = order[i];
      values[row * k + i] = elements[order[i]];
    }
  }
}

template <class T>
void reverse(const KernelArgs& args) {
  const std::uint32_t axes = args.attributes_as<AxesAttributes>().axes;
  const Shape& shape = args.inputs[0].shape();
  if (shape.num_elements() == 0) return;
  const Strides dense = dense_strides(shape);
  Strides backwards = dense;
  std::int64_t start = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if ((axes >> axis & 1u) == 0) continue;
    const auto at = static_cast<std::size_t>(axis);
    start += dense[at] * (shape.dim(axis) - 1);
    backwards[at] = -dense[at];
  }
  const StridedLoop<2> loop(shape, {backwards, dense});
  const T* x = args.in<T>(0).data() + start;
  T* y = args.out<T>(0).data();
  loop.for_each_run([&](const std::array<std::int64_t, 2>& offsets) {
    for (std::int64_t i = 0; i < loop.run_length(); ++i) {
      y[offsets[1] + i * loop.run_stride(1)] = x[offsets[0] + i * loop.run_stride(0)];
    }
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
  (table.set(OpId::kCumulativeSum, dtype_of<Ts>(), cumulative_sum<Ts>), ...);
  (table.set(OpId::kTopK, dtype_of<Ts>(), top_k<Ts>), ...);
  (table.set(OpId::kReverse, dtype_of<Ts>(), reverse<Ts>), ...);
}

}  // namespace

void register_reduction_kernels(KernelTable& table) {
  set_numbers<float, double, std::int32_t, std::int64_t, std::uint8_t>(table);
  table.set(OpId::kReduceMean, DType::kFloat32, mean<float>);
  table.set(OpId::kReduceMean, DType::kFloat64, mean<double>);
  table.set(OpId::kReduceAny, DType::kBool, reduce<LogicalOr, bool>);
  table.set(OpId::kReduceAll, DType::kBool, reduce<LogicalAnd, bool>);
  table.set(OpId::kReverse, DType::kBool, reverse<bool>);
}

}  // namespace tutti::internal
