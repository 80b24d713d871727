// Dense layers that are sharded across the workers of a mesh and follow data-parallel layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/mesh.h"
#include "tutti/tutti.h"

namespace tutti::examples {

/// Choice of the examples that the dense layers process in one round. Each of the K workers has the
/// features of its own rows. Krizhevsky (arXiv 1404.5997, section 4) names the schemes (a), (b) and
/// (c).
enum class DenseScheme {
  /// (a): one round with the examples of all workers. It has the largest matrix products, but each
  /// worker stores the features of the full batch.
  kAllAtOnce,
  /// (b): K rounds, each with the examples of one worker, which sends its features to all other
  /// workers.
  kOneByOne,
  /// (c): K rounds, each with 1/K of every worker's examples. All workers send the same amount.
  kSharesOfAll,
};

/// Returns layouts for layers named "hidden" and "output" over the axis "worker": each worker has
/// some of the hidden units.
LayoutMap sharded_dense_layouts();

/// Runs a step on a batch that is sharded over "worker". The layers `below` process each worker's
/// rows. `dense` (a hidden layer with relu and an output layer) processes the rows of all workers.
/// With `rounds` > 1, each worker's rows are split into `rounds` equal shares. Each round then
/// processes one share and updates the dense layers. Returns the mean loss.
Tensor hybrid_step(const Batch& batch, const Model& below, Optimizer& below_optimizer,
                   const Model& dense, Optimizer& dense_optimizer, DenseScheme scheme,
                   int rounds = 1);

}  // namespace tutti::examples
