// Creation of tensors: ranges, identity matrices, zeros and ones.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/creation.h"

#include <cmath>

#include "core/names.h"
#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

using namespace internal;

/// Returns value(0), value(1), ... of type `Number`, converted to `dtype` as by cast().
template <class Number, class Function>
Tensor counted(std::int64_t count, DType dtype, Device device, Function value) {
  if (const auto traced = traced_tensor({{count}, dtype}, device)) return *traced;
  MutableTensor numbers({count}, dtype_of<Number>(), Device{});
  std::int64_t i = 0;
  for (Number& number : numbers.span<Number>()) number = value(i++);
  return cast(numbers.freeze(), dtype).to(device);
}

void require_step(bool is_nonzero) {
  if (is_nonzero) return;
  fail(ErrorCode::kInvalidArgument, "arange: expected a nonzero step, got 0");
}

void require_count(const char* name, std::int64_t count) {
  if (count >= 0) return;
  fail(ErrorCode::kInvalidArgument, name, ": expected a size >= 0, got ", count);
}

}  // namespace

Tensor range_of(std::int64_t start, std::int64_t stop, std::int64_t step, DType dtype,
                Device device) {
  require_step(step != 0);
  // The distance between two int64 values may need all 64 bits, so it is computed as an unsigned
  // number.
  const std::int64_t low = step > 0 ? start : stop, high = step > 0 ? stop : start;
  const std::uint64_t distance = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const std::uint64_t stride = step > 0 ? static_cast<std::uint64_t>(step)
                                        : std::uint64_t{0} - static_cast<std::uint64_t>(step);
  const std::uint64_t count = low < high ? (distance - 1) / stride + 1 : 0;
  constexpr std::uint64_t kMostElements = std::uint64_t{1} << 48;
  internal::require(count <= kMostElements, "arange: expected at most 2^48 elements, got start ",
                    start, ", stop ", stop, " and step ", step);
  return counted<std::int64_t>(static_cast<std::int64_t>(count), dtype, device, [=](auto i) {
    const auto offset = static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(step);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(start) + offset);
  });
}

Tensor range_of(double start, double stop, double step, DType dtype, Device device) {
  require_step(step != 0.0);
  const double steps = std::ceil((stop - start) / step);
  internal::require(std::isfinite(steps) && steps <= 0x1p53,
                    "arange: expected finite bounds and at most 2^53 elements, ", "got start ",
                    start, ", stop ", stop, " and step ", step);
  const auto count = static_cast<std::int64_t>(std::max(steps, 0.0));
  return counted<double>(count, dtype, device,
                         [=](auto i) { return start + static_cast<double>(i) * step; });
}

Tensor linspace(double start, double stop, std::int64_t count, DType dtype, Device device) {
  require_count("linspace", count);
  const double step = count > 1 ? (stop - start) / static_cast<double>(count - 1) : 0.0;
  return counted<double>(count, dtype, device, [=](auto i) {
    return i > 0 && i == count - 1 ? stop : start + static_cast<double>(i) * step;
  });
}

Tensor eye(std::int64_t rows, std::int64_t columns, DType dtype, Device device) {
  require_count("eye", rows);
  if (columns < 0) columns = rows;
  const auto on_diagonal = [=](auto i) { return i / columns == i % columns ? 1.0 : 0.0; };
  return counted<double>(rows * columns, dtype, device, on_diagonal)
      .detached_reshape({rows, columns});
}

Tensor zeros_like(const Operand& x) {
  const Tensor& like = defined(OpId::kStopGradient, x);
  return Tensor::zeros(like.shape(), like.dtype(), device_beside(like));
}

Tensor ones_like(const Operand& x) {
  const Tensor& like = defined(OpId::kStopGradient, x);
  return Tensor::ones(like.shape(), like.dtype(), device_beside(like));
}

}  // namespace tutti
