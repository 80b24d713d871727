// The graph of an ONNX file: operations, constants, inputs and outputs, as protobuf.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// An attribute of an operation: {"axis", -1}, {"pads", std::vector<std::int64_t>{1, 1}}.
using OnnxAttribute =
    std::pair<std::string,
              std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>>>;

/// Gathers a graph and writes the file. Values are named; each operation has one result. The few
/// messages of onnx.proto that it takes are written as event files are (data/format_bytes.h), so
/// that every build can export. Source: onnx.proto of ONNX 1.12.
class OnnxGraph {
 public:
  /// A free name that begins with `wish`.
  std::string name(const std::string& wish);
  /// float32 [batch, example...]; the name must be free.
  void add_input(const std::string& name, const Shape& example);
  void add_output(const std::string& name, const Shape& example);
  /// float32 or int64. Returns its name, which begins with `wish`.
  std::string constant(const std::string& wish, const Tensor& value);
  /// An operation of opset 17. Returns the name of its result, which begins with `wish`.
  std::string operation(const std::string& type, const std::vector<std::string>& inputs,
                        const std::vector<OnnxAttribute>& attributes, const std::string& wish);
  /// The file's bytes.
  std::string model(const std::string& name) const;

 private:
  std::set<std::string> names_;
  std::string nodes_, constants_, inputs_, outputs_;  // fields of GraphProto
};

}  // namespace tutti::internal
