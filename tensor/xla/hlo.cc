// Writes operations as StableHLO text.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/hlo.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLiteralBytes = 40;

/// Returns a float in exponential notation; for a non-finite number, its bits in hexadecimal.
std::string float_literal(double value, HloType type) {
  if (!std::isfinite(value)) {
    const bool nan = std::isnan(value), low = value < 0;
    switch (type) {
      case HloType::kF64:
        return nan ? "0x7FF8000000000000" : low ? "0xFFF0000000000000" : "0x7FF0000000000000";
      case HloType::kBF16:
        return nan ? "0x7FC0" : low ? "0xFF80" : "0x7F80";
      case HloType::kF16:
        return nan ? "0x7E00" : low ? "0xFC00" : "0x7C00";
      default:
        return nan ? "0x7FC00000" : low ? "0xFF800000" : "0x7F800000";
    }
  }
  std::array<char, kLiteralBytes> digits{};
  std::snprintf(digits.data(), digits.size(), type == HloType::kF64 ? "%.17e" : "%.9e", value);
  return digits.data();
}

template <class T>
std::string integer_literal(double value) {
  using Limits = std::numeric_limits<T>;
  if (value >= static_cast<double>(Limits::max())) return std::to_string(Limits::max());
  if (value <= static_cast<double>(Limits::min())) return std::to_string(Limits::min());
  return std::to_string(static_cast<T>(value));
}

/// Returns a literal. For an integer type, values outside its range become the nearest limit.
std::string literal(double value, HloType type) {
  switch (type) {
    case HloType::kPred:
      return value != 0.0 ? "true" : "false";
    case HloType::kI32:
      return integer_literal<std::int32_t>(value);
    case HloType::kI64:
      return integer_literal<std::int64_t>(value);
    case HloType::kU8:
      return integer_literal<std::uint8_t>(value);
    default:
      return float_literal(value, type);
  }
}

template <class Values>
std::string list(const Values& values) {
  return "[" + join(values) + "]";
}

std::string_view kind_of_comparison(HloType type) {
  if (is_floating(type)) return "FLOAT";
  const bool is_signed = type == HloType::kI32 || type == HloType::kI64;
  return is_signed ? "SIGNED" : "UNSIGNED";
}

std::string type_of(const Hlo& x) { return tensor_type(x.shape, x.type); }

Shape without_axes(const Shape& shape, std::uint32_t axes) {
  std::vector<std::int64_t> kept;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (!(axes >> axis & 1u)) kept.push_back(shape.dim(axis));
  }
  return Shape(std::span<const std::int64_t>(kept));
}

std::vector<int> list_of_axes(std::uint32_t axes, int rank) {
  std::vector<int> numbers;
  for (int axis = 0; axis < rank; ++axis) {
    if (axes >> axis & 1u) numbers.push_back(axis);
  }
  return numbers;
}

/// Returns the attributes of reduce_window and select_and_scatter as text.
std::string window_text(const HloWindow& window) {
  std::vector<std::string> padding;
  for (const auto& [low, high] : window.padding)
    padding.push_back(concat("[", low, ", ", high, "]"));
  return concat("<{window_dimensions = array<i64: ", join(window.size),
                ">, window_strides = array<i64: ", join(window.stride), ">, padding = dense<[",
                join(padding), "]> : tensor<", padding.size(), "x2xi64>}>");
}

std::string all_replicas(int num_replicas) {
  std::vector<int> ids;
  for (int r = 0; r < num_replicas; ++r) ids.push_back(r);
  return concat("replica_groups = dense<[", list(ids), "]> : tensor<1x", num_replicas, "xi64>");
}

}  // namespace

HloType hlo_type(DType dtype) {
  constexpr HloType kTypes[] = {HloType::kF32, HloType::kF64,  HloType::kI32,  HloType::kI64,
                                HloType::kU8,  HloType::kPred, HloType::kBF16, HloType::kF16};
  return kTypes[static_cast<std::size_t>(dtype)];
}

