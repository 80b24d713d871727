// The variables of a model function, and what surrounds the steps that train them. Internal.
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

/// How the first call of a model function made a variable.
struct RecordedVariable {
  Variable::Initializer initializer;
  RandomKey key;
  VariableOptions options;
};

/// What one call trains, evaluates or asks.
struct Estimator::Graph {
  Strategy& strategy;
  ModelFn model_fn;
  EstimatorMode mode;
  std::vector<RecordedVariable> record;
  std::vector<Variable> variables;
  std::unique_ptr<Optimizer> optimizer;  // kTrain
  std::vector<Mean> metrics;             // kEval: "loss" and those of the spec

  /// In a replica.
  EstimatorSpec operator()(const Batch& batch) const;
  /// In a replica: one update. Its share of the loss.
  Tensor train(const Batch& batch) const;
  /// While the graph stays where it is.
  Checkpoint checkpoint() const;
};

/// What surrounds the steps of one train(): the checkpoint before, steps, hooks.
struct Estimator::Run {
  /// Throws kInvalidArgument for steps that are not positive.
  static void check(const EstimatorTrainOptions& options);
  /// Throws kInvalidArgument for data that never end where nothing else ends training.
  static void require_end(const EstimatorTrainOptions& options,
                          std::optional<std::int64_t> cardinality);
  /// Restores, and begins the hooks. `graph` and `estimator` outlive it.
  Run(Estimator& estimator, Graph& graph, EstimatorTrainOptions options);
  bool goes_on() const { return context.global_step < last && !context.is_asked_to_stop; }
  /// A step was done, with this loss of all replicas.
  void step(double loss);
  void end();

  Estimator& estimator;
  Graph& graph;
  CheckpointManager manager;
  std::vector<std::shared_ptr<SessionRunHook>> hooks;
  SessionRunContext context;
  std::int64_t last = 0;    // step
  std::int64_t saved = -1;  // step
  /// How many steps the variables have seen: what a checkpoint is called by.
  std::function<std::int64_t()> num_done = [this] { return context.global_step; };
};

}  // namespace tutti
