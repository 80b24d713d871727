// The canonical tree: one order of additions for a given number of replicas.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: *inputs* are the values of replicas 0, 1, ..., V-1. In each *round* input 2i+1 is
// combined into input 2i, and an odd last one passes up: left_half() says the same from the root. A
// *node* covers the replicas [first, first + count) where count is a power of two that divides
// first, or less at the tree's right edge; its children are the left_half() and the rest. A *block*
// is a run of elements that fits the cache; blocks do not change the order. Few floating inputs are
// summed in registers.
#include "tutti/cross_device_ops/canonical_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tutti/cross_device_ops/element_arithmetic.h"
#include "tutti/cross_device_ops/gpu/reductions.h"
#include "tutti/tensor/buffer.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/half_conversion.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

using internal::combine_into_left;
using internal::combine_into_right;
using internal::combine_to;
using internal::is_aligned;

constexpr std::size_t kBlockBytes = 16 * 1024;

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

/// How many of the inputs are in the left half of their part of the tree. No nodes: one per
/// replica.
std::size_t inputs_on_left(std::size_t num_inputs, std::span<const CanonicalNode> nodes) {
  if (nodes.empty()) return internal::left_half(num_inputs);
  const int first = nodes.front().first, end = nodes.back().first + nodes.back().count;
  const int middle =
      first + static_cast<int>(internal::left_half(static_cast<std::size_t>(end - first)));
  const auto right = std::ranges::find(nodes, middle, &CanonicalNode::first);
  TUTTI_CHECK(right != nodes.end(), "combine_nodes: the nodes are no whole parts of the tree");
  return static_cast<std::size_t>(right - nodes.begin());
}

/// Reduces inputs, each of a replica or of a node, into `out`; scratch has one block per further
/// level of the tree.
template <ReduceOp op, class T>
void reduce_block(std::span<const T* const> inputs, std::span<const CanonicalNode> nodes, T* out,
                  std::size_t count, T* scratch) {
  const std::size_t n = inputs.size();
  if (n == 1) {
    std::memcpy(out, inputs[0], count * sizeof(T));
    return;
  }
  if (n == 2) {
    combine_to<op>(out, inputs[0], inputs[1], count);
    return;
  }
  const std::size_t left = inputs_on_left(n, nodes);
  const std::size_t nodes_on_left = nodes.empty() ? 0 : left;
  reduce_block<op>(inputs.first(left), nodes.first(nodes_on_left), out, count, scratch);
  if (n - left == 1) {
    combine_into_left<op>(out, inputs[left], count);
    return;
  }
  reduce_block<op>(inputs.subspan(left), nodes.subspan(nodes_on_left), scratch, count,
                   scratch + count);
  combine_into_left<op>(out, scratch, count);
}

// Memory of any alignment: what cannot be read as T is copied, block by block.
template <class T>
class BlockOf {
 public:
  explicit BlockOf(std::size_t block) : block_(block) {}
  const T* operator()(const std::byte* data, std::size_t count) {
    if (is_aligned<T>(data)) return reinterpret_cast<const T*>(data);
    copies_.push_back(BufferRef::allocate(block_ * sizeof(T)));
    std::memcpy(copies_.back()->data(), data, count * sizeof(T));
    return reinterpret_cast<const T*>(copies_.back()->data());
  }
  void next_block() { copies_.clear(); }

 private:
  std::size_t block_;
  std::vector<BufferRef> copies_;
};

using Inputs = std::span<const std::byte* const>;
using Nodes = std::span<const CanonicalNode>;

/// More than the tree has.
std::size_t most_levels(Inputs inputs, Nodes nodes) {
  const auto replicas = nodes.empty()
                            ? inputs.size()
                            : static_cast<std::size_t>(nodes.back().first + nodes.back().count);
  return static_cast<std::size_t>(std::bit_width(replicas)) + 1;
}

