// Loss tracking, metrics and the step of one replica.
// SPDX-License-Identifier: Apache-2.0
//
// A replica's *share* of the loss is the sum over its rows divided by the rows of the global batch,
// plus regularisation divided by the number of replicas: shares add up to the loss of the global
// batch, and their gradients to its gradient, also when replicas have different numbers of rows.
#include "tutti/model/compiled_model.h"

#include <algorithm>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/average_loss.h"
#include "tutti/model/layers/sample_weight.h"
#include "tutti/model/timed_reducer.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {

LossTracker::LossTracker() : Metric("loss"), total_(add_sum("total")), rows_(add_sum("rows")) {}

void LossTracker::update_state(const Tensor& loss, std::int64_t rows, std::int64_t global_rows) {
  const GradientTape::StopRecording no_gradient;
  total_.assign_add(cast(loss, DType::kFloat64) * static_cast<double>(global_rows));
  rows_.assign_add(Tensor::scalar(static_cast<double>(rows), DType::kFloat64, loss.device()));
}

Tensor LossTracker::result() const { return ratio(total_, rows_); }

std::vector<Metric*> CompiledModel::all_metrics() {
  std::vector<Metric*> all = {&loss_tracker};
  for (const auto& metric : metrics) all.push_back(metric.get());
  for (const auto& metric : weighted_metrics) all.push_back(metric.get());
  for (const auto& metric : layer_metrics) all.push_back(metric.get());
  return all;
}

Logs CompiledModel::logs() {
  Logs logs;
  for (const Metric* metric : all_metrics())
    logs.set(metric->name(), metric->result().item_double());
  return logs;
}

void CompiledModel::reset_metrics() {
  for (Metric* metric : all_metrics()) metric->reset_state();
}

ReplicaStep::ReplicaStep(const Model& model, CompiledModel& compiled, int num_replicas)
    : model_(model), compiled_(compiled), communication_(static_cast<std::size_t>(num_replicas)) {}

Tensor ReplicaStep::total_loss(const Batch& batch, const Tensor& predictions,
                               std::span<const Tensor> added_losses) const {
  std::vector<Tensor> others = model_.losses();
  others.insert(others.end(), added_losses.begin(), added_losses.end());
  Tensor loss = scale_regularization_loss(others).to(predictions.device());
  if (!compiled_.loss) return loss;
  const Tensor examples = internal::weighted(
      compiled_.loss->per_example(batch.labels(), predictions), batch.sample_weight(), "Model");
  const bool is_sum = compiled_.loss->reduction() == LossReduction::kSum;
  const Tensor share =
      is_sum ? reduce_sum(examples) : compute_average_loss(examples, batch.global_rows());
  return others.empty() ? share : share + loss;
}

void ReplicaStep::update_metrics(const Batch& batch, const Tensor& predictions,
                                 const Tensor& loss) {
  const GradientTape::StopRecording no_gradient;
  compiled_.loss_tracker.update_state(loss, batch.rows(), batch.global_rows());
  for (const auto& metric : compiled_.metrics) metric->update_state(batch.labels(), predictions);
  for (const auto& metric : compiled_.weighted_metrics)
    metric->update_state(batch.labels(), predictions, batch.sample_weight());
}

void ReplicaStep::train(const Batch& batch) {
  GradientTape tape;
  std::vector<Tensor> added;
  const Tensor predictions = model_(batch.features(), {.training = true, .added_losses = &added});
  const Tensor loss = total_loss(batch, predictions, added);
  if (GradientReducer* reducer = GradientReducer::current()) {
    TimedReducer timed(*reducer);
    {
      const GradientReducerScope scope(&timed);
      compiled_.optimizer->minimize(tape, loss);
    }
    const auto replica =
        static_cast<std::size_t>(ReplicaContext::current().replica_id()) % communication_.size();
    communication_[replica].value += timed.seconds();
  } else {
    compiled_.optimizer->minimize(tape, loss);
  }
  update_metrics(batch, predictions, loss);
}

void ReplicaStep::test(const Batch& batch) {
  std::vector<Tensor> added;
  const Tensor predictions = model_(batch.features(), {.added_losses = &added});
  update_metrics(batch, predictions, total_loss(batch, predictions, added));
}

double ReplicaStep::take_communication_seconds() {
  double sum = 0.0;
  for (Seconds& seconds : communication_) sum += std::exchange(seconds.value, 0.0);
  return sum / static_cast<double>(communication_.size());
}

}  // namespace tutti::internal
