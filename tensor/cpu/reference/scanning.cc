// Running sums, the largest elements, and axes turned round.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <vector>

#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/cpu/strided_loop.h"

namespace tutti::internal {
namespace {

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

/// Whether a comes before b among the largest; NaN is larger than all numbers.
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
void set_scans(KernelTable& table) {
  (table.set(OpId::kCumulativeSum, dtype_of<Ts>(), cumulative_sum<Ts>), ...);
  (table.set(OpId::kTopK, dtype_of<Ts>(), top_k<Ts>), ...);
  (table.set(OpId::kReverse, dtype_of<Ts>(), reverse<Ts>), ...);
}

}  // namespace

void register_scanning_kernels(KernelTable& table) {
  set_scans<float, double, std::int32_t, std::int64_t, std::uint8_t>(table);
  table.set(OpId::kReverse, DType::kBool, reverse<bool>);
}

}  // namespace tutti::internal
