// Pipeline parallelism: stages of a model work concurrently, each on a different micro-batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/model/parallel/staged_sequential.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

// Order in which a stage processes micro-batches.

/// Order of a stage's work. kAllForwardFirst (GPipe): the forward passes of all micro-batches, then
/// all backward passes; simple, but each stage stores the activations of all micro-batches.
/// kOneForwardOneBackward: a stage runs each backward pass as soon as possible, and stores the
/// activations of at most (num_stages - stage) micro-batches. In both orders, backward passes run
/// in micro-batch order, so gradients are bit-identical.
enum class PipelineOrder { kAllForwardFirst, kOneForwardOneBackward };

/// Returns the order's name, for logs and flags.
std::string_view to_string(PipelineOrder order);

/// Task in a stage's schedule.
struct PipelineTask {
  bool is_forward = true;
  int micro_batch = 0;
  bool operator==(const PipelineTask&) const = default;
};

/// Returns the tasks of stage `stage` of `num_stages`: one forward and one backward pass of each
/// micro-batch. Throws kInvalidArgument if an argument is out of range.
std::vector<PipelineTask> pipeline_schedule(PipelineOrder order, int stage, int num_stages,
                                            int num_micro_batches);

struct PipelineOptions {
  /// Number of micro-batches that a batch is split into, along its rows.
  int micro_batches = 4;
  PipelineOrder order = PipelineOrder::kAllForwardFirst;
  /// Maximum time for which a stage waits for another stage; after that, it throws
  /// kDeadlineExceeded, naming both stages.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Result of one batch.
struct PipelineResult {
  /// Mean loss over the batch's rows plus the regularisation losses, a scalar on the last device.
  Tensor loss;
  /// Gradients in the order of the model's trainable_variables(), each on its variable's device.
  std::vector<Gradient> gradients;
  /// Transfers between devices, ordered by stage.
  std::vector<Transfer> transfers;
};

/// Runs a StagedSequential with a thread per stage: while stage 1 processes micro-batch 0, stage 0
/// processes micro-batch 1. Gradients are added in micro-batch order, so results do not depend on
/// timing and are bit-identical to those of one device that runs the micro-batches one after
/// another. Layers treat a micro-batch as a batch, so batch normalisation computes its statistics
/// per micro-batch (as in GPipe). Not thread-safe.
class Pipeline {
 public:
  /// Maps labels and predictions of a micro-batch to one loss per example, like the functions in
  /// losses::. Called on the thread of the last stage.
  using LossFunction = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

  Pipeline(StagedSequential model, LossFunction loss, PipelineOptions options = {});
  /// Stops and joins the threads.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Runs the forward and backward passes for a batch. features [rows, ...] and labels [rows, ...]
  /// may be on any device. Pass the resulting gradients to optimizer.apply_gradients(). Rethrows a
  /// stage's error, prefixed with the stage, device and micro-batch. Throws kInvalidArgument for
  /// fewer rows than micro-batches, and kUnimplemented for layers that add losses in call() and for
  /// masks that would cross stages.
  PipelineResult gradients(const Tensor& features, const Tensor& labels);

  const StagedSequential& model() const;
  /// Return and set the number of finished batches, on which dropout depends. Set it when resuming
  /// from a checkpoint.
  std::uint64_t num_steps() const;
  void set_num_steps(std::uint64_t steps);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