std::string_view to_string(HloType type) {
  constexpr std::string_view kNames[] = {"f32", "f64",  "i32", "i64",  "ui8",
                                         "i1",  "bf16", "f16", "ui32", "ui64"};
  return kNames[static_cast<std::size_t>(type)];
}

bool is_floating(HloType type) {
  return type == HloType::kF32 || type == HloType::kF64 || type == HloType::kBF16 ||
         type == HloType::kF16;
}

std::string tensor_type(const Shape& shape, HloType type) {
  std::string text = "tensor<";
  for (const std::int64_t dim : shape) text += std::to_string(dim) + "x";
  return text.append(to_string(type)) + ">";
}

std::string Hlo::name() const {
  return number < 0 ? "%a" + std::to_string(-1 - number) : "%" + std::to_string(number);
}

template <class... Parts>
Hlo HloText::line(const Shape& shape, HloType type, const Parts&... parts) {
  const Hlo result = next(shape, type);
  text_ += "    " + result.name() + " = ";
  ((text_ += parts), ...);
  text_ += type_of(result) + '\n';
  return result;
}

/// Returns a region with two scalar arguments. The names of the region's values are unique in the
/// program.
std::string HloText::region(std::string_view by, HloType type) {
  const Hlo a = next({}, type), b = next({}, type), result = next({}, type);
  const std::string scalar = type_of(a);
  return concat("({\n    ^bb0(", a.name(), ": ", scalar, ", ", b.name(), ": ", scalar, "):\n      ",
                result.name(), " = stablehlo.", by, " ", a.name(), ", ", b.name(), " : ", scalar,
                "\n      stablehlo.return ", result.name(), " : ", scalar, "\n    })");
}

Hlo HloText::constant(double value, const Shape& shape, HloType type) {
  return line(shape, type, "stablehlo.constant dense<", literal(value, type), "> : ");
}

Hlo HloText::bits(std::uint64_t value, const Shape& shape, HloType type) {
  return line(shape, type, "stablehlo.constant dense<", std::to_string(value), "> : ");
}

Hlo HloText::iota(int axis, const Shape& shape, HloType type) {
  return line(shape, type, "stablehlo.iota dim = ", std::to_string(axis), " : ");
}

Hlo HloText::same(std::string_view name, std::initializer_list<Hlo> operands) {
  const Hlo& first = *operands.begin();
  std::string names;
  for (const Hlo& operand : operands) {
    TUTTI_CHECK(operand.shape == first.shape && operand.type == first.type, "StableHLO ", name,
                ": ", type_of(first), " and ", type_of(operand));
    names += (names.empty() ? "" : ", ") + operand.name();
  }
  return line(first.shape, first.type, "stablehlo.", name, " ", names, " : ");
}

Hlo HloText::erf(const Hlo& x) {
  return line(x.shape, x.type, "chlo.erf ", x.name(), " : ", type_of(x), " -> ");
}

Hlo HloText::compare(std::string_view direction, const Hlo& a, const Hlo& b) {
  return line(a.shape, HloType::kPred, "stablehlo.compare ", direction, ", ", a.name(), ", ",
              b.name(), ", ", kind_of_comparison(a.type), " : (", type_of(a), ", ", type_of(b),
              ") -> ");
}

Hlo HloText::select(const Hlo& condition, const Hlo& a, const Hlo& b) {
  return line(a.shape, a.type, "stablehlo.select ", condition.name(), ", ", a.name(), ", ",
              b.name(), " : ", type_of(condition), ", ");
}

Hlo HloText::convert(const Hlo& x, HloType type) {
  if (x.type == type) return x;
  return line(x.shape, type, "stablehlo.convert ", x.name(), " : (", type_of(x), ") -> ");
}

Hlo HloText::broadcast(const Hlo& x, const Shape& shape) {
  if (x.shape == shape) return x;
  std::vector<int> axes;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    axes.push_back(shape.rank() - x.shape.rank() + axis);
  }
  return broadcast(x, shape, axes);
}

