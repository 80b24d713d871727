// Export of inference graphs as ONNX: operations for each layer, and traversal of models.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/call_site.h"
#include "core/file.h"
#include "core/names.h"
#include "data/input_file.h"
#include "tutti/core/error.h"
#include "tutti/model/functional.h"
#include "tutti/model/layers/layer_description.h"
#include "tutti/model/sequential.h"
#include "tutti/tensor/tensor.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {
namespace {

// Field numbers. ModelProto: 1 ir_version, 2 producer_name, 7 graph, 8 opset_import (2 version).
// GraphProto: 1 node, 2 name, 5 initializer, 11 input, 12 output. NodeProto: 1 input, 2 output, 3
// name, 4 op_type, 5 attribute. AttributeProto: 1 name, 2 f, 3 i, 4 s, 8 ints, 20 type.
// TensorProto: 1 dims, 2 data_type, 8 name, 9 raw_data. ValueInfoProto: 1 name, 2 type (1
// tensor_type). Tensor type: 1 elem_type, 2 shape (1 dim). Dimension: 1 dim_value, 2 dim_param.

/// Attribute of an operation: {"axis", -1}, {"pads", std::vector<std::int64_t>{1, 1}}.
using OnnxAttribute =
    std::pair<std::string,
              std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>>>;

constexpr std::uint64_t kIrVersion = 8, kOpset = 17;
constexpr std::uint64_t kOnnxFloat = 1, kOnnxInt64 = 7;  // TensorProto.DataType

void put_number(std::string& message, std::uint32_t field, std::uint64_t value) {
  put_tag(message, field, WireType::kVarint);
  put_varint(message, value);
}

std::string value_info(const std::string& name, const Shape& example) {
  std::string batch, dims, type, tensor, info;
  put_bytes(batch, 2, "batch");
  put_bytes(dims, 1, batch);
  for (const std::int64_t size : example) {
    std::string dim;
    put_number(dim, 1, static_cast<std::uint64_t>(size));
    put_bytes(dims, 1, dim);
  }
  put_number(tensor, 1, kOnnxFloat);
  put_bytes(tensor, 2, dims);
  put_bytes(type, 1, tensor);
  put_bytes(info, 1, name);
  put_bytes(info, 2, type);
  return info;
}

/// Appends a value, and the attribute's type, to an AttributeProto.
void put_value(std::string& message, std::int64_t value) {
  put_number(message, 3, static_cast<std::uint64_t>(value));
  put_number(message, 20, 2);
}
void put_value(std::string& message, double value) {
  put_tag(message, 2, WireType::kFixed32);
  put_little_endian(message, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  put_number(message, 20, 1);
}
void put_value(std::string& message, const std::string& value) {
  put_bytes(message, 4, value);
  put_number(message, 20, 3);
}
void put_value(std::string& message, const std::vector<std::int64_t>& values) {
  for (const std::int64_t value : values) put_number(message, 8, static_cast<std::uint64_t>(value));
  put_number(message, 20, 7);
}

/// Builds a graph and serialises it. Values have names; each operation has one result. The few
/// messages of onnx.proto that it needs are encoded without protobuf, like event files
/// (data/input_file.h), so that every build can export. Source: onnx.proto of ONNX 1.12.
class OnnxGraph {
 public:
  /// Returns an unused name that begins with `prefix`.
  std::string name(const std::string& prefix) {
    std::string name = prefix;
    for (int i = 1; !names_.insert(name).second; ++i) name = concat(prefix, '_', i);
    return name;
  }
  /// Adds an input, float32 [batch, example...]; the name must be unused.
  void add_input(const std::string& name, const Shape& example) {
    TUTTI_CHECK(names_.insert(name).second, "ONNX: the name '", name, "' is already in use");
    put_bytes(inputs_, 11, value_info(name, example));
  }
  void add_output(const std::string& name, const Shape& example) {
    put_bytes(outputs_, 12, value_info(name, example));
  }
  /// Adds a float32 or int64 constant. Returns its name, which begins with `prefix`.
  std::string constant(const std::string& prefix, const Tensor& value) {
    const bool is_float = value.dtype() == DType::kFloat32;
    TUTTI_CHECK(is_float || value.dtype() == DType::kInt64,
                "ONNX: expected a float32 or int64 constant, got ", value.dtype());
    const Tensor here = value.to(Device{});
    std::string tensor, unique = name(prefix);
    for (const std::int64_t size : here.shape())
      put_number(tensor, 1, static_cast<std::uint64_t>(size));
    put_number(tensor, 2, is_float ? kOnnxFloat : kOnnxInt64);
    put_bytes(tensor, 8, unique);
    const auto bytes = here.bytes();
    put_bytes(tensor, 9, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    put_bytes(constants_, 5, tensor);
    return unique;
  }
  /// Adds an operation of opset 17. Returns the name of its result, which begins with `prefix`.
  std::string operation(const std::string& type, const std::vector<std::string>& inputs,
                        const std::vector<OnnxAttribute>& attributes, const std::string& prefix) {
    std::string node, result = name(prefix);
    for (const std::string& input : inputs) put_bytes(node, 1, input);
    put_bytes(node, 2, result);
    put_bytes(node, 3, result);
    put_bytes(node, 4, type);
    for (const auto& [attribute, value] : attributes) {
      std::string message;
      put_bytes(message, 1, attribute);
      std::visit([&](const auto& held) { put_value(message, held); }, value);
      put_bytes(node, 5, message);
    }
    put_bytes(nodes_, 1, node);
    return result;
  }
  /// Returns the bytes of an ONNX file whose graph is called `name`.
  std::string model(const std::string& name) const {
    std::string graph = nodes_, opset, model;
    put_bytes(graph, 2, name);
    graph += constants_ + inputs_ + outputs_;
    put_number(opset, 2, kOpset);
    put_number(model, 1, kIrVersion);
    put_bytes(model, 2, "tutti");
    put_bytes(model, 7, graph);
    put_bytes(model, 8, opset);
    return model;
  }

 private:
  std::set<std::string> names_;
  std::string nodes_, constants_, inputs_, outputs_;  // fields of GraphProto
};

}  // namespace
}  // namespace tutti::internal

namespace tutti {
namespace {

using internal::OnnxAttribute;
using internal::OnnxGraph;
using Ints = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

/// A layer to be exported: its constructor call, its weights, and the names of its inputs.
struct OnnxLayer {
  OnnxGraph& graph;
  const Layer& layer;
  Json call;
  Names inputs;

