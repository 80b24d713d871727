// Forward and backward passes of one stage of a pipeline.
// SPDX-License-Identifier: Apache-2.0
#include "model/parallel/pipeline_stage.h"

#include <utility>

#include "core/names.h"
#include "tutti/core/trace.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/losses.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::internal {

// Exchange of tensors between stages.

StageExchange::StageExchange(std::vector<Device> devices, std::size_t num_micro_batches,
                             Duration timeout)
    : devices_(std::move(devices)),
      timeout_(timeout),
      forward_(devices_.size(), std::vector<Tensor>(num_micro_batches)),
      backward_(devices_.size(), std::vector<Tensor>(num_micro_batches)) {}

std::string StageExchange::name_of(std::size_t stage) const {
  return concat("stage ", stage, " (", devices_[stage], ")");
}

void StageExchange::put(Direction way, std::size_t stage, std::size_t micro_batch, Tensor value) {
  {
    MutexLock lock(mutex_);
    shelf(way)[stage][micro_batch] = std::move(value);
  }
  condition_.notify_all();
}

Tensor StageExchange::take(Direction way, std::size_t stage, std::size_t micro_batch) {
  MutexLock lock(mutex_);
  Tensor& place = shelf(way)[stage][micro_batch];
  condition_.wait_for(mutex_, timeout_, [&]() TUTTI_REQUIRES(mutex_) {
    return place.defined() || error_ != nullptr;
  });
  if (place.defined()) return std::exchange(place, Tensor());
  if (error_) {
    fail(ErrorCode::kAborted, "Pipeline: ", name_of(stage),
         " stopped because another stage failed");
  }
  const bool forward = way == Direction::kForward;
  fail(ErrorCode::kDeadlineExceeded, "Pipeline: timed out after ",
       std::chrono::duration<double>(timeout_).count(), " s waiting for ",
       forward ? "activations" : "gradients", " of micro-batch ", micro_batch, " from ",
       name_of(forward ? stage - 1 : stage + 1),
       "; try a longer PipelineOptions::timeout if that stage is slow");
}

void StageExchange::end(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    ++num_ended_;
    if (error && !error_) error_ = std::move(error);
  }
  condition_.notify_all();
}

bool StageExchange::wait_for_end() {
  MutexLock lock(mutex_);
  const auto all = [&]() TUTTI_REQUIRES(mutex_) { return num_ended_ == devices_.size(); };
  const auto all_or_error = [&]() TUTTI_REQUIRES(mutex_) { return all() || error_ != nullptr; };
  // Only the first error starts the timeout: waiting stages have their own deadlines, and a
  // computing stage may take any length of time.
  while (!condition_.wait_for(mutex_, timeout_, all_or_error)) {
  }
  return condition_.wait_for(mutex_, timeout_, all);
}

bool StageExchange::has_ended() const {
  MutexLock lock(mutex_);
  return num_ended_ == devices_.size();
}

std::exception_ptr StageExchange::error() const {
  MutexLock lock(mutex_);
  return error_;
}

// Sums of gradients over micro-batches.

void StageSum::add(const Gradient& gradient) {
  if (!gradient.is_dense()) {
    sparse_.add(gradient);
  } else if (dense_) {
    dense_->assign(AssignOp::kAdd, gradient.dense());
  } else {
    dense_.emplace(gradient.dense(), gradient.dense().device());
  }
}

Gradient StageSum::total() const {
  if (!dense_) return sparse_.total();
  const Gradient sparse = sparse_.total();
  if (sparse.is_none()) return dense_->read();
  GradientSum both;
  both.add(dense_->read());
  both.add(sparse);
  return both.total();
}

// Forward and backward passes of a stage. Each micro-batch has a tape, which watches the stage's
// input and stops at the end of the stage. The backward pass runs when the gradient of the stage's
// result arrives from the next stage.

using Direction = StageExchange::Direction;

MicroBatches cut_into_micro_batches(const Tensor& features, const Tensor& labels, int parts) {
  const std::int64_t rows = features.rank() == 0 ? 0 : features.shape()[0];
  const std::int64_t num_labels = labels.rank() == 0 ? 0 : labels.shape()[0];
  internal::require(rows == num_labels && rows >= parts,
                    "Pipeline::gradients: expected equal numbers of examples and labels, ",
                    "and at least one row for each of the ", parts, " micro-batches, got features ",
                    features.shape(), " and labels ", labels.shape(), "; try fewer micro_batches");
  MicroBatches batch{{}, {}, rows};
  for (std::int64_t k = 0, first = 0; k < parts; ++k) {
    const std::int64_t count = rows / parts + (k < rows % parts);
    batch.features.push_back(features.detached_rows(first, count));
    batch.labels.push_back(labels.detached_rows(first, count));
    first += count;
  }
  return batch;
}

PipelineStage::PipelineStage(const StagedSequential& model, const Pipeline::LossFunction& loss,
                             const MicroBatches& batch, StageExchange& exchange, std::size_t number)
    : model_(model),
      loss_function_(loss),
      batch_(batch),
      exchange_(exchange),
      number_(number),
      device_(model.device(number)),
      variables_(model.trainable_variables(number)),
      kept_(batch.features.size()),
      sums_(variables_.size()) {}

void PipelineStage::run(const std::vector<PipelineTask>& tasks) {
  try {
    run_all(tasks);
  } catch (...) {
    kept_.clear();  // a tape must stop recording on the thread that started it
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
      throw error.with_context(concat(exchange_.name_of(number_), ", micro-batch ", k, ", ",
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
  const Tensor given =
      is_first() ? batch_.features[k] : exchange_.take(Direction::kForward, number_, k);
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
    fail(ErrorCode::kUnimplemented, "expected layers that ",
         added_losses.empty() ? "do not pass a mask to the next stage"
                              : "do not add a loss in call()",
         ", got one that does; train the StagedSequential without a Pipeline");
  }
  kept.target = is_last() ? loss_of(k, result) : result;
  kept.tape->stop();
  if (!is_last()) return exchange_.put(Direction::kForward, number_ + 1, k, result);
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + kept.target : kept.target;
}

void PipelineStage::backward(std::size_t k) {
  const Kept kept = std::exchange(kept_[k], Kept());
  const Tensor& target = kept.target;
  const Tensor output_gradient =
      is_last() ? Tensor::ones(target.shape(), target.dtype(), device_)
                : transfer(exchange_.take(Direction::kBackward, number_, k), device_);
  std::vector<Tensor> inputs;
  if (!is_first()) inputs.push_back(kept.input);
  const std::vector<Gradient> gradients =
      kept.tape->gradient_with(target, output_gradient, variables_, inputs);
  for (std::size_t i = 0; i < variables_.size(); ++i) sums_[i].add(gradients[i]);
  if (is_first()) return;
  const Gradient& back = gradients.back();
  exchange_.put(Direction::kBackward, number_ - 1, k,
                back.is_none() ? Tensor::zeros(kept.input.shape(), kept.input.dtype(), device_)
                               : back.to_dense());
}

/// Adds regularisation losses once per batch, because they do not depend on the examples.
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
