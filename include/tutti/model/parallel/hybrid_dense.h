// Model-parallel dense layers behind data-parallel convolutions ("one weird trick").
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/model/layers/losses.h"
#include "tutti/model/parallel/parallel_dense.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/tensor/dispatch.h"

namespace tutti {

/// Examples that the dense layers process in one round, where each of K replicas has its own
/// features. The letters are those of Krizhevsky (arXiv 1404.5997, section 4).
enum class HybridScheme {
  /// (a): one round with the examples of all replicas. Largest products, but each device holds the
  /// features of the whole batch.
  kAllAtOnce,
  /// (b): K rounds, each with the examples of one replica, which sends its features to all others.
  kOneByOne,
  /// (c): K rounds, each with 1/K of every replica's examples; all devices send the same amount.
  kSharesOfAll,
};

/// Returns "all at once", "one by one" or "shares of all".
std::string_view to_string(HybridScheme scheme);

struct HybridDenseOptions {
  HybridScheme scheme = HybridScheme::kSharesOfAll;
  /// Most examples per update of the dense layers, which may be updated between rounds. (1024, 128)
  /// of the paper is a global batch of 1024 and 128 here. 0: all examples of the step.
  std::int64_t dense_batch = 0;
  /// Optimizer of the dense layers, without loss scaling. Its norms (clipnorm, global_clipnorm,
  /// LARS, LAMB) are those of the weights of one device.
  OptimizerSpec optimizer = "sgd";
};

/// Report of one step, over all devices.
struct HybridStep {
  int num_rounds = 0;
  int num_updates = 0;  // of the dense layers
  /// Transfers between devices: for each round features, results, gradients of the results, and
  /// gradients of the features, in this order.
  std::vector<std::vector<Transfer>> exchanges;

  /// Returns the bytes of all exchanges.
  std::size_t bytes() const;
  /// Returns the sum over exchanges of the bytes that the busiest device sent, or received if more.
  /// The time of the exchanges grows with it if each device has its own link.
  std::size_t busiest_bytes() const;
};

/// Model-parallel dense layers of a model whose lower layers are replicated on K devices. Each
/// device has a part of the dense weights and computes its part of the results for the examples of
/// all replicas, so features are exchanged instead of gradients of the dense weights.
///
///     MirroredStrategy strategy("cpu:0-3");
///     ParallelDensePair layers(4096, 10, {.devices = "cpu:0-3", .activation = "relu",
///                                         .input_shape = Shape{9216}});
///     HybridDense dense(layers, "sparse_categorical_crossentropy", {.dense_batch = 128});
///     ...
///     auto step = [&](const Batch& batch) {  // in strategy.run()
///       GradientTape tape;
///       Tensor features = convolutions(batch.features(), {.training = true});
///       Tensor loss = dense.train(features, batch.labels());  // updates the dense layers, too
///       optimizer.minimize(tape, loss);                       // of the convolutions
///       return loss;
///     };
///
/// Without a dense_batch, a step equals that of one device up to rounding. With one, the
/// convolutions' gradients come from dense layers that change within the step, as in the paper. To
/// evaluate, call the layers themselves outside run(): `layers(convolutions(x))`. The scheme fixes
/// the order of additions, so runs repeat their bits. Copies share all state.
class HybridDense {
 public:
  /// Create it outside the strategy's scope, like `layers`, which must be built or have an
  /// input_shape. `loss` gets logits. Throws kInvalidArgument for a negative dense_batch, other
  /// layers, and an optimizer that scales its loss; kFailedPrecondition in a strategy's scope.
  HybridDense(ParallelDensePair layers, Loss loss, HybridDenseOptions options = {});

  /// Runs the forward pass, backward pass and update of the dense layers. Collective: every replica
  /// must call it. `features` [rows, in] and `labels` [rows, ...] are this replica's; rows may
  /// differ and be 0. Returns this replica's share [] of the mean loss over the global batch; a
  /// tape that recorded `features` takes their gradient from it. Replica r must be on the r-th
  /// device of the layers, in one process. Throws kInvalidArgument if not, and for wrong shapes or
  /// types and rounds larger than dense_batch; kUnimplemented in captured steps.
  Tensor train(const Tensor& features, const Tensor& labels) const;

  const ParallelDensePair& layers() const;
  /// Returns the report of the last step. Call it outside run().
  HybridStep last_step() const;
  /// Returns the optimizers' state for checkpoints: "part_0/sgd/iteration" ...
  std::vector<Variable> state_variables() const;
  /// Learning rate of the next update. Call it outside run(). Set it only without a schedule.
  double learning_rate() const;
  void set_learning_rate(double value);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tutti
