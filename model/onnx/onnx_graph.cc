// The graph of an ONNX file, written as protobuf.
// SPDX-License-Identifier: Apache-2.0
//
// ModelProto: 1 ir_version, 2 producer_name, 7 graph, 8 opset_import (2
// version). GraphProto: 1 node, 2 name, 5 initializer, 11 input, 12 output. NodeProto: 1 input, 2
// output, 3 name, 4 op_type, 5 attribute. AttributeProto: 1 name, 2 f, 3 i, 4 s, 8 ints, 20 type.
// TensorProto: 1 dims, 2 data_type, 8 name, 9 raw_data. ValueInfoProto: 1 name, 2 type; that holds
// 1 tensor_type, that 1 elem_type and 2 shape, that 1 dim, that 1 dim_value or 2 dim_param.
#include "model/onnx/onnx_graph.h"

#include <bit>

#include "data/format_bytes.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

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

/// Fields of AttributeProto, and its type.
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

}  // namespace

std::string OnnxGraph::name(const std::string& wish) {
  std::string name = wish;
  for (int i = 1; !names_.insert(name).second; ++i) name = concat(wish, '_', i);
  return name;
}

void OnnxGraph::add_input(const std::string& name, const Shape& example) {
  TUTTI_CHECK(names_.insert(name).second, "ONNX: the name '", name, "' is taken");
  put_bytes(inputs_, 11, value_info(name, example));
}

void OnnxGraph::add_output(const std::string& name, const Shape& example) {
  put_bytes(outputs_, 12, value_info(name, example));
}

std::string OnnxGraph::constant(const std::string& wish, const Tensor& value) {
  const bool is_float = value.dtype() == DType::kFloat32;
  TUTTI_CHECK(is_float || value.dtype() == DType::kInt64, "ONNX: a constant of ", value.dtype());
  const Tensor here = value.to(Device{});
  std::string tensor, unique = name(wish);
  for (const std::int64_t size : here.shape())
    put_number(tensor, 1, static_cast<std::uint64_t>(size));
  put_number(tensor, 2, is_float ? kOnnxFloat : kOnnxInt64);
  put_bytes(tensor, 8, unique);
  const auto bytes = here.bytes();
  put_bytes(tensor, 9, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  put_bytes(constants_, 5, tensor);
  return unique;
}

std::string OnnxGraph::operation(const std::string& type, const std::vector<std::string>& inputs,
                                 const std::vector<OnnxAttribute>& attributes,
                                 const std::string& wish) {
  std::string node, result = name(wish);
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

std::string OnnxGraph::model(const std::string& name) const {
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

}  // namespace tutti::internal
