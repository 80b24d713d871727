// Implements ValueGenerator, which generates the elements in a range of a variable's rows.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/value_generator.h"

#include <algorithm>

#include "core/names.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {

using Kind = ValueGenerator::Kind;

/// Initializer that generator_of() recognizes.
struct GeneratedInitializer {
  ValueGenerator generator;
  Tensor operator()(const InitializerContext& context) const;
};

Tensor identity_rows(const ValueGenerator& generator, std::int64_t first, std::int64_t count) {
  const std::int64_t columns = generator.shape[1];
  std::vector<float> values(static_cast<std::size_t>(count * columns), 0.0f);
  for (std::int64_t row = first; row < std::min(first + count, columns); ++row) {
    values[static_cast<std::size_t>((row - first) * columns + row)] =
        static_cast<float>(generator.a);
  }
  return Tensor::from({count, columns}, values);
}

/// Returns the variable's elements that start at index `first` and fill `shape`, generated as
/// float32.
Tensor elements(const ValueGenerator& g, std::uint64_t first, const Shape& shape) {
  switch (g.kind) {
    case Kind::kConstant:
      return Tensor::full(shape, g.a);
    case Kind::kUniform:
      return random_uniform_from(first, shape, g.key, g.a, g.b);
    case Kind::kNormal:
      return random_normal_from(first, shape, g.key, g.a, g.b);
    case Kind::kTruncatedNormal:
      return truncated_normal_from(first, shape, g.key, g.a, g.b);
    case Kind::kIdentity:
      break;
  }
  fail(ErrorCode::kInvalidArgument,
       "ValueGenerator: expected kConstant, kUniform, kNormal or kTruncatedNormal, got kind ",
       static_cast<int>(g.kind));
}

void check_rows(const ValueGenerator& generator, std::int64_t first, std::int64_t count) {
  internal::require(generator.kind != Kind::kIdentity || generator.shape.rank() == 2,
                    "initializers::identity: expected a matrix, got shape ", generator.shape);
  const std::int64_t num_rows = generator.shape.rank() == 0 ? 1 : generator.shape[0];
  if (first >= 0 && count >= 0 && first <= num_rows && count <= num_rows - first) return;
  fail(ErrorCode::kOutOfRange, "ValueGenerator::rows: expected rows within shape ", generator.shape,
       ", got ", count, " rows starting at row ", first);
}

Tensor GeneratedInitializer::operator()(const InitializerContext& context) const {
  ValueGenerator whole = generator;
  whole.key = context.key;
  if (whole.kind == Kind::kConstant) {  // filled on the device, so nothing is copied to a GPU
    return cast(Tensor::full(whole.shape, whole.a, DType::kFloat32, context.device), whole.dtype);
  }
  // Generates on the CPU and then copies, so that no other device needs memory for temporary
  // values.
  const bool on_cpu = context.device.type == DeviceType::kCpu;
  const DeviceScope scope(on_cpu ? context.device : Device{});
  return whole.rows(0, whole.shape.rank() == 0 ? 1 : whole.shape[0]).to(context.device);
}

}  // namespace

Tensor ValueGenerator::rows(std::int64_t first, std::int64_t count) const {
  check_rows(*this, first, count);
  if (kind == Kind::kIdentity) return cast(identity_rows(*this, first, count), dtype);
  if (shape.rank() == 0) return cast(elements(*this, 0, count == 0 ? Shape{0} : shape), dtype);
  const std::int64_t row_size = shape.without_axis(0).num_elements();
  return cast(
      elements(*this, static_cast<std::uint64_t>(first * row_size), shape.with_dim(0, count)),
      dtype);
}

Variable::Initializer generated_initializer(ValueGenerator without_key) {
  return GeneratedInitializer{std::move(without_key)};
}

std::optional<ValueGenerator> generator_of(const Variable::Initializer& initializer,
                                           const RandomKey& key) {
  const auto* generated = initializer.target<GeneratedInitializer>();
  if (!generated) return std::nullopt;
  ValueGenerator generator = generated->generator;
  generator.key = key;
  return generator;
}

}  // namespace tutti