  const Json& argument(std::size_t number) const { return call.as_array().at(number); }
  /// Returns a member of the options, which are the last argument.
  const Json& option(std::string_view name) const { return call.as_array().back().at(name); }
  bool flag(std::string_view name) const { return option(name).as_bool(); }
  Tensor weight(std::string_view name) const {
    for (const Variable& variable : layer.variables())
      if (variable.name().ends_with(concat("/", name))) return variable.value();
    fail(ErrorCode::kInternal, "export_onnx: the layer has no weight '", name, "'");
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::kUnimplemented, what, " cannot be exported");
  }

  std::string constant(const std::string& prefix, const Tensor& value) const {
    return graph.constant(concat(layer.name(), '/', prefix), value);
  }
  std::string ints(const std::string& prefix, const Ints& values) const {
    return constant(prefix, Tensor::from({static_cast<std::int64_t>(values.size())}, values));
  }
  std::string number(const std::string& prefix, double value) const {
    return constant(prefix, Tensor::scalar(value, DType::kFloat32));
  }
  std::string operation(const std::string& type, const Names& operands,
                        const std::vector<OnnxAttribute>& attributes = {}) const {
    return graph.operation(type, operands, attributes, concat(layer.name(), '/', type));
  }
};

// Elementwise functions.

struct PlainFunction {
  const char* name;
  const char* type;
  std::vector<OnnxAttribute> attributes = {};
};

std::string activated(const OnnxLayer& at, const std::string& name, const std::string& x) {
  static const PlainFunction kFunctions[] = {{"relu", "Relu"},
                                             {"sigmoid", "Sigmoid"},
                                             {"tanh", "Tanh"},
                                             {"softmax", "Softmax", {{"axis", -1}}},
                                             {"log_softmax", "LogSoftmax", {{"axis", -1}}},
                                             {"softplus", "Softplus"},
                                             {"softsign", "Softsign"},
                                             {"elu", "Elu"},
                                             {"selu", "Selu"},
                                             {"leaky_relu", "LeakyRelu", {{"alpha", 0.2}}},
                                             {"exponential", "Exp"}};
  if (name.empty() || name == "linear") return x;
  if (name == "gelu") {
    const std::string scaled =
        at.operation("Mul", {x, at.number("scale", std::numbers::sqrt2 / 2)});
    const std::string erf = at.operation("Erf", {scaled});
    const std::string share = at.operation("Add", {erf, at.number("one", 1.0)});
    return at.operation("Mul", {at.operation("Mul", {x, share}), at.number("half", 0.5)});
  }
  if (name == "swish" || name == "silu")
    return at.operation("Mul", {x, at.operation("Sigmoid", {x})});
  if (name == "relu6")
    return at.operation("Clip", {x, at.number("least", 0.0), at.number("most", 6.0)});
  for (const PlainFunction& function : kFunctions)
    if (name == function.name) return at.operation(function.type, {x}, function.attributes);
  at.refuse(concat("the activation '", name, "'"));
}

std::string onnx_activation(const OnnxLayer& at) {
  return activated(at, at.argument(1).as_string(), at.inputs[0]);
}

std::string onnx_relu(const OnnxLayer& at) {
  const double slope = at.option("negative_slope").as_double();
  const Json& most = at.option("max_value");
  if (at.option("threshold").as_double() != 0.0) at.refuse("a threshold");
  if (slope == 0.0 && most.is_null()) return activated(at, "relu", at.inputs[0]);
  if (slope == 0.0)
    return at.operation(
        "Clip", {at.inputs[0], at.number("least", 0.0), at.number("most", most.as_double())});
  if (most.is_null()) return at.operation("LeakyRelu", at.inputs, {{"alpha", slope}});
  at.refuse("negative_slope with max_value");
}

/// Returns an export function for a layer that maps to one operation with these attributes.
auto plain(const char* type, std::vector<OnnxAttribute> attributes = {}) {
  return [=](const OnnxLayer& at) { return at.operation(type, at.inputs, attributes); };
}

std::string unchanged(const OnnxLayer& at) { return at.inputs[0]; }

// Dense layers and normalisations.

/// Adds the bias if .use_bias is set, and applies the activation. Returns the result's name.
std::string finished(const OnnxLayer& at, const std::string& x, const Shape& bias_shape = {}) {
  std::string y = x;
  if (at.flag("use_bias")) {
    const Tensor bias = at.weight("bias");
    y = at.operation(
        "Add", {y, at.constant("bias", bias_shape.rank() == 0 ? bias : reshape(bias, bias_shape))});
  }
  return activated(at, at.option("activation").as_string(), y);
}

std::string onnx_dense(const OnnxLayer& at) {
  return finished(
      at, at.operation("MatMul", {at.inputs[0], at.constant("kernel", at.weight("kernel"))}));
}

/// Computes x * factor + offset, per channel.
std::string onnx_batch_normalization(const OnnxLayer& at) {
  Tensor factor = rsqrt(at.weight("moving_variance") + at.option("epsilon").as_double());
  if (at.flag("scale")) factor = factor * at.weight("gamma");
  Tensor offset = negate(at.weight("moving_mean") * factor);
  if (at.flag("center")) offset = offset + at.weight("beta");
  const std::string scaled = at.operation("Mul", {at.inputs[0], at.constant("factor", factor)});
  return at.operation("Add", {scaled, at.constant("offset", offset)});
}

std::string onnx_rescaling(const OnnxLayer& at) {
  const std::string scaled =
      at.operation("Mul", {at.inputs[0], at.number("scale", at.argument(1).as_double())});
  return at.operation("Add", {scaled, at.number("offset", at.option("offset").as_double())});
}

// Layers for images: [batch, height, width, channels] in tutti, channels first in ONNX.

std::string channels_first(const OnnxLayer& at) {
  return at.operation("Transpose", {at.inputs[0]}, {{"perm", Ints{0, 3, 1, 2}}});
}

std::string channels_last(const OnnxLayer& at, const std::string& x) {
  return at.operation("Transpose", {x}, {{"perm", Ints{0, 2, 3, 1}}});
}

Ints pair_of(const Json& json) { return value_of<Ints>(json); }

/// Returns [top, left, bottom, right] for windows of size `window` that advance by `strides`.
OnnxAttribute pads(const OnnxLayer& at, const Ints& window, const Ints& strides) {
  Ints pads(4, 0);
  const Shape& image = at.layer.input_shape();
  for (std::size_t i = 0; i < 2 && at.option("padding").as_string() == "same"; ++i) {
    const std::int64_t length = image[static_cast<int>(i)];
    const std::int64_t places = (length + strides[i] - 1) / strides[i];
    const std::int64_t all =
        std::max<std::int64_t>(0, (places - 1) * strides[i] + window[i] - length);
    pads[i] = all / 2;
    pads[i + 2] = all - all / 2;
  }
  return {"pads", pads};
}

/// Adds a convolution. `kernel`: [out, in / groups, height, width].
std::string convolved(const OnnxLayer& at, const Tensor& kernel, std::int64_t groups) {
  const Ints strides = pair_of(at.option("strides")),
             dilations = pair_of(at.option("dilation_rate"));
  Ints window;
  for (int i = 0; i < 2; ++i) {
    const auto n = static_cast<std::size_t>(i);
    window.push_back((kernel.shape()[i + 2] - 1) * dilations[n] + 1);
  }
  const std::string y = at.operation("Conv", {channels_first(at), at.constant("kernel", kernel)},
                                     {{"strides", strides},
                                      {"dilations", dilations},
                                      {"group", groups},
                                      pads(at, window, strides)});
  return finished(at, channels_last(at, y));
}

std::string onnx_conv2d(const OnnxLayer& at) {
  return convolved(at, transpose(at.weight("kernel"), {3, 2, 0, 1}), at.option("groups").as_int());
}

std::string onnx_depthwise_conv2d(const OnnxLayer& at) {
  const Tensor kernel = at.weight("kernel");  // [height, width, channels, multiplier]
  const Shape& shape = kernel.shape();
  return convolved(
      at,
      reshape(transpose(kernel, {2, 3, 0, 1}), Shape{shape[2] * shape[3], 1, shape[0], shape[1]}),
      shape[2]);
}

auto pooled(const char* type) {
  return [type](const OnnxLayer& at) {
    const Ints window = pair_of(at.argument(1));
    const Json& given = at.option("strides");
    const Ints strides = given.is_null() ? window : pair_of(given);
    return channels_last(
        at,
        at.operation(type, {channels_first(at)},
                     {{"kernel_shape", window}, {"strides", strides}, pads(at, window, strides)}));
  };
}

auto globally_pooled(const char* type) {
  return plain(type, {{"axes", Ints{1, 2}}, {"keepdims", 0}});
}

std::string onnx_zero_padding2d(const OnnxLayer& at) {
  const Ints m = value_of<Ints>(at.argument(1));  // top, bottom, left, right
  return at.operation("Pad", {at.inputs[0], at.ints("pads", {0, m[0], m[2], 0, 0, m[1], m[3], 0})});
}

// Layers that change shapes.

/// Converts a layer to a Reshape. In ONNX, a size of 0 keeps the input's size, here the batch size.
std::string onnx_reshape(const OnnxLayer& at) {
  Ints shape = {0};
  for (const std::int64_t size : at.layer.output_shape()) shape.push_back(size);
  return at.operation("Reshape", {at.inputs[0], at.ints("shape", shape)});
}

std::string onnx_permute(const OnnxLayer& at) {
  Ints order = {0};
  for (const std::int64_t axis : value_of<Ints>(at.argument(1))) order.push_back(axis);
  return at.operation("Transpose", at.inputs, {{"perm", order}});
}

std::string onnx_concatenate(const OnnxLayer& at) {
  return at.operation("Concat", at.inputs, {{"axis", at.option("axis").as_int()}});
}

// Table of all layers that can be exported.

struct OnnxExport {
  const char* type_name;
  std::function<std::string(const OnnxLayer&)> write;
};

const std::vector<OnnxExport>& onnx_exports() {
  static const std::vector<OnnxExport> table = {
      {"Dense", &onnx_dense},
      {"Conv2D", &onnx_conv2d},
      {"DepthwiseConv2D", &onnx_depthwise_conv2d},
      {"MaxPooling2D", pooled("MaxPool")},
      {"AveragePooling2D", pooled("AveragePool")},
      {"GlobalAveragePooling2D", globally_pooled("ReduceMean")},
      {"GlobalMaxPooling2D", globally_pooled("ReduceMax")},
      {"BatchNormalization", &onnx_batch_normalization},
      {"Rescaling", &onnx_rescaling},
      {"Activation", &onnx_activation},
      {"Relu", &onnx_relu},
      {"Sigmoid", plain("Sigmoid")},
      {"Tanh", plain("Tanh")},
      {"Softmax", plain("Softmax", {{"axis", -1}})},
      {"Gelu", [](const OnnxLayer& at) { return activated(at, "gelu", at.inputs[0]); }},
      {"LeakyRelu",
       [](const OnnxLayer& at) {
         return at.operation("LeakyRelu", at.inputs, {{"alpha", at.argument(1).as_double()}});
       }},
      {"Elu",
       [](const OnnxLayer& at) {
         return at.operation("Elu", at.inputs, {{"alpha", at.option("alpha").as_double()}});
       }},
      {"Flatten", &onnx_reshape},
      {"Reshape", &onnx_reshape},
      {"Permute", &onnx_permute},
      {"ZeroPadding2D", &onnx_zero_padding2d},
      {"Add", plain("Sum")},
      {"Subtract", plain("Sub")},
      {"Average", plain("Mean")},
      {"Maximum", plain("Max")},
      {"Minimum", plain("Min")},
      {"Multiply",
       [](const OnnxLayer& at) {
         std::string product = at.inputs[0];
         for (std::size_t i = 1; i < at.inputs.size(); ++i)
           product = at.operation("Mul", {product, at.inputs[i]});
         return product;
       }},
      {"Concatenate", &onnx_concatenate},
      {"Dropout", &unchanged},
      {"GaussianNoise", &unchanged},
      {"GaussianDropout", &unchanged},
      {"SpatialDropout1D", &unchanged},
      {"SpatialDropout2D", &unchanged},
      {"RandomFlip", &unchanged},
      {"RandomBrightness", &unchanged},
      {"RandomContrast", &unchanged}};
  return table;
}

Names export_layer(OnnxGraph& graph, const Layer& layer, const Names& inputs);

Names export_layers(OnnxGraph& graph, const Sequential& model, Names values) {
  for (const auto& layer : model.layers()) values = export_layer(graph, *layer, values);
  return values;
}

Names export_graph(OnnxGraph& graph, const Functional& model, Names values) {
  const internal::GraphDescription description = model.graph();
  for (const auto& call : description.calls) {
    Names arguments;
    for (const std::size_t number : call.arguments) arguments.push_back(values[number]);
    const Names results = export_layer(graph, *description.layers[call.layer], arguments);
    values.insert(values.end(), results.begin(), results.end());
  }
  Names outputs;
  for (const std::size_t number : description.outputs) outputs.push_back(values[number]);
  return outputs;
}

Names export_layer(OnnxGraph& graph, const Layer& layer, const Names& inputs) {
  if (const auto* const row = dynamic_cast<const Sequential*>(&layer))
    return export_layers(graph, *row, inputs);
  if (const auto* const drawn = dynamic_cast<const Functional*>(&layer))
    return export_graph(graph, *drawn, inputs);
  try {
    const auto& table = onnx_exports();
    const auto found = std::ranges::find(table, layer.type_name(), &OnnxExport::type_name);
    if (found == table.end()) {
      fail(ErrorCode::kUnimplemented, "cannot be exported; expected one of ",
           join(internal::names_of(table, &OnnxExport::type_name)), ", Sequential or Functional");
    }
    if (layer.dtype_policy().compute != DType::kFloat32) {
      fail(ErrorCode::kUnimplemented, "computes in ", layer.dtype_policy().compute,
           "; expected float32");
    }
    return {found->write({graph, layer, layer.describe().call, inputs})};
  } catch (const Error& error) {
    throw error.with_context(
        concat("export_onnx: layer '", layer.name(), "' (", layer.type_name(), ")"));
  }
}

Names input_names(const Model& model) {
  Names names;
  if (const auto* const drawn = dynamic_cast<const Functional*>(&model)) {
    for (const Input& input : drawn->graph().inputs) names.push_back(input.name());
  } else {
    names = {"input"};
  }
  return names;
}

}  // namespace

void export_onnx(const Model& model, const std::string& path, const SourceLocation& where) {
  const CallSite site(where);
  OnnxGraph graph;
  Names values = input_names(model);
  for (std::size_t i = 0; i < values.size(); ++i)
    graph.add_input(values[i], model.input_shapes()[i]);
  values = export_layer(graph, model, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Identity renames the result; it is also needed if one value is both an output and an input,
    // or serves as two outputs.
    const std::string name = graph.operation("Identity", {values[i]}, {}, model.outputs()[i].name);
    graph.add_output(name, model.output_shapes()[i]);
  }
  if (model.strategy().is_chief()) write_file_atomically(path, graph.model(model.name()));
}

}  // namespace tutti
