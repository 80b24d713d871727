// The canonical tree: one order of additions for a given number of replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Combines `inputs` (one per replica) into `output` along the canonical tree over the replica
/// number: in each round neighbour 2i+1 is added to 2i, an odd last one passes up. 16-bit numbers
/// are combined as floats and rounded once. Inputs are not changed; `output` may be one of them.
/// MEAN is refused. docs/determinism.md.
void reduce_along_tree(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                       std::byte* output, std::size_t count);

/// The same for tensors of one shape and dtype (one per replica, on any device): result on
/// `destination`. MEAN divides by the number of values; for integers MEAN gives float32 (tf's true
/// division).
Tensor reduce_tensors_along_tree(ReduceOp op, std::span<const Tensor> values, Device destination);

// Parts of the tree: what a worker adds before it sends, and how such parts become one.

/// The replicas [first, first + count) whose values a node of the canonical tree combines.
struct CanonicalNode {
  int first = 0;
  int count = 0;
  bool operator==(const CanonicalNode&) const = default;
};

/// The largest whole nodes of the tree over `num_replicas` that replicas [first, first + count)
/// fill, in order: at most 2 ceil(log2 V). Their values, each combined along its own canonical
/// tree, are all that others need. kInvalidArgument for replicas out of range.
std::vector<CanonicalNode> canonical_nodes(int first, int count, int num_replicas);

/// The root's value of the values of `nodes`, which are disjoint, in order, and together all
/// replicas: the bits of reduce_along_tree() of all replicas' values. 16-bit types are converted to
/// float32 before. `output` may be one of the inputs. kInternal for other nodes.
void combine_nodes(ReduceOp op, DType dtype, std::span<const CanonicalNode> nodes,
                   std::span<const std::byte* const> inputs, std::byte* output, std::size_t count);

namespace internal {

/// SUM, MIN, MAX and PRODUCT of every type; of bool MIN and MAX alone. What combines more than two
/// values in several steps must refuse 16-bit types itself: it would round each.
inline bool can_combine(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kMean) return false;
  return dtype != DType::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax;
}

/// out[i] = left[i] op right[i]: the tree of two.
inline void combine(ReduceOp op, DType dtype, const std::byte* left, const std::byte* right,
                    std::byte* out, std::size_t count) {
  const std::byte* const inputs[] = {left, right};
  reduce_along_tree(op, dtype, inputs, out, count);
}

}  // namespace internal

}  // namespace tutti
