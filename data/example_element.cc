// Examples as elements of datasets.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <span>

#include "tutti/data/example.h"

namespace tutti {
namespace {

constexpr std::array kKinds = {"no list", "a bytes_list", "a float_list", "an int64_list"};

std::size_t wanted_kind(const FeatureSpec& spec) {
  if (spec.dtype == DType::kUInt8) return 1;
  if (spec.dtype == DType::kFloat32) return 2;
  if (spec.dtype == DType::kInt64) return 3;
  fail(ErrorCode::kInvalidArgument, "element_of: feature '", spec.name,
       "': expected dtype int64, float32 or uint8, got ", spec.dtype, "; try cast() in map()");
}

std::span<const std::byte> value_bytes(const Feature& feature, const FeatureSpec& spec,
                                       const std::string& source) {
  if (const auto* floats = std::get_if<std::vector<float>>(&feature)) {
    return std::as_bytes(std::span(*floats));
  }
  if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&feature)) {
    return std::as_bytes(std::span(*integers));
  }
  const auto& strings = std::get<std::vector<std::string>>(feature);
  if (strings.size() != 1) {
    fail(ErrorCode::kInvalidArgument, source, ": feature '", spec.name,
         "': expected one string, got ", strings.size());
  }
  return std::as_bytes(std::span(strings[0]));
}

Tensor tensor_of(const Feature& feature, const FeatureSpec& spec, const std::string& source) {
  const std::size_t kind = wanted_kind(spec);
  if (feature.index() != kind) {
    fail(ErrorCode::kInvalidArgument, source, ": feature '", spec.name, "': expected ",
         kKinds[kind], " for dtype ", spec.dtype, ", got ", kKinds[feature.index()]);
  }
  const std::span<const std::byte> bytes = value_bytes(feature, spec, source);
  const auto count = static_cast<std::int64_t>(bytes.size() / size_of(spec.dtype));
  const Shape shape = spec.shape ? *spec.shape : Shape{count};
  if (shape.num_elements() != count) {
    fail(ErrorCode::kInvalidArgument, source, ": feature '", spec.name, "': expected ",
         shape.num_elements(), " values for shape ", shape, ", got ", count);
  }
  return Tensor::from_bytes(shape, spec.dtype, bytes);
}

}  // namespace

Element element_of(const Example& example, const std::vector<FeatureSpec>& specs,
                   const std::string& source) {
  std::vector<Tensor> tensors;
  std::vector<std::string> names;
  for (const FeatureSpec& spec : specs) {
    names.push_back(spec.name);
    const auto found = example.find(spec.name);
    const bool has_values = found != example.end() && found->second.index() != 0;
    if (has_values) {
      tensors.push_back(tensor_of(found->second, spec, source));
    } else if (spec.default_value.defined()) {
      tensors.push_back(spec.default_value);
    } else {
      std::vector<std::string> known;
      for (const auto& [name, feature] : example) known.push_back(name);
      fail(ErrorCode::kNotFound, source, ": the example has no feature '", spec.name,
           "'; expected one of [", join(known), "]; try a default_value");
    }
  }
  return Element(std::move(tensors), std::move(names));
}

}  // namespace tutti
