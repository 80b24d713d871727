// Stages of a model that work at the same time, each on another micro-batch.
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

// In which order a stage of a pipeline works on micro-batches.

/// kAllForwardFirst: GPipe's. All micro-batches go forward, then all go back: simple, and each
/// stage keeps what all of them need. kOneForwardOneBackward: a stage goes back as soon as it can
/// and keeps at most as many micro-batches as there are stages from it to the end. Both go back
/// in the order 0, 1, ..., so that gradients have the same bits.
enum class PipelineOrder { kAllForwardFirst, kOneForwardOneBackward };

/// Its name for logs and flags.
std::string_view to_string(PipelineOrder order);

/// What a stage does at one time.
struct PipelineTask {
  bool is_forward = true;
  int micro_batch = 0;
  bool operator==(const PipelineTask&) const = default;
};

/// The tasks of stage `stage` of `num_stages`, each micro-batch forward once and backward once.
/// Throws kInvalidArgument for numbers out of range.
std::vector<PipelineTask> pipeline_schedule(PipelineOrder order, int stage, int num_stages,
                                            int num_micro_batches);

struct PipelineOptions {
  /// Parts that a batch is cut into, along its rows.
  int micro_batches = 4;
  PipelineOrder order = PipelineOrder::kAllForwardFirst;
  /// How long a stage waits for another one before kDeadlineExceeded names both.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// What one batch gave.
struct PipelineResult {
  /// []: the mean over the batch's rows, and the regularisation losses; on the last device.
  Tensor loss;
  /// In the order of the model's trainable_variables(), each on its variable's device.
  std::vector<Gradient> gradients;
  /// What moved between devices, stage by stage.
  std::vector<Transfer> transfers;
};

/// Runs a StagedSequential with a thread per stage: while stage 1 works on micro-batch 0, stage 0
/// goes on with micro-batch 1. Gradients of micro-batches are added in their order, so the bits are
/// those of one device that takes the same micro-batches one after the other, whatever the timing.
/// Layers see micro-batches as batches: batch normalisation takes its statistics from one (as
/// GPipe). Used by one thread.
class Pipeline {
 public:
  /// Labels and predictions of a micro-batch to one loss per example: losses::. Called on the
  /// thread of the last stage.
  using LossFunction = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

  Pipeline(StagedSequential model, LossFunction loss, PipelineOptions options = {});
  /// Ends the threads.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Forward and backward pass of a batch, on any device: features [rows, ...], labels [rows, ...].
  /// For optimizer.apply_gradients(). Throws what a stage threw with stage, device and micro-batch
  /// in front; kInvalidArgument when there are fewer rows than micro-batches; kUnimplemented for
  /// layers that add losses in call() and for masks that would cross from stage to stage.
  PipelineResult gradients(const Tensor& features, const Tensor& labels);

  const StagedSequential& model() const;
  /// Batches done; dropout depends on it. A program that resumes sets it.
  std::uint64_t num_steps() const;
  void set_num_steps(std::uint64_t steps);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
