// Parts of weights on several devices.
// SPDX-License-Identifier: Apache-2.0
#include "model/parallel/parts.h"

#include <algorithm>
#include <cstring>

#include "core/names.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {
namespace {

/// Returns columns of a matrix given by a generator, drawn a few rows at a time.
Tensor columns_of(const ValueGenerator& whole, Part part, Device device) {
  constexpr std::int64_t kRows = 64;
  const std::int64_t num_rows = whole.shape[0];
  const std::size_t element = size_of(whole.dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(whole.shape[1]) * element;
  const std::size_t part_bytes = static_cast<std::size_t>(part.count) * element;
  MutableTensor columns({num_rows, part.count}, whole.dtype, device);
  std::byte* out = columns.data();
  for (std::int64_t first = 0; first < num_rows; first += kRows) {
    const Tensor block = whole.rows(first, std::min(kRows, num_rows - first));
    const std::byte* in = block.bytes().data() + static_cast<std::size_t>(part.first) * element;
    for (std::int64_t row = 0; row < block.shape()[0]; ++row, in += row_bytes, out += part_bytes) {
      std::memcpy(out, in, part_bytes);
    }
  }
  return columns.freeze();
}

Tensor drawn(const ValueGenerator& whole, int axis, Part part, Device device) {
  const DeviceScope scope(device);
  if (axis == 0) return whole.rows(part.first, part.count);
  return columns_of(whole, part, device);
}

Tensor cut_out(const Tensor& whole, int axis, Part part) {
  std::vector<std::int64_t> begin(static_cast<std::size_t>(whole.rank()), 0);
  std::vector<std::int64_t> size(static_cast<std::size_t>(whole.rank()), -1);
  begin[static_cast<std::size_t>(axis)] = part.first;
  size[static_cast<std::size_t>(axis)] = part.count;
  return slice(whole, begin, size).copy();
}

}  // namespace

std::vector<Part> parts_of(std::string_view who, std::int64_t length, std::size_t num_parts) {
  const auto count = static_cast<std::int64_t>(num_parts);
  internal::require(count >= 1 && count <= length, who, ": expected 1 to ", length,
                    " devices, one for each part of ", length, " features, got ", count);
  std::vector<Part> parts;
  for (std::int64_t i = 0, first = 0; i < count; ++i) {
    parts.push_back({first, length / count + (i < length % count)});
    first += parts.back().count;
  }
  return parts;
}

Initializer part_initializer(const Initializer& initializer, const Shape& whole, int axis,
                             Part part) {
  return Initializer(
      initializer.name(), [=](const Shape&, const InitializerContext& context) -> Tensor {
        const Variable::Initializer of_whole = initializer.for_shape(whole);
        const bool on_cpu = context.device.type == DeviceType::kCpu;
        const Device maker = on_cpu ? context.device : Device{};
        const std::optional<ValueGenerator> generator = generator_of(of_whole, context.key);
        if (generator) return drawn(*generator, axis, part, maker).to(context.device);
        const DeviceScope scope(maker);
        return cut_out(of_whole({maker, context.key}), axis, part).to(context.device);
      });
}

Tensor canonical_sum(std::vector<Tensor> values, Device device) {
  for (Tensor& value : values) value = transfer(value, device);
  const DeviceScope scope(device);
  while (values.size() > 1) {
    std::vector<Tensor> sums;
    for (std::size_t i = 0; i < values.size(); i += 2) {
      sums.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    }
    values = std::move(sums);
  }
  return values.at(0);
}

void require_no_strategy(std::string_view who) {
  if (!has_strategy()) return;
  fail(ErrorCode::kFailedPrecondition, who, ": made in the scope of '", get_strategy().name(),
       "', which decides where its variables are; expected the options to decide it; make "
       "the model outside of strategy.scope()");
}

}  // namespace tutti::internal
