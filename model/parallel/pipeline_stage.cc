// One stage's forward and backward passes.
// SPDX-License-Identifier: Apache-2.0
//
// A tape per micro-batch: it watches the stage's input, stops at the stage's end, and walks back
// when the gradient of the stage's result has come from the next stage.
#include "tutti/model/parallel/pipeline_stage.h"

#include <utility>

#include "tutti/core/trace.h"
#include "tutti/model/layers/average_loss.h"
#include "tutti/model/layers/masks.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::internal {

using Way = PipelineMail::Way;

MicroBatches cut_into_micro_batches(const Tensor& features, const Tensor& labels, int parts) {
  const std::int64_t rows = features.rank() == 0 ? 0 : features.shape()[0];
  const std::int64_t num_labels = labels.rank() == 0 ? 0 : labels.shape()[0];
  if (rows != num_labels || rows < parts) {
    fail(ErrorCode::kInvalidArgument, "Pipeline::gradients: expected as many labels as examples, ",
         "and at least one row for each of the ", parts, " micro-batches, got features ",
         features.shape(), " and labels ", labels.shape(), "; try fewer micro_batches");
  }
  MicroBatches batch{{}, {}, rows};
  for (std::int64_t k = 0, first = 0; k < parts; ++k) {
    const std::int64_t count = rows / parts + (k < rows % parts);
    batch.features.push_back(features.rows(first, count));
    batch.labels.push_back(labels.rows(first, count));
    first += count;
  }
  return batch;
}

PipelineStage::PipelineStage(const StagedSequential& model, const Pipeline::LossFunction& loss,
                             const MicroBatches& batch, PipelineMail& mail, std::size_t number)
    : model_(model),
      loss_function_(loss),
      batch_(batch),
      mail_(mail),
      number_(number),
      device_(model.device(number)),
      variables_(model.trainable_variables(number)),
      kept_(batch.features.size()),
      sums_(variables_.size()) {}

void PipelineStage::run(const std::vector<PipelineTask>& tasks) {
  try {
    run_all(tasks);
  } catch (...) {
    kept_.clear();  // tapes that still record end on their own thread
    throw;
  }
}

void PipelineStage::run_all(const std::vector<PipelineTask>& tasks) {
  TransferLog log;
  for (const PipelineTask& task : tasks) {
    const TraceSpan span(
        task.is_forward ? "forward" : "backward", "compute",
        {{"stage", static_cast<std::int64_t>(number_)}, {"micro_batch", task.micro_batch}});
    const auto k = static_cast<std::size_t>(task.micro_batch);
    try {
      task.is_forward ? forward(k) : backward(k);
    } catch (const Error& error) {
      throw error.with_context(concat(mail_.name_of(number_), ", micro-batch ", k, ", ",
                                      task.is_forward ? "forward" : "backward"));
    }
  }
  add_regularization();
  transfers_ = log.transfers();
}

Tensor PipelineStage::loss_of(std::size_t k, const Tensor& predictions) const {
  const DeviceScope scope(device_);
  const Tensor labels = transfer(batch_.labels[k], device_);
  return compute_average_loss(loss_function_(labels, predictions), batch_.rows);
}

void PipelineStage::forward(std::size_t k) {
  const Tensor given = is_first() ? batch_.features[k] : mail_.take(Way::kForward, number_, k);
  const Tensor input = transfer(given, device_);
  Kept& kept = kept_[k];
  kept.tape = std::make_unique<GradientTape>();
  if (!is_first()) {
    kept.input = input;
    kept.tape->watch(input);
  }
  const MaskScope masks;
  std::vector<Tensor> added_losses;
  const Tensor result =
      model_.call_stage(number_, input, {.training = true, .added_losses = &added_losses});
  if (!added_losses.empty() || (!is_last() && MaskScope::mask_of(result).defined())) {
    fail(ErrorCode::kUnimplemented, added_losses.empty() ? "a mask" : "a loss that a layer adds",
         " would have to leave the stage; expected layers without; try StagedSequential alone, or "
         "all layers that need it in one stage");
  }
  kept.target = is_last() ? loss_of(k, result) : result;
  kept.tape->stop();
  if (!is_last()) return mail_.put(Way::kForward, number_ + 1, k, result);
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + kept.target : kept.target;
}

void PipelineStage::backward(std::size_t k) {
  const Kept kept = std::exchange(kept_[k], Kept());
  const Tensor& target = kept.target;
  const Tensor output_gradient = is_last()
                                     ? Tensor::ones(target.shape(), target.dtype(), device_)
                                     : transfer(mail_.take(Way::kBackward, number_, k), device_);
  std::vector<Tensor> inputs;
  if (!is_first()) inputs.push_back(kept.input);
  const std::vector<Gradient> gradients =
      kept.tape->gradient_with(target, output_gradient, variables_, inputs);
  for (std::size_t i = 0; i < variables_.size(); ++i) sums_[i].add(gradients[i]);
  if (is_first()) return;
  const Gradient& back = gradients.back();
  mail_.put(Way::kBackward, number_ - 1, k,
            back.is_none() ? Tensor::zeros(kept.input.shape(), kept.input.dtype(), device_)
                           : back.to_dense());
}

/// Once per batch: it does not depend on examples.
void PipelineStage::add_regularization() {
  GradientTape tape;
  for (const auto& layer : model_.layers(number_)) {
    for (const Tensor& loss : layer->losses()) {
      const Tensor sum = reduce_sum(loss);
      regularization_ = regularization_.defined() ? regularization_ + sum : sum;
    }
  }
  if (!regularization_.defined()) return;
  const std::vector<Gradient> gradients = tape.gradient(regularization_, variables_);
  for (std::size_t i = 0; i < variables_.size(); ++i) sums_[i].add(gradients[i]);
}

}  // namespace tutti::internal
