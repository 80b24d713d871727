// The canonical tree: a fixed order of additions for each number of replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Combines `inputs` (one per replica) into `output` along the canonical tree over replica numbers
/// (docs/determinism.md). In each round, value 2i + 1 is added to value 2i; an unpaired last value
/// moves to the next round unchanged. 16-bit numbers are combined as floats and rounded once.
/// `output` may be one of the inputs; the other inputs are not changed. Throws kInternal for MEAN.
void reduce_along_tree(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs,
                       std::byte* output, std::size_t count);

/// Same as reduce_along_tree(), but for tensors of one shape and dtype (one per replica, on any
/// device); returns the result on `destination`. MEAN divides by the number of values; for
/// integers, the result is float32 (tf's true division).
Tensor reduce_tensors_along_tree(ReduceOp op, std::span<const Tensor> values, Device destination);

// Subtrees: a worker combines its own replicas' values before it sends them; receivers combine the
// results.

/// The replicas [first, first + count) whose values a node of the canonical tree combines.
struct CanonicalNode {
  int first = 0;
  int count = 0;
  bool operator==(const CanonicalNode&) const = default;
};

/// Returns, in order, the largest nodes of the tree over `num_replicas` that contain only replicas
/// [first, first + count): at most 2 ceil(log2 num_replicas) nodes. Other workers need only the
/// values of these nodes, each combined along its own canonical tree. Throws kInvalidArgument for
/// replicas out of range.
std::vector<CanonicalNode> canonical_nodes(int first, int count, int num_replicas);

/// Combines the values of `nodes` into the root's value, which is bit-identical to the result of
/// reduce_along_tree() for all replicas' values. Throws kInternal unless the nodes follow one
/// another from replica 0 on and form complete subtrees. Callers widen 16-bit types first. `output`
/// may be an input.
void combine_nodes(ReduceOp op, DType dtype, std::span<const CanonicalNode> nodes,
                   std::span<const std::byte* const> inputs, std::byte* output, std::size_t count);

namespace internal {

/// Returns true for SUM, MIN, MAX and PRODUCT, except that bool supports only MIN and MAX. An
/// algorithm that combines more than two values in several steps must reject 16-bit types itself,
/// because it would round at each step.
inline bool can_combine(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kMean) return false;
  return dtype != DType::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax;
}

/// Computes out[i] = left[i] op right[i], i.e. the reduction tree for two inputs.
inline void combine(ReduceOp op, DType dtype, const std::byte* left, const std::byte* right,
                    std::byte* out, std::size_t count) {
  const std::byte* const inputs[] = {left, right};
  reduce_along_tree(op, dtype, inputs, out, count);
}

}  // namespace internal

}  // namespace tutti
