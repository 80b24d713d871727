// Parts of the canonical tree.
// SPDX-License-Identifier: Apache-2.0
//
// A node covers the replicas [first, first + count) where count is a power of two that divides
// first, or less at the tree's right edge. Its children are the left half, of the largest power of
// two below count, and the rest (canonical_tree.cc).
#include "tutti/cross_device_ops/canonical_nodes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/combine.h"
#include "tutti/tensor/buffer.h"

namespace tutti {
namespace {

constexpr std::size_t kBlockBytes = 16 * 1024;

int left_half(int count) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
}

void add_whole_nodes(CanonicalNode node, int first, int last, std::vector<CanonicalNode>& nodes) {
  const int end = node.first + node.count;
  if (end <= first || node.first >= last) return;
  if (node.first >= first && end <= last) {
    nodes.push_back(node);
    return;
  }
  const int half = left_half(node.count);
  add_whole_nodes({node.first, half}, first, last, nodes);
  add_whole_nodes({node.first + half, node.count - half}, first, last, nodes);
}

/// Combines one block of elements, from `begin` on.
class BlockCombiner {
 public:
  BlockCombiner(ReduceOp op, DType dtype, std::span<const CanonicalNode> nodes,
                std::span<const std::byte* const> inputs)
      : op_(op), dtype_(dtype), nodes_(nodes), inputs_(inputs) {}

  /// Into `out`; `scratch` has a block per further level.
  void combine(CanonicalNode node, std::size_t begin, std::size_t count, std::byte* out,
               std::byte* scratch) const {
    const auto given = std::ranges::find(nodes_, node);
    if (given != nodes_.end()) {
      const std::byte* const input = inputs_[static_cast<std::size_t>(given - nodes_.begin())];
      std::memcpy(out, input + begin * size_of(dtype_), count * size_of(dtype_));
      return;
    }
    if (node.count == 1) {
      fail(ErrorCode::kInternal, "combine_nodes: nobody gave the value of replica ", node.first);
    }
    const int half = left_half(node.count);
    combine({node.first, half}, begin, count, out, scratch);
    combine({node.first + half, node.count - half}, begin, count, scratch, scratch + kBlockBytes);
    internal::combine(op_, dtype_, out, scratch, out, count);
  }

 private:
  const ReduceOp op_;
  const DType dtype_;
  const std::span<const CanonicalNode> nodes_;
  const std::span<const std::byte* const> inputs_;
};

}  // namespace

std::vector<CanonicalNode> canonical_nodes(int first, int count, int num_replicas) {
  if (first < 0 || count < 1 || first + count > num_replicas) {
    fail(ErrorCode::kInvalidArgument, "canonical_nodes: replicas [", first, ", ", first + count,
         "); expected some of [0, ", num_replicas, ")");
  }
  std::vector<CanonicalNode> nodes;
  add_whole_nodes({0, num_replicas}, first, first + count, nodes);
  return nodes;
}

void combine_nodes(ReduceOp op, DType dtype, std::span<const CanonicalNode> nodes,
                   std::span<const std::byte* const> inputs, std::byte* output, std::size_t count) {
  if (nodes.empty() || nodes.size() != inputs.size()) {
    fail(ErrorCode::kInvalidArgument, "combine_nodes: ", nodes.size(), " nodes and ", inputs.size(),
         " inputs; expected one input per node, and one node or more");
  }
  const CanonicalNode root{0, nodes.back().first + nodes.back().count};
  const auto levels = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(root.count)));
  const BufferRef blocks = BufferRef::allocate((levels + 2) * kBlockBytes);
  const BlockCombiner combiner(op, dtype, nodes, inputs);
  const std::size_t block = kBlockBytes / size_of(dtype);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    // Beside the inputs, of which the output may be one.
    combiner.combine(root, begin, n, blocks->data(), blocks->data() + kBlockBytes);
    std::memcpy(output + begin * size_of(dtype), blocks->data(), n * size_of(dtype));
  }
}

}  // namespace tutti