template <std::size_t n, class T>
void sum_in_registers(Inputs inputs, T* __restrict output, std::size_t count) {
  std::array<const T*, n> at;
  for (std::size_t r = 0; r < n; ++r) at[r] = reinterpret_cast<const T*>(inputs[r]);
  internal::vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t i = 0; i < count; ++i) {
      T values[n];
      for (std::size_t r = 0; r < n; ++r) values[r] = at[r][i];
      output[i] = internal::sum_of_tree<0, n>(values);
    }
  });
}

template <class T>
bool are_aligned(Inputs inputs, const std::byte* output) {
  return is_aligned<T>(output) && std::ranges::all_of(inputs, is_aligned<T>);
}

template <class T>
bool fits_registers(Inputs inputs, const std::byte* output) {
  return inputs.size() >= 2 && inputs.size() <= internal::kMostInRegisters &&
         are_aligned<T>(inputs, output) && std::ranges::find(inputs, output) == inputs.end();
}

template <ReduceOp op, class T>
void combine_two(const std::byte* left, const std::byte* right, std::byte* output,
                 std::size_t count) {
  const auto* const a = reinterpret_cast<const T*>(left);
  const auto* const b = reinterpret_cast<const T*>(right);
  auto* const out = reinterpret_cast<T*>(output);
  if (out == a) return combine_into_left<op>(out, b, count);
  if (out == b) return combine_into_right<op>(a, out, count);
  combine_to<op>(out, a, b, count);
}

template <ReduceOp op, class T>
void reduce_typed(Inputs inputs, Nodes nodes, std::byte* output, std::size_t count) {
  // In place without a copy of the result: what a step of an algorithm does with what it received.
  if (inputs.size() == 2 && are_aligned<T>(inputs, output)) {
    return combine_two<op, T>(inputs[0], inputs[1], output, count);
  }
  if constexpr (op == ReduceOp::kSum && std::is_floating_point_v<T>) {
    if (nodes.empty() && fits_registers<T>(inputs, output)) {
      return internal::with_size(inputs.size(), [&]<std::size_t n>() {
        sum_in_registers<n>(inputs, reinterpret_cast<T*>(output), count);
      });
    }
  }
  const std::size_t block = std::min(count, kBlockBytes / sizeof(T));
  const std::size_t levels = most_levels(inputs, nodes);
  const BufferRef scratch = BufferRef::allocate((levels + 1) * block * sizeof(T));
  std::vector<const T*> starts(inputs.size());
  BlockOf<T> readable(block);
  // In place, and where the result is not aligned, it is built beside the inputs.
  const bool beside = std::ranges::find(inputs, output) != inputs.end() || !is_aligned<T>(output);
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t n = std::min(block, count - first);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      starts[r] = readable(inputs[r] + first * sizeof(T), n);
    }
    T* const spare = reinterpret_cast<T*>(scratch->data());
    std::byte* const result = output + first * sizeof(T);
    T* const work = beside ? spare : reinterpret_cast<T*>(result);
    reduce_block<op, T>(starts, nodes, work, n, spare + n);
    if (beside) std::memcpy(result, work, n * sizeof(T));
    readable.next_block();
  }
}

// 16-bit numbers are combined as floats and rounded once, at the end.
template <ReduceOp op, class T>
void reduce_half(Inputs inputs, Nodes nodes, std::byte* output, std::size_t count) {
  constexpr DType kType = dtype_of<T>();
  const std::size_t block = std::min(count, kBlockBytes / sizeof(float));
  const std::size_t levels = most_levels(inputs, nodes);
  std::vector<float> scratch((inputs.size() + levels + 1) * block);
  std::vector<const float*> starts(inputs.size());
  std::vector<T> result(block);
  BlockOf<T> readable(block);
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t n = std::min(block, count - first);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      float* const wide = scratch.data() + r * block;
      const T* const narrow_block = readable(inputs[r] + first * sizeof(T), n);
      widen(kType, reinterpret_cast<const std::byte*>(narrow_block), wide, n);
      starts[r] = wide;
    }
    float* const work = scratch.data() + inputs.size() * block;
    reduce_block<op, float>(starts, nodes, work, n, work + n);
    narrow(work, kType, reinterpret_cast<std::byte*>(result.data()), n);
    std::memcpy(output + first * sizeof(T), result.data(), n * sizeof(T));
    readable.next_block();
  }
}

