// Dense layers by model behind convolutions by data: Krizhevsky's "one weird trick".
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

/// Which examples the dense layers work on at a time, where each of K replicas has features of its
/// own. The letters are those of Krizhevsky (arXiv 1404.5997, section 4).
enum class HybridScheme {
  /// (a): one turn with the examples of all replicas. The largest products; each device holds the
  /// features of the whole batch.
  kAllAtOnce,
  /// (b): K turns, each with the examples of one replica, which sends its features to all others.
  kOneByOne,
  /// (c): K turns, each with a K-th of every replica's examples: all devices send as much.
  kSharesOfAll,
};

/// "all at once", "one by one", "shares of all".
std::string_view to_string(HybridScheme scheme);

struct HybridDenseOptions {
  HybridScheme scheme = HybridScheme::kSharesOfAll;
  /// The most examples of one update of the dense layers, which change between turns: (1024, 128)
  /// of the paper is a global batch of 1024 and 128 here. 0: all examples of the step.
  std::int64_t dense_batch = 0;
  /// Of the dense layers: without loss scaling. Norms that it takes (clipnorm, global_clipnorm,
  /// LARS, LAMB) are those of the weights of one device.
  OptimizerSpec optimizer = "sgd";
};

/// What one step did, on all devices.
struct HybridStep {
  int num_turns = 0;
  int num_updates = 0;  // of the dense layers
  /// What moved between devices: of each turn features, results, gradients of the results, and
  /// gradients of the features, in this order.
  std::vector<std::vector<Transfer>> exchanges;

  /// Of all exchanges.
  std::size_t bytes() const;
  /// Of each exchange the bytes that the busiest device sent, or received if these were more: what
  /// the time of the exchanges grows with where each device has a link of its own.
  std::size_t busiest_bytes() const;
};

/// The dense layers of a model whose layers below are copied on K devices: each device has a part
/// of the dense weights and makes its part of the results for the examples of all replicas. So
/// features move instead of the gradients of the dense weights.
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
/// Without a dense_batch a step is that of one device, within rounding; with one the convolutions'
/// gradients are those of dense layers that changed meanwhile, as in the paper. To evaluate, call
/// the layers themselves: `layers(convolutions(x))` outside of run(). Values are added in an order
/// that the scheme fixes, so runs repeat their bits. Copies share everything.
class HybridDense {
 public:
  /// Made outside of the strategy's scope, as `layers`, which are built or know their input_shape.
  /// `loss`: by name, of logits. Throws kInvalidArgument for a negative dense_batch, layers that
  /// are neither, and an optimizer that scales its loss; kFailedPrecondition in a strategy's scope.
  HybridDense(ParallelDensePair layers, Loss loss, HybridDenseOptions options = {});

  /// Forward pass, backward pass and update of the dense layers for the step of all replicas, which
  /// call it together. `features` [rows, in] and `labels` [rows, ...]: this replica's; rows may
  /// differ and be none. Returns this replica's share [] of the mean loss over the global batch; a
  /// tape that recorded `features` takes their gradient from it. The strategy has one process and
  /// its replica r is on the r-th device of the layers, else kInvalidArgument, as for shapes,
  /// types, and turns larger than dense_batch; kUnimplemented in captured steps.
  Tensor train(const Tensor& features, const Tensor& labels) const;

  const ParallelDensePair& layers() const;
  /// What the last step did. Outside run().
  HybridStep last_step() const;
  /// What a checkpoint holds besides the weights: the optimizers' state, "part_0/sgd/iteration" ...
  std::vector<Variable> state_variables() const;
  /// That of the next update. Outside run(); setting it is kFailedPrecondition with a schedule.
  double learning_rate() const;
  void set_learning_rate(double value);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tutti
