// Canonical tree: its order of additions, its arithmetic in host memory, and operation "canonical".
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: *inputs* are the values of replicas 0, 1, ..., V-1. In each *round*, input 2i+1 is
// combined into input 2i, and an unpaired last input enters the next round unchanged; left_half()
// describes the same tree from the root. A *node* covers the replicas [first, first + count), where
// count is a power of two that divides first, or less at the tree's right edge. Its children are
// the left_half() and the remaining replicas.
#include "tutti/cross_device_ops/canonical_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "core/names.h"
#include "cross_device_ops/call_checks.h"
#include "cross_device_ops/device_work.h"
#include "cross_device_ops/element_arithmetic.h"
#include "cross_device_ops/reduce_to_all.h"
#include "tensor/cpu/vectorized.h"
#include "tensor/half_conversion.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/buffer.h"
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

/// Reduces on `destination` if it is a GPU, otherwise on the first GPU that has a value.
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

/// Returns the mean. Floating-point types keep their own precision, except 16-bit types, which are
/// averaged in float32 because their sum may overflow. Integers are averaged in float64 and give a
/// float32 result.
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
  TUTTI_CHECK(!inputs.empty(), "reduce_along_tree: expected an input");
  internal::reduce_to_all(op, dtype, inputs, {&output, 1}, count);
}

std::vector<CanonicalNode> canonical_nodes(int first, int count, int num_replicas) {
  internal::require(first >= 0 && count > 0 && first + count <= num_replicas,
                    "canonical_nodes: expected a range of replicas within [0, ", num_replicas,
                    "), got [", first, ", ", first + count, ")");
  std::vector<CanonicalNode> nodes;
  add_whole_nodes({0, num_replicas}, first, first + count, nodes);
  return nodes;
}

