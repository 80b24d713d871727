// Parts of the canonical tree: what a worker adds before it sends, and how such parts become one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// The replicas [first, first + count) whose values a node of the canonical tree combines.
struct CanonicalNode {
  int first = 0;
  int count = 0;
  bool operator==(const CanonicalNode&) const = default;
};

/// The largest whole nodes of the tree over `num_replicas` that replicas [first, first + count)
/// fill, in order: at most 2 ceil(log2 V). Their values, each combined along its own (smaller)
/// canonical tree, are all that others need of these replicas. kInvalidArgument for replicas out of
/// range.
std::vector<CanonicalNode> canonical_nodes(int first, int count, int num_replicas);

/// The root's value of the values of `nodes`, which are disjoint, in order, and together all
/// replicas: the same bits as reduce_along_tree() of all replicas' values, for types that are not
/// rounded in between (16-bit ones are combined as float32: convert them first). `output` may be
/// one of the inputs. kInternal for nodes that are no whole parts of the tree. canonical_tree.cc.
void combine_nodes(ReduceOp op, DType dtype, std::span<const CanonicalNode> nodes,
                   std::span<const std::byte* const> inputs, std::byte* output, std::size_t count);

}  // namespace tutti
