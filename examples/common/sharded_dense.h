// Dense layers that are sharded over the workers of a mesh, above layers that share the batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/mesh.h"
#include "tutti/tutti.h"

namespace tutti::examples {

/// Examples that the dense layers process in one round, where each of K workers has its own
/// features. The letters are those of Krizhevsky (arXiv 1404.5997, section 4).
enum class DenseScheme {
  /// (a): one round with the examples of all workers. Largest products, but each worker holds the
  /// features of the whole batch.
  kAllAtOnce,
  /// (b): K rounds, each with the examples of one worker, which sends its features to all others.
  kOneByOne,
  /// (c): K rounds, each with 1/K of every worker's examples; all workers send the same amount.
  kSharesOfAll,
};

/// Returns the layouts of layers named "hidden" and "output" over the axis "worker": each worker
/// has some hidden units.
LayoutMap sharded_dense_layouts();

/// Runs a step on a batch that is cut over "worker": the layers `below` on each worker's rows, and
/// `dense`, a hidden layer with relu and an output layer, on those of all workers. With `rounds` >
/// 1 the dense layers are updated after each of as many equal shares of every worker's rows; each
/// round takes its share at once. Returns the mean loss.
Tensor hybrid_step(const Batch& batch, const Model& below, Optimizer& below_optimizer,
                   const Model& dense, Optimizer& dense_optimizer, DenseScheme scheme,
                   int rounds = 1);

}  // namespace tutti::examples
