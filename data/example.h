// tf.train.Example: named lists of bytes, floats or integers, as protobuf bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tutti/data/element.h"

namespace tutti {

/// One feature: no list (monostate: no kind is set), bytes, floats or integers.
using Feature = std::variant<std::monostate, std::vector<std::string>, std::vector<float>,
                             std::vector<std::int64_t>>;

/// tf.train.Example: features by name.
using Example = std::map<std::string, Feature>;

/// Reads protobuf bytes as any protobuf reader would: packed or not, in any order, the last value
/// of a name holds, unknown fields are left out. `source` names the bytes in errors: kDataLoss with
/// the offset.
Example parse_example(std::string_view bytes, const std::string& source);

/// The bytes of `example`: names in ascending order, numbers packed.
std::string serialize_example(const Example& example);

/// What one component of an element is made of (tf.io.FixedLenFeature; without shape
/// tf.io.VarLenFeature as a dense tensor [n]).
struct FeatureSpec {
  std::string name;
  /// kInt64 (integers), kFloat32 (floats) or kUInt8 (the bytes of one string, as tf.io.decode_raw).
  DType dtype = DType::kInt64;
  /// The tensor's shape; nothing: [n] for n values.
  std::optional<Shape> shape = {};
  /// For an example without this feature; undefined: such an example is refused.
  Tensor default_value = {};
};

/// The features that `specs` names, as an element with these names. `source` names the example in
/// errors: kNotFound for a missing feature, kInvalidArgument naming feature, expected and got for
/// another kind or number of values.
Element element_of(const Example& example, const std::vector<FeatureSpec>& specs,
                   const std::string& source);

}  // namespace tutti
