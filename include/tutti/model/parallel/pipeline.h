// Pipeline parallelism: stages of a model work concurrently, each on another micro-batch.
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

// The order in which a stage works on micro-batches.

/// kAllForwardFirst (GPipe): all micro-batches run forward, then all run backward. Simple, but each
/// stage keeps the activations of all of them. kOneForwardOneBackward: a stage runs backward as
/// soon as it can, and keeps at most as many micro-batches as there are stages from it to the end.
/// Both run backward in the order 0, 1, ..., so that gradients have the same bits.
enum class PipelineOrder { kAllForwardFirst, kOneForwardOneBackward };

/// Returns the name of the order for logs and flags.
std::string_view to_string(PipelineOrder order);

/// Task in the schedule of a stage.
struct PipelineTask {
  bool is_forward = true;
  int micro_batch = 0;
  bool operator==(const PipelineTask&) const = default;
};

/// Returns the tasks of stage `stage` of `num_stages`: each micro-batch forward once and backward
/// once. Throws kInvalidArgument for numbers out of range.
std::vector<PipelineTask> pipeline_schedule(PipelineOrder order, int stage, int num_stages,
                                            int num_micro_batches);

struct PipelineOptions {
  /// Number of micro-batches that a batch is split into, along its rows.
  int micro_batches = 4;
  PipelineOrder order = PipelineOrder::kAllForwardFirst;
  /// Time that a stage waits for another one before it throws kDeadlineExceeded, naming both.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Result of one batch.
struct PipelineResult {
  /// Mean loss [] over the batch's rows plus the regularisation losses, on the last device.
  Tensor loss;
  /// Gradients in the order of the model's trainable_variables(), each on its variable's device.
  std::vector<Gradient> gradients;
  /// Transfers between devices, stage by stage.
  std::vector<Transfer> transfers;
};

/// Runs a StagedSequential with a thread per stage: while stage 1 works on micro-batch 0, stage 0
/// continues with micro-batch 1. Gradients of micro-batches are added in their order, so the bits
/// do not depend on timing and equal those of one device that runs the micro-batches one after the
/// other. Layers see micro-batches as batches: batch normalisation computes its statistics per
/// micro-batch (as in GPipe). Not thread-safe.
class Pipeline {
 public:
  /// Maps labels and predictions of a micro-batch to one loss per example, like the functions of
  /// losses::. Called on the thread of the last stage.
  using LossFunction = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

  Pipeline(StagedSequential model, LossFunction loss, PipelineOptions options = {});
  /// Stops and joins the threads.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Runs the forward and backward pass of a batch on any device: features [rows, ...], labels
  /// [rows, ...]. Rethrows a stage's error with stage, device and micro-batch in front. Throws
  /// kInvalidArgument for fewer rows than micro-batches; kUnimplemented for layers that add losses
  /// in call() and for masks that would cross stages. Use with optimizer.apply_gradients().
  PipelineResult gradients(const Tensor& features, const Tensor& labels);

  const StagedSequential& model() const;
  /// Number of finished batches, on which dropout depends. A program that resumes sets it.
  std::uint64_t num_steps() const;
  void set_num_steps(std::uint64_t steps);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