void combine_nodes(ReduceOp op, DType dtype, std::span<const CanonicalNode> nodes,
                   std::span<const std::byte* const> inputs, std::byte* output, std::size_t count) {
  internal::require(!nodes.empty() && nodes.size() == inputs.size(),
                    "combine_nodes: expected at least one node and one input per node, got ",
                    nodes.size(), " nodes and ", inputs.size(), " inputs");
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

// The arithmetic of the canonical tree in host memory: one pass that combines all inputs and stores
// to all outputs.
//
// Vocabulary: a *block* is a run of elements that fits in the cache; blocks do not affect the order
// of additions. If there are only a few inputs, of a floating-point type, their sums stay in
// registers until they are stored to all outputs.

namespace tutti::internal {
namespace {

constexpr std::size_t kBlockBytes = 16 * 1024;

using Inputs = std::span<const std::byte* const>;
using Outputs = std::span<std::byte* const>;
using Nodes = std::span<const CanonicalNode>;

/// Returns the number of inputs in the left half of their subtree. If `nodes` is empty, there is
/// one input per replica.
std::size_t inputs_on_left(std::size_t num_inputs, std::span<const CanonicalNode> nodes) {
  if (nodes.empty()) return left_half(num_inputs);
  const int first = nodes.front().first, end = nodes.back().first + nodes.back().count;
  const int middle = first + static_cast<int>(left_half(static_cast<std::size_t>(end - first)));
  const auto right = std::ranges::find(nodes, middle, &CanonicalNode::first);
  TUTTI_CHECK(right != nodes.end(), "combine_nodes: expected nodes that form complete subtrees");
  return static_cast<std::size_t>(right - nodes.begin());
}

/// Reduces `inputs`, one value per replica or node, into `out`. `scratch` has one block for each
/// level of the tree except the first.
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

// Reads memory of any alignment as T: copies misaligned data block by block.
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

/// Returns an upper bound on the number of levels in the tree.
std::size_t most_levels(Inputs inputs, Nodes nodes) {
  const auto replicas = nodes.empty()
                            ? inputs.size()
                            : static_cast<std::size_t>(nodes.back().first + nodes.back().count);
  return static_cast<std::size_t>(std::bit_width(replicas)) + 1;
}

template <class T>
bool are_aligned(Inputs inputs, Outputs outputs) {
  return std::ranges::all_of(inputs, is_aligned<T>) && std::ranges::all_of(outputs, is_aligned<T>);
}

/// Sums n inputs and stores the result in m outputs, each of which may be the memory of one input.
template <std::size_t n, std::size_t m, class T>
void sum_in_registers(Inputs inputs, Outputs outputs, std::size_t count) {
  std::array<const T*, n> from;
  std::array<T*, m> to;
  for (std::size_t r = 0; r < n; ++r) from[r] = reinterpret_cast<const T*>(inputs[r]);
  for (std::size_t r = 0; r < m; ++r) to[r] = reinterpret_cast<T*>(outputs[r]);
  vectorized([=]() __attribute__((always_inline)) {
#if !defined(__clang__)
#pragma GCC ivdep
#endif
    for (std::size_t i = 0; i < count; ++i) {
      T values[n];
      for (std::size_t r = 0; r < n; ++r) values[r] = from[r][i];
      const T sum = sum_of_tree<0, n>(values);
      for (std::size_t r = 0; r < m; ++r) to[r][i] = sum;
    }
  });
}

template <std::size_t n, class T>
void sum_in_place(Outputs buffers, std::size_t first, std::size_t end) {
  std::array<T*, n> at;
  for (std::size_t r = 0; r < n; ++r) at[r] = reinterpret_cast<T*>(buffers[r]);
  vectorized([=]() __attribute__((always_inline)) {
#if !defined(__clang__)
#pragma GCC ivdep
#endif
    for (std::size_t i = first; i < end; ++i) {
      T values[n];
      for (std::size_t r = 0; r < n; ++r) values[r] = at[r][i];
      const T sum = sum_of_tree<0, n>(values);
      for (std::size_t r = 0; r < n; ++r) at[r][i] = sum;
    }
  });
}

/// Same as sum_in_place(), but sums whole cache lines only, and prefetches the lines that are
/// `ahead` bytes further on. Returns the number of elements summed.
template <std::size_t n, class T>
std::size_t sum_lines_ahead(Outputs buffers, std::size_t count, std::size_t ahead) {
  constexpr std::size_t kLineBytes = 64, kLine = kLineBytes / sizeof(T);
  const std::size_t num_lines = count / kLine;
  std::array<std::byte*, n> at;
  for (std::size_t r = 0; r < n; ++r) at[r] = buffers[r];
  vectorized([=]() __attribute__((always_inline)) {
    for (std::size_t place = 0; place < num_lines * kLineBytes; place += kLineBytes) {
      T lines[n][kLine];
      for (std::size_t r = 0; r < n; ++r) {
        __builtin_prefetch(at[r] + place + ahead);
        std::memcpy(lines[r], at[r] + place, kLineBytes);
      }
      T sums[kLine];
      for (std::size_t i = 0; i < kLine; ++i) {
        T values[n];
        for (std::size_t r = 0; r < n; ++r) values[r] = lines[r][i];
        sums[i] = sum_of_tree<0, n>(values);
      }
      for (std::size_t r = 0; r < n; ++r) std::memcpy(at[r] + place, sums, kLineBytes);
    }
  });
  return num_lines * kLine;
}

/// Sums 2 to kMostInRegisters inputs. Returns false and adds nothing if it does not support the
/// number of inputs, the number of outputs or the alignment.
template <class T>
bool sum_few(Inputs inputs, Outputs outputs, std::size_t count, std::size_t ahead) {
  if (inputs.size() < 2 || inputs.size() > kMostInRegisters) return false;
  if (!are_aligned<T>(inputs, outputs)) return false;
  const bool in_place = std::ranges::equal(inputs, outputs);
  if (!in_place && outputs.size() > 2) return false;
  with_size(inputs.size(), [&]<std::size_t n>() {
    if (in_place) {
      const std::size_t done = ahead > 0 ? sum_lines_ahead<n, T>(outputs, count, ahead) : 0;
      sum_in_place<n, T>(outputs, done, count);
    } else if (outputs.size() == 1) {
      sum_in_registers<n, 1, T>(inputs, outputs, count);
    } else {
      sum_in_registers<n, 2, T>(inputs, outputs, count);
    }
  });
  return true;
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

/// Reduces the inputs block by block. 16-bit numbers are combined as floats and rounded once, at
/// the end.
template <ReduceOp op, class T>
void reduce_blocks(Inputs inputs, Nodes nodes, Outputs outputs, std::size_t count) {
  using Number = std::conditional_t<Half<T>, float, T>;
  const std::size_t block = std::min(count, kBlockBytes / sizeof(Number));
  const std::size_t widened = Half<T> ? inputs.size() : 0;
  const BufferRef scratch =
      BufferRef::allocate((widened + most_levels(inputs, nodes) + 2) * block * sizeof(Number));
  auto* const wide = reinterpret_cast<Number*>(scratch->data());
  Number* const spare = wide + widened * block;
  std::vector<const Number*> starts(inputs.size());
  BlockOf<T> readable(block);
  // The result can be computed directly in the output only if there is a single output, which is
  // aligned and is not an input.
  const bool beside = Half<T> || outputs.size() > 1 || !is_aligned<T>(outputs[0]) ||
                      std::ranges::find(inputs, outputs[0]) != inputs.end();
  for (std::size_t first = 0; first < count; first += block) {
    const std::size_t n = std::min(block, count - first);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      const T* const own = readable(inputs[r] + first * sizeof(T), n);
      if constexpr (Half<T>) {
        widen(dtype_of<T>(), reinterpret_cast<const std::byte*>(own), wide + r * block, n);
        starts[r] = wide + r * block;
      } else {
        starts[r] = own;
      }
    }
    auto* const result = beside ? spare : reinterpret_cast<Number*>(outputs[0] + first * sizeof(T));
    reduce_block<op, Number>(starts, nodes, result, n, spare + n);
    auto* const bytes = reinterpret_cast<std::byte*>(result);
    if constexpr (Half<T>) narrow(result, dtype_of<T>(), bytes, n);
    for (std::size_t o = 0; beside && o < outputs.size(); ++o) {
      std::memcpy(outputs[o] + first * sizeof(T), bytes, n * sizeof(T));
    }
    readable.next_block();
  }
}

template <ReduceOp op, class T>
void reduce_any(Inputs inputs, Nodes nodes, Outputs outputs, std::size_t count, std::size_t ahead) {
  if constexpr (!Half<T>) {
    // Avoids copying the result when a step of an algorithm combines a received message in place.
    if (inputs.size() == 2 && outputs.size() == 1 && are_aligned<T>(inputs, outputs)) {
      return combine_two<op, T>(inputs[0], inputs[1], outputs[0], count);
    }
  }
  if constexpr (op == ReduceOp::kSum && std::is_floating_point_v<T>) {
    if (nodes.empty() && sum_few<T>(inputs, outputs, count, ahead)) return;
  }
  reduce_blocks<op, T>(inputs, nodes, outputs, count);
}

template <class T>
void reduce_with(ReduceOp op, Inputs inputs, Nodes nodes, Outputs outputs, std::size_t count,
                 std::size_t ahead) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_any<ReduceOp::kSum, T>(inputs, nodes, outputs, count, ahead);
    case ReduceOp::kMin:
      return reduce_any<ReduceOp::kMin, T>(inputs, nodes, outputs, count, ahead);
    case ReduceOp::kMax:
      return reduce_any<ReduceOp::kMax, T>(inputs, nodes, outputs, count, ahead);
    case ReduceOp::kProduct:
      return reduce_any<ReduceOp::kProduct, T>(inputs, nodes, outputs, count, ahead);
    case ReduceOp::kMean:
      break;
  }
  fail(ErrorCode::kInternal, "reduce_along_tree: expected SUM, got MEAN; divide the sum instead");
}

}  // namespace

