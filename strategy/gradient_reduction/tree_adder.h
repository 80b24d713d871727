// Adding replicas' gradients along the canonical tree.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/strategy/gradient_reduction/given_gradients.h"

namespace tutti::internal {

/// The sums of one bucket's pieces over nodes of the canonical tree. Threads: one.
class TreeAdder {
 public:
  /// `nodes`: replicas of this process. sums[i] is the bucket's sum of nodes[i], of the bucket's
  /// type or, of 16-bit types, float32.
  TreeAdder(GivenGradients& given, std::size_t bucket, std::span<const CanonicalNode> nodes,
            std::span<const Elements> sums);
  /// `clean`: as in GivenGradients::prepared().
  void add(const Piece& piece, bool clean);

 private:
  void add_inputs(const Piece& piece, bool clean);

  GivenGradients& given_;
  const std::span<const CanonicalNode> nodes_;
  const std::span<const Elements> sums_;
  const DType dtype_, sum_dtype_;
  const std::size_t wide_bytes_;           // of a block in the type of the sums, if that is another
  std::vector<const std::byte*> inputs_;   // per replica
  std::unique_ptr<std::byte[]> prepared_;  // per replica, a block in both types
};

}  // namespace tutti::internal