template <ReduceOp op, class T>
void reduce_any(Inputs inputs, Nodes nodes, std::byte* output, std::size_t count) {
  if constexpr (Half<T>) {
    reduce_half<op, T>(inputs, nodes, output, count);
  } else {
    reduce_typed<op, T>(inputs, nodes, output, count);
  }
}

template <class T>
void reduce_with(ReduceOp op, Inputs inputs, Nodes nodes, std::byte* output, std::size_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_any<ReduceOp::kSum, T>(inputs, nodes, output, count);
    case ReduceOp::kMin:
      return reduce_any<ReduceOp::kMin, T>(inputs, nodes, output, count);
    case ReduceOp::kMax:
      return reduce_any<ReduceOp::kMax, T>(inputs, nodes, output, count);
    case ReduceOp::kProduct:
      return reduce_any<ReduceOp::kProduct, T>(inputs, nodes, output, count);
    case ReduceOp::kMean:
      break;
  }
  fail(ErrorCode::kInternal, "reduce_along_tree: MEAN is SUM and a division; the caller divides");
}

[[noreturn]] void fail_bool(ReduceOp op) {
  fail(ErrorCode::kInvalidArgument, "reduce: bool has MIN and MAX only, got ", op,
       "; try cast() first");
}

void reduce_inputs(ReduceOp op, DType dtype, Inputs inputs, Nodes nodes, std::byte* output,
                   std::size_t count) {
  if (count == 0) return;
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      if (op != ReduceOp::kMin && op != ReduceOp::kMax) fail_bool(op);
      // A bool is a byte of 0 or 1.
      reduce_with<std::uint8_t>(op, inputs, nodes, output, count);
    } else {
      reduce_with<T>(op, inputs, nodes, output, count);
    }
  });
}

void require_same(std::span<const Tensor> values) {
  for (std::size_t r = 1; r < values.size(); ++r) {
    if (values[r].shape() != values[0].shape() || values[r].dtype() != values[0].dtype()) {
      fail(ErrorCode::kInvalidArgument,
           "reduce: values of replicas differ; expected the shape and type of replica 0, ",
           values[0].dtype(), " ", values[0].shape(), ", got ", values[r].dtype(), " ",
           values[r].shape(), " from replica ", r,
           "; try an axis to reduce uneven values, or gather()");
    }
  }
}

// MEAN of 16-bit numbers: the sum, which may be too large for them, stays a float.
Tensor half_mean(std::span<const Tensor> values, Device destination) {
  std::vector<Tensor> wide;
  for (const Tensor& value : values) wide.push_back(widened(value));
  return narrowed(reduce_tensors_along_tree(ReduceOp::kMean, wide, destination), values[0].dtype());
}

// Floating types are divided in their own precision; integers in double, to give float32.
template <class T>
Tensor divided(const MutableTensor& sum, std::size_t divisor) {
  using Result = std::conditional_t<std::is_floating_point_v<T>, T, float>;
  using Quotient = std::conditional_t<std::is_floating_point_v<T>, T, double>;
  MutableTensor mean(sum.shape(), dtype_of<Result>(), sum.device());
  const auto in = sum.span<T>();
  const auto out = mean.span<Result>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    out[i] = static_cast<Result>(static_cast<Quotient>(in[i]) / static_cast<Quotient>(divisor));
  }
  return mean.freeze();
}

bool is_on_gpu(const Tensor& value) { return value.device().type == DeviceType::kGpu; }