void require_reduction(ReduceOp op, DType dtype, std::string_view who) {
  if (has_reduction(op, dtype)) return;
  if (dtype == DType::kBool) {
    fail(ErrorCode::kInvalidArgument, who, "expected MIN or MAX for bool, got ", op,
         "; call cast() first");
  }
  fail(ErrorCode::kInvalidArgument, who, "MEAN needs a floating-point type, got ", dtype,
       "; use SUM, or cast() first");
}

void reduce_to_all(ReduceOp op, DType dtype, Inputs inputs, Outputs outputs, std::size_t count,
                   std::size_t ahead, Nodes nodes) {
  if (count == 0) return;
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      require_reduction(op, dtype, "reduce: ");
      // A bool is a byte with the value 0 or 1.
      reduce_with<std::uint8_t>(op, inputs, nodes, outputs, count, ahead);
    } else {
      reduce_with<T>(op, inputs, nodes, outputs, count, ahead);
    }
  });
}

}  // namespace tutti::internal

namespace tutti {

void Canonical::all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) {
  if (buffers.front().work) return internal::canonical_on_gpus(op, buffers);
  std::vector<std::byte*> all;
  for (const ReplicaBuffer& buffer : buffers) all.push_back(buffer.data);
  const std::vector<const std::byte*> inputs(all.begin(), all.end());
  const ReplicaBuffer& first = buffers.front();
  internal::reduce_to_all(op, first.dtype, inputs, all, first.count);
}

}  // namespace tutti

// Implements CrossDeviceOps::sum_segments(): the operation "canonical" reads the segments in place;
// every other operation works on copies.

