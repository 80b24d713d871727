// The canonical tree: one order of additions for a given number of replicas.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: *inputs* are the values of replicas 0, 1, ..., V-1. In each *round* input 2i+1 is
// combined into input 2i, and an odd last one passes up: left_half() says the same from the root. A
// *node* covers the replicas [first, first + count) where count is a power of two that divides
// first, or less at the tree's right edge; its children are the left_half() and the rest. What is
// done to elements in memory: reduce_to_all.cc.
#include "tutti/cross_device_ops/canonical_tree.h"

#include <algorithm>
#include <vector>

#include "core/names.h"
#include "cross_device_ops/call_checks.h"
#include "cross_device_ops/device_work.h"
#include "cross_device_ops/element_arithmetic.h"
#include "cross_device_ops/reduce_to_all.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

void add_whole_nodes(CanonicalNode node, int first, int last, std::vector<CanonicalNode>& nodes) {
  const int end = node.first + node.count;
  if (end <= first || node.first >= last) return;
  if (node.first >= first && end <= last) {
    nodes.push_back(node);
    return;
  }
  const auto half = static_cast<int>(internal::left_half(static_cast<std::size_t>(node.count)));
  add_whole_nodes({node.first, half}, first, last, nodes);
  add_whole_nodes({node.first + half, node.count - half}, first, last, nodes);
}

bool is_on_gpu(const Tensor& value) { return value.device().type == DeviceType::kGpu; }

/// By the GPU that wants the result, or the first that has a value.
Tensor reduce_with_gpu(ReduceOp op, std::span<const Tensor> values, Device destination) {
  const Device where = destination.type == DeviceType::kGpu
                           ? destination
                           : std::ranges::find_if(values, is_on_gpu)->device();
  std::vector<Tensor> operands;
  for (const Tensor& value : values) {
    operands.push_back(is_on_gpu(value) ? value : value.to(where));
  }
  return internal::sum_on_gpu(op, operands, where).to(destination);
}

/// A sum and a division: floating types in their own precision, but 16-bit ones, whose sum may be
/// too large for them, as float32; integers in float64, to give float32.
Tensor mean(std::span<const Tensor> values, Device destination) {
  const SeparateObservers unseen;
  const NoDeviceScope where_it_is;
  const DType dtype = values[0].dtype();
  std::vector<Tensor> operands(values.begin(), values.end());
  if (is_half(dtype)) {
    for (Tensor& operand : operands) operand = cast(operand, DType::kFloat32);
  }
  const Tensor sum = reduce_tensors_along_tree(ReduceOp::kSum, operands, destination);
  const auto divisor = static_cast<double>(values.size());
  if (is_floating(dtype)) return cast(divide(sum, divisor), dtype);
  return cast(divide(cast(sum, DType::kFloat64), divisor), DType::kFloat32);
}

}  // namespace

void reduce_along_tree(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                       std::byte* output, std::size_t count) {
  TUTTI_CHECK(!inputs.empty(), "reduce_along_tree needs an input");
  internal::reduce_to_all(op, dtype, inputs, {&output, 1}, count);
}

std::vector<CanonicalNode> canonical_nodes(int first, int count, int num_replicas) {
  internal::require(first >= 0 && count > 0 && first + count <= num_replicas,
                    "canonical_nodes: replicas [", first, ", ", first + count,
                    "); expected some of [0, ", num_replicas, ")");
  std::vector<CanonicalNode> nodes;
  add_whole_nodes({0, num_replicas}, first, first + count, nodes);
  return nodes;
}

void combine_nodes(ReduceOp op, DType dtype, std::span<const CanonicalNode> nodes,
                   std::span<const std::byte* const> inputs, std::byte* output, std::size_t count) {
  internal::require(!nodes.empty() && nodes.size() == inputs.size(),
                    "combine_nodes: ", nodes.size(), " nodes and ", inputs.size(),
                    " inputs; expected one input per node, and one node or more");
  int next = 0;
  for (const CanonicalNode& node : nodes) {
    TUTTI_CHECK(node.first == next, "combine_nodes: the value of replica ", next, " is missing");
    next += node.count;
  }
  internal::reduce_to_all(op, dtype, inputs, {&output, 1}, count, 0, nodes);
}

Tensor reduce_tensors_along_tree(ReduceOp op, std::span<const Tensor> values, Device destination) {
  if (values.empty()) fail(ErrorCode::kInvalidArgument, "reduce: expected a value, got none");
  internal::require_equal("reduce", values);
  if (op == ReduceOp::kMean) {
    if (values[0].dtype() == DType::kBool)
      internal::require_reduction(op, DType::kBool, "reduce: ");
    return mean(values, destination);
  }
  if (std::ranges::any_of(values, is_on_gpu)) return reduce_with_gpu(op, values, destination);
  if (destination.type == DeviceType::kGpu) {
    return reduce_tensors_along_tree(op, values, values[0].device()).to(destination);
  }
  std::vector<const std::byte*> inputs;
  for (const Tensor& value : values) inputs.push_back(value.bytes().data());
  MutableTensor result(values[0].shape(), values[0].dtype(), destination);
  reduce_along_tree(op, result.dtype(), inputs, result.data(),
                    static_cast<std::size_t>(result.num_elements()));
  return result.freeze();
}

}  // namespace tutti