Hlo HloText::broadcast(const Hlo& x, const Shape& shape, std::span<const int> axes) {
  return line(shape, x.type, "stablehlo.broadcast_in_dim ", x.name(), ", dims = ", list(axes),
              " : (", type_of(x), ") -> ");
}

Hlo HloText::reshape(const Hlo& x, const Shape& shape) {
  if (x.shape == shape) return x;
  return line(shape, x.type, "stablehlo.reshape ", x.name(), " : (", type_of(x), ") -> ");
}

Hlo HloText::transpose(const Hlo& x, std::span<const std::int64_t> permutation) {
  std::vector<std::int64_t> dims;
  for (const std::int64_t axis : permutation) dims.push_back(x.shape.dim(static_cast<int>(axis)));
  return line(Shape(std::span<const std::int64_t>(dims)), x.type, "stablehlo.transpose ", x.name(),
              ", dims = ", list(permutation), " : (", type_of(x), ") -> ");
}

Hlo HloText::slice(const Hlo& x, std::span<const std::int64_t> begin, const Shape& shape) {
  if (x.shape == shape) return x;
  std::vector<std::string> ranges;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t first = begin[static_cast<std::size_t>(axis)];
    ranges.push_back(concat(first, ":", first + shape.dim(axis)));
  }
  return line(shape, x.type, "stablehlo.slice ", x.name(), " [", join(ranges), "] : (", type_of(x),
              ") -> ");
}

Hlo HloText::pad(const Hlo& x, double value, std::span<const HloPadding> padding) {
  const Hlo fill = constant(value, {}, x.type);
  std::vector<std::int64_t> low, high, interior, dims;
  for (int axis = 0; axis < x.shape.rank(); ++axis) {
    const HloPadding& each = padding[static_cast<std::size_t>(axis)];
    low.push_back(each.low);
    high.push_back(each.high);
    interior.push_back(each.interior);
    const std::int64_t size = x.shape.dim(axis);
    const std::int64_t between = size > 0 ? (size - 1) * each.interior : 0;
    dims.push_back(size + each.low + each.high + between);
  }
  return line(Shape(std::span<const std::int64_t>(dims)), x.type, "stablehlo.pad ", x.name(), ", ",
              fill.name(), ", low = ", list(low), ", high = ", list(high),
              ", interior = ", list(interior), " : (", type_of(x), ", ", type_of(fill), ") -> ");
}

Hlo HloText::concatenate(std::span<const Hlo> values, int axis) {
  if (values.size() == 1) return values.front();
  std::int64_t length = 0;
  std::vector<std::string> names, types;
  for (const Hlo& value : values) {
    length += value.shape.dim(axis);
    names.push_back(value.name());
    types.push_back(type_of(value));
  }
  return line(values.front().shape.with_dim(axis, length), values.front().type,
              "stablehlo.concatenate ", join(names), ", dim = ", std::to_string(axis), " : (",
              join(types), ") -> ");
}

Hlo HloText::reverse(const Hlo& x, std::span<const int> axes) {
  return line(x.shape, x.type, "stablehlo.reverse ", x.name(), ", dims = ", list(axes), " : ");
}

Hlo HloText::reduce(std::string_view by, const Hlo& x, double initial, std::uint32_t axes) {
  if (axes == 0) return x;
  const Hlo start = constant(initial, {}, x.type);
  return line(without_axes(x.shape, axes), x.type, "stablehlo.reduce(", x.name(),
              " init: ", start.name(), ") applies stablehlo.", by,
              " across dimensions = ", list(list_of_axes(axes, x.shape.rank())), " : (", type_of(x),
              ", ", type_of(start), ") -> ");
}

Hlo HloText::arg_extreme(bool largest, const Hlo& x, int axis) {
  // Returns the index of the first element that equals the extreme value.
  const double worst = largest ? -HUGE_VAL : HUGE_VAL;
  const Hlo extreme = reduce(largest ? "maximum" : "minimum", x, worst, 1u << axis);
  std::vector<int> kept = list_of_axes(~(1u << axis), x.shape.rank());
  const Hlo is_extreme = compare("EQ", x, broadcast(extreme, x.shape, kept));
  const Hlo places = iota(axis, x.shape, HloType::kI64);
  const Hlo beyond = constant(static_cast<double>(x.shape.dim(axis)), x.shape, HloType::kI64);
  return reduce("minimum", select(is_extreme, places, beyond),
                static_cast<double>(x.shape.dim(axis)), 1u << axis);
}

