// Variables of a model function, and the state of a training run. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/model/estimator/estimator.h"
#include "tutti/model/layers/metric.h"

namespace tutti {

/// Arguments that the first call to a model function passed when it created a variable.
struct RecordedVariable {
  Variable::Initializer initializer;
  RandomKey key;
  VariableOptions options;
};

/// Variables and model function for one call to train(), evaluate() or predict().
struct Estimator::Graph {
  Strategy& strategy;
  ModelFn model_fn;
  EstimatorMode mode;
  std::vector<RecordedVariable> record;
  std::vector<Variable> variables;
  std::unique_ptr<Optimizer> optimizer;  // for kTrain only
  std::vector<Mean> metrics;             // for kEval only: "loss" and the spec's metrics

  /// Calls the model function in a replica.
  EstimatorSpec operator()(const Batch& batch) const;
  /// Runs one training step in a replica and returns that replica's share of the loss.
  Tensor train(const Batch& batch) const;
  /// Returns a checkpoint that refers to this graph, which must not move.
  Checkpoint checkpoint() const;
};

/// State of one train() call: restored checkpoint, steps, hooks.
struct Estimator::Run {
  /// Throws kInvalidArgument unless the given numbers of steps are positive.
  static void check(const EstimatorTrainOptions& options);
  /// Throws kInvalidArgument for infinite data if nothing else ends training.
  static void require_end(const EstimatorTrainOptions& options,
                          std::optional<std::int64_t> cardinality);
  /// Restores a checkpoint and calls the hooks' begin(). `graph` and `estimator` must outlive this
  /// object.
  Run(Estimator& estimator, Graph& graph, EstimatorTrainOptions options);
  bool should_continue() const { return context.global_step < last && !context.is_asked_to_stop; }
  /// Reports a finished step, and its loss over all replicas, to the hooks.
  void step(double loss);
  void end();

  Estimator& estimator;
  Graph& graph;
  CheckpointManager manager;
  std::vector<std::shared_ptr<SessionRunHook>> hooks;
  SessionRunContext context;
  std::int64_t last = 0;    // number of the last step
  std::int64_t saved = -1;  // step of the last save; -1 if nothing was saved
  /// Returns the number of steps that have updated the variables; checkpoints have this number in
  /// their names.
  std::function<std::int64_t()> num_done = [this] { return context.global_step; };
};

}  // namespace tutti