/// By the GPU that wants the result, or the first that has a value.
Tensor reduce_with_gpu(ReduceOp op, std::span<const Tensor> values, Device destination) {
  const SeparateObservers unseen;
  const Device where = destination.type == DeviceType::kGpu
                           ? destination
                           : std::ranges::find_if(values, is_on_gpu)->device();
  const DType dtype = values[0].dtype();
  // Of the division all but the operands' types is the kernel's: 16-bit sums stay floats.
  const bool widens = op == ReduceOp::kMean && is_half(dtype);
  std::vector<Tensor> operands;
  for (const Tensor& value : values) {
    const Tensor near = is_on_gpu(value) ? value : value.to(where);
    operands.push_back(widens ? cast(near, DType::kFloat32) : near);
  }
  Tensor result =
      internal::sum_on_gpu(op == ReduceOp::kMean ? ReduceOp::kSum : op, operands, where);
  if (op == ReduceOp::kMean) {
    const auto divisor = static_cast<double>(values.size());
    if (is_floating(dtype)) {
      result = cast(divide(result, divisor), dtype);
    } else {
      result = cast(divide(cast(result, DType::kFloat64), divisor), DType::kFloat32);
    }
  }
  return result.to(destination);
}

}  // namespace

void reduce_along_tree(ReduceOp op, DType dtype, Inputs inputs, std::byte* output,
                       std::size_t count) {
  TUTTI_CHECK(!inputs.empty(), "reduce_along_tree needs an input");
  reduce_inputs(op, dtype, inputs, {}, output, count);
}

std::vector<CanonicalNode> canonical_nodes(int first, int count, int num_replicas) {
  if (first < 0 || count < 1 || first + count > num_replicas) {
    fail(ErrorCode::kInvalidArgument, "canonical_nodes: replicas [", first, ", ", first + count,
         "); expected some of [0, ", num_replicas, ")");
  }
  std::vector<CanonicalNode> nodes;
  add_whole_nodes({0, num_replicas}, first, first + count, nodes);
  return nodes;
}

void combine_nodes(ReduceOp op, DType dtype, Nodes nodes, Inputs inputs, std::byte* output,
                   std::size_t count) {
  if (nodes.empty() || nodes.size() != inputs.size()) {
    fail(ErrorCode::kInvalidArgument, "combine_nodes: ", nodes.size(), " nodes and ", inputs.size(),
         " inputs; expected one input per node, and one node or more");
  }
  int next = 0;
  for (const CanonicalNode& node : nodes) {
    TUTTI_CHECK(node.first == next, "combine_nodes: the value of replica ", next, " is missing");
    next += node.count;
  }
  reduce_inputs(op, dtype, inputs, nodes, output, count);
}

Tensor reduce_tensors_along_tree(ReduceOp op, std::span<const Tensor> values, Device destination) {
  if (values.empty()) fail(ErrorCode::kInvalidArgument, "reduce: expected a value, got none");
  require_same(values);
  if (op == ReduceOp::kMean && values[0].dtype() == DType::kBool) fail_bool(op);
  if (std::ranges::any_of(values, is_on_gpu)) return reduce_with_gpu(op, values, destination);
  if (destination.type == DeviceType::kGpu) {
    return reduce_tensors_along_tree(op, values, values[0].device()).to(destination);
  }
  if (op == ReduceOp::kMean && is_half(values[0].dtype())) return half_mean(values, destination);
  std::vector<const std::byte*> inputs;
  for (const Tensor& value : values) inputs.push_back(value.bytes().data());
  MutableTensor result(values[0].shape(), values[0].dtype(), destination);
  const auto count = static_cast<std::size_t>(result.num_elements());
  reduce_along_tree(op == ReduceOp::kMean ? ReduceOp::kSum : op, result.dtype(), inputs,
                    result.data(), count);
  if (op != ReduceOp::kMean) return result.freeze();
  return visit_dtype(result.dtype(), [&]<class T>() -> Tensor {
    if constexpr (!Half<T>) return divided<T>(result, values.size());
    fail(ErrorCode::kInternal, "reduce: MEAN of ", result.dtype());
  });
}

}  // namespace tutti