std::pair<Hlo, Hlo> HloText::top_k(const Hlo& x, std::int64_t k) {
  const Shape shape = x.shape.with_dim(x.shape.rank() - 1, k);
  const Hlo values = next(shape, x.type), places = next(shape, HloType::kI32);
  text_ +=
      concat("    ", values.name(), ", ", places.name(), " = chlo.top_k(", x.name(), ", k = ", k,
             ") : ", type_of(x), " -> (", type_of(values), ", ", type_of(places), ")\n");
  return {values, places};
}

Hlo HloText::reduce_window(std::string_view by, const Hlo& x, double initial,
                           const HloWindow& window, const Shape& shape) {
  const Hlo start = constant(initial, {}, x.type);
  const std::string body = region(by, x.type);
  return line(shape, x.type, "\"stablehlo.reduce_window\"(", x.name(), ", ", start.name(), ") ",
              window_text(window), " ", body, " : (", type_of(x), ", ", type_of(start), ") -> ");
}

Hlo HloText::select_and_scatter(const Hlo& x, const Hlo& dy, const HloWindow& window) {
  const Hlo zero = constant(0.0, {}, x.type);
  const Hlo a = next({}, x.type), b = next({}, x.type), keeps = next({}, HloType::kPred);
  const std::string scalar = type_of(a);
  const std::string choice =
      concat("({\n    ^bb0(", a.name(), ": ", scalar, ", ", b.name(), ": ", scalar, "):\n      ",
             keeps.name(), " = stablehlo.compare GE, ", a.name(), ", ", b.name(), ", FLOAT : (",
             scalar, ", ", scalar, ") -> tensor<i1>\n      stablehlo.return ", keeps.name(),
             " : tensor<i1>\n    }, ");
  const std::string sum = region("add", x.type).substr(1);  // `choice` already opened the bracket
  return line(x.shape, x.type, "\"stablehlo.select_and_scatter\"(", x.name(), ", ", dy.name(), ", ",
              zero.name(), ") ", window_text(window), " ", choice, sum, " : (", type_of(x), ", ",
              type_of(dy), ", ", type_of(zero), ") -> ");
}

Hlo HloText::dot(const Hlo& a, const Hlo& b, std::initializer_list<std::int64_t> batch_a,
                 std::initializer_list<std::int64_t> batch_b, std::int64_t contract_a,
                 std::int64_t contract_b, const Shape& shape) {
  const std::string batches =
      batch_a.size() == 0 ? std::string()
                          : concat("batching_dims = ", list(batch_a), " x ", list(batch_b), ", ");
  // With HIGHEST, devices that would otherwise round float32 operands to 16 bits do not.
  return line(shape, a.type, "stablehlo.dot_general ", a.name(), ", ", b.name(), ", ", batches,
              "contracting_dims = [", std::to_string(contract_a), "] x [",
              std::to_string(contract_b), "], precision = [HIGHEST, HIGHEST] : (", type_of(a), ", ",
              type_of(b), ") -> ");
}

Hlo HloText::convolution(const Hlo& x, const Hlo& filter, const HloConvolution& how,
                         const Shape& shape) {
  const auto pair = [](const std::int64_t(&values)[2]) {
    return concat("[", values[0], ", ", values[1], "]");
  };
  const auto ends = [](const HloPadding& padding) {
    return concat("[", padding.low, ", ", padding.high, "]");
  };
  return line(shape, x.type, "stablehlo.convolution(", x.name(), ", ", filter.name(),
              ") dim_numbers = ", how.axes, ", window = {stride = ", pair(how.stride), ", pad = [",
              ends(how.padding[0]), ", ", ends(how.padding[1]),
              "], lhs_dilate = ", pair(how.lhs_dilation), ", rhs_dilate = ", pair(how.rhs_dilation),
              "} {batch_group_count = ", std::to_string(how.batch_groups),
              " : i64, feature_group_count = ", std::to_string(how.feature_groups),
              " : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision "
              "HIGHEST>]} : (",
              type_of(x), ", ", type_of(filter), ") -> ");
}

