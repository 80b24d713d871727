// Parts of the canonical tree.
// SPDX-License-Identifier: Apache-2.0
//
// A node covers the replicas [first, first + count) where count is a power of two that divides
// first, or less at the tree's right edge. Its children are the left_half() and the rest.
#include "tutti/cross_device_ops/canonical_nodes.h"

#include "tutti/core/error.h"
#include "tutti/cross_device_ops/element_arithmetic.h"

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

}  // namespace tutti