namespace tutti {
namespace {

using Segment = SegmentedSum::Segment;

/// Size in bytes of a block, which stays in a cache while its values are converted, added and
/// checked.
constexpr std::size_t kSegmentBlock = std::size_t{64} << 10;

template <class Visitor>
void for_blocks(const SegmentedSum& sum, const Segment& segment, const Visitor& visitor) {
  const std::size_t block = kSegmentBlock / size_of(sum.dtype);
  for (std::size_t begin = segment.begin; begin < segment.end; begin += block) {
    visitor(Segment{segment.variable, begin, std::min(segment.end, begin + block)});
  }
}

/// Adds values along the tree without copying them. Not thread-safe.
class TreeAdder {
 public:
  explicit TreeAdder(const SegmentedSum& sum) : sum_(sum), inputs_(sum.replicas.size()) {
    if (sum.sum_dtype != sum.dtype) {
      wide_bytes_ = kSegmentBlock / size_of(sum.dtype) * size_of(sum.sum_dtype);
    }
    if (!sum.copies && wide_bytes_ == 0) return;
    copies_ =
        std::make_unique_for_overwrite<std::byte[]>((kSegmentBlock + wide_bytes_) * inputs_.size());
  }

  void add(std::size_t index) {
    const Segment& segment = sum_.segments[index];
    const auto sums = std::span(sum_.sums).subspan(index * sum_.nodes.size(), sum_.nodes.size());
    if (!copies_ && !sum_.check) return add_block(segment, sums, 0);
    for_blocks(sum_, segment, [&](const Segment& block) {
      const std::size_t offset = (block.begin - segment.begin) * size_of(sum_.sum_dtype);
      add_block(block, sums, offset);
      if (sum_.check) sum_.check(block, sums[0] + offset);
    });
  }

 private:
  void add_block(const Segment& block, std::span<std::byte* const> sums, std::size_t offset) {
    std::byte* place = copies_.get();
    for (std::size_t r = 0; r < inputs_.size(); ++r) {
      inputs_[r] = sum_.values(r, block, place);
      if (!copies_) continue;
      std::byte* const wide = place + kSegmentBlock;
      place = wide + wide_bytes_;
      if (wide_bytes_ == 0) continue;
      widen(sum_.dtype, inputs_[r], reinterpret_cast<float*>(wide), block.count());
      inputs_[r] = wide;
    }
    for (std::size_t n = 0; n < sums.size(); ++n) {
      const CanonicalNode& node = sum_.nodes[n];
      const auto members = std::span<const std::byte* const>(inputs_).subspan(
          static_cast<std::size_t>(node.first), static_cast<std::size_t>(node.count));
      reduce_along_tree(ReduceOp::kSum, sum_.sum_dtype, members, sums[n] + offset, block.count());
    }
  }

  const SegmentedSum& sum_;
  std::size_t wide_bytes_ = 0;            // bytes of a block widened to float32; 0: not widened
  std::vector<const std::byte*> inputs_;  // per replica
  std::unique_ptr<std::byte[]> copies_;   // per replica: a block as 16-bit numbers and as float32
};

}  // namespace

void CrossDeviceOps::sum_segments(const SegmentedSum& sum, const CommunicationOptions& options) {
  TUTTI_CHECK(sum.nodes.size() == 1 && sum.dtype == sum.sum_dtype,
              "sum_segments: only canonical supports several nodes or a type conversion");
  if (sum.segments.empty()) return;
  const std::size_t size = size_of(sum.dtype), count = sum.end - sum.begin;
  std::vector<BufferRef> memory;
  std::vector<ReplicaBuffer> flat;
  for (std::size_t r = 0; r < sum.replicas.size(); ++r) {
    memory.push_back(BufferRef::allocate(count * size));
    std::byte* const buffer = memory.back()->data();
    flat.push_back({buffer, count, sum.dtype, sum.replicas[r], nullptr, sum.id, sum.name});
    std::size_t filled = sum.begin;
    for (const Segment& segment : sum.segments) {
      std::memset(buffer + (filled - sum.begin) * size, 0, (segment.begin - filled) * size);
      filled = segment.end;
      for_blocks(sum, segment, [&](const Segment& block) {
        std::byte* const place = buffer + (block.begin - sum.begin) * size;
        const std::byte* const values = sum.values(r, block, place);
        if (values != place) std::memcpy(place, values, block.count() * size);
      });
    }
    std::memset(buffer + (filled - sum.begin) * size, 0, (sum.end - filled) * size);
  }
  all_reduce_in_place(ReduceOp::kSum, flat, options);
  for (std::size_t i = 0; i < sum.segments.size(); ++i) {
    const Segment& segment = sum.segments[i];
    std::byte* const values = flat[0].data + (segment.begin - sum.begin) * size;
    std::memcpy(sum.sums[i], values, segment.count() * size);
    if (sum.check) sum.check(segment, sum.sums[i]);
  }
}

void Canonical::sum_segments(const SegmentedSum& sum, const CommunicationOptions&) {
  TreeAdder adder(sum);
  for (std::size_t i = 0; i < sum.segments.size(); ++i) {
    adder.add(i);
    note_reduced(sum.segments[i].count() * size_of(sum.dtype) * sum.replicas.size());
  }
}

}  // namespace tutti