Hlo HloText::gather_rows(const Hlo& table, const Hlo& indices, const Shape& shape) {
  std::vector<int> offsets;
  for (int axis = indices.shape.rank(); axis < shape.rank(); ++axis) offsets.push_back(axis);
  std::vector<std::int64_t> sizes(table.shape.begin(), table.shape.end());
  sizes.front() = 1;
  return line(shape, table.type, "\"stablehlo.gather\"(", table.name(), ", ", indices.name(),
              ") <{dimension_numbers = #stablehlo.gather<offset_dims = ", list(offsets),
              ", collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = ",
              std::to_string(indices.shape.rank()), ">, slice_sizes = array<i64: ", join(sizes),
              ">, indices_are_sorted = false}> : (", type_of(table), ", ", type_of(indices),
              ") -> ");
}

Hlo HloText::scatter_rows(const Hlo& values, const Hlo& indices, const Shape& shape) {
  const Hlo zeros = constant(0.0, shape, values.type);
  std::vector<int> window;
  for (int axis = indices.shape.rank(); axis < values.shape.rank(); ++axis) window.push_back(axis);
  const std::string body = region("add", values.type);
  return line(
      shape, values.type, "\"stablehlo.scatter\"(", zeros.name(), ", ", indices.name(), ", ",
      values.name(),
      ") <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = ", list(window),
      ", inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = ",
      std::to_string(indices.shape.rank()),
      ">, indices_are_sorted = false, unique_indices = false}> ", body, " : (", type_of(zeros),
      ", ", type_of(indices), ", ", type_of(values), ") -> ");
}

Hlo HloText::all_reduce(std::string_view by, const Hlo& x, int num_replicas) {
  const std::string body = region(by, x.type);
  return line(x.shape, x.type, "\"stablehlo.all_reduce\"(", x.name(), ") <{",
              all_replicas(num_replicas), "}> ", body, " : (", type_of(x), ") -> ");
}

Hlo HloText::all_gather(const Hlo& x, int axis, int num_replicas) {
  return line(x.shape.with_dim(axis, x.shape.dim(axis) * num_replicas), x.type,
              "\"stablehlo.all_gather\"(", x.name(), ") <{all_gather_dim = ", std::to_string(axis),
              " : i64, ", all_replicas(num_replicas), "}> : (", type_of(x), ") -> ");
}

namespace {

/// Returns `x`, or, if `x` is a number, a constant with the shape and type of `like`.
Hlo materialized(const Hlo& x, const Hlo& like) {
  return x.text ? x : like.text->constant(x.full_of, like.shape, like.type);
}

}  // namespace

Hlo hlo_op(std::string_view name, const Hlo& x) { return x.text->same(name, {x}); }

Hlo hlo_op(std::string_view name, const Hlo& a, const Hlo& b) {
  const Hlo first = materialized(a, b);
  return first.text->same(name, {first, materialized(b, a)});
}

Hlo hlo_comparison(std::string_view direction, const Hlo& a, const Hlo& b) {
  const Hlo first = materialized(a, b);
  return first.text->compare(direction, first, materialized(b, a));
}

Hlo abs(const Hlo& x) { return x.type == HloType::kU8 ? x : hlo_op("abs", x); }

Hlo erf(const Hlo& x) { return x.text->erf(x); }

Hlo choose(const Hlo& condition, const Hlo& a, const Hlo& b) {
  const Hlo first = materialized(a, b);
  return condition.text->select(condition, first, materialized(b, a));
}

std::string_view hlo_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return "minimum";
    case ReduceOp::kMax:
      return "maximum";
    case ReduceOp::kProduct:
      return "multiply";
    default:
      return "add";
  }
}

}  // namespace tutti::internal
