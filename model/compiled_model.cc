// Loss tracking, metrics and the step of one replica.
// SPDX-License-Identifier: Apache-2.0
//
// A replica's *share* of the loss is the sum over its rows divided by the number of rows of the
// global batch, plus the regularisation losses divided by the number of replicas. The shares of all
// replicas add up to the loss of the global batch, and their gradients to the gradient of this
// loss, even if replicas have different numbers of rows.
#include "core/names.h"
#include "model/fit_loop.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "model/layers/labels_and_weights.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/logging.h"
#include "tutti/model/functional.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/sequential.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::internal {
namespace {

/// Returns the class of each label. Labels are class numbers [batch] or [batch, 1], or one-hot
/// [batch, classes].
std::vector<std::int64_t> classes_of(const Tensor& labels) {
  const bool one_hot = labels.rank() == 2 && labels.shape()[1] > 1;
  internal::require(labels.rank() <= 2,
                    "Model::fit: class_weight: expected labels with one class per example, of "
                    "shape [batch] or [batch, classes], got ",
                    labels.shape(), "; use .sample_weight");
  const Tensor numbers =
      one_hot ? argmax(labels, 1) : whole_numbers(labels, "Model::fit: class_weight");
  std::vector<std::int64_t> classes;
  for (const double number : numbers.to_doubles()) {
    internal::require(number == std::floor(number),
                      "Model::fit: class_weight: expected labels that are class numbers, got ",
                      number, "; use .sample_weight, or weights in the dataset");
    classes.push_back(static_cast<std::int64_t>(number));
  }
  return classes;
}

/// Returns `weights` (may be undefined) times the weight of each label's class. A class that is not
/// listed has weight 1.
Tensor with_class_weights(const Tensor& labels, const Tensor& weights,
                          const ClassWeights& class_weights) {
  std::vector<float> values;
  for (const std::int64_t number : classes_of(labels)) {
    const auto found = class_weights.find(number);
    values.push_back(found == class_weights.end() ? 1.0f : static_cast<float>(found->second));
  }
  const Tensor by_class =
      Tensor::from(Shape{static_cast<std::int64_t>(values.size())}, values, labels.device());
  return weights.defined() ? weighted(by_class, weights, "Model::fit") : by_class;
}

}  // namespace

LossTracker::LossTracker(const std::string& name)
    : Metric(name, MetricDirection::kDown), total_(add_sum("total")), rows_(add_sum("rows")) {}

void LossTracker::update_state(const Tensor& loss, std::int64_t rows, std::int64_t global_rows) {
  const GradientTape::StopRecording no_gradient;
  total_.assign_add(cast(loss, DType::kFloat64) * static_cast<double>(global_rows));
  rows_.assign_add(Tensor::scalar(static_cast<double>(rows), DType::kFloat64, loss.device()));
}

Tensor LossTracker::result() const { return ratio(total_, rows_); }

std::vector<double> LossTracker::totals_of_replicas() const {
  std::vector<double> totals;
  for (const Tensor& component : total_.storage().local_components())
    totals.push_back(component.item_double());
  return totals;
}

std::vector<int> not_finite(std::span<const double> values, int first) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i])) numbers.push_back(first + static_cast<int>(i));
  return numbers;
}

std::vector<std::pair<std::string, Metric*>> CompiledModel::all_metrics() {
  std::vector<std::pair<std::string, Metric*>> all = {{loss_tracker.name(), &loss_tracker}};
  for (const OutputLoss& entry : losses)
    if (entry.tracker) all.emplace_back(entry.tracker->name(), entry.tracker.get());
  for (const OutputMetric& entry : metrics) all.emplace_back(entry.shown_name, entry.metric.get());
  for (const auto& metric : layer_metrics) all.emplace_back(metric->name(), metric.get());
  return all;
}

Logs CompiledModel::logs() {
  Logs logs;
  for (const auto& [name, metric] : all_metrics()) logs.set(name, metric->result().item_double());
  return logs;
}

void CompiledModel::reset_metrics() {
  for (const auto& [name, metric] : all_metrics()) metric->reset_state();
}

ReplicaStep::ReplicaStep(const Model& model, CompiledModel& compiled,
                         std::vector<ClassWeights> class_weights)
    : model_(model), compiled_(compiled), class_weights_(std::move(class_weights)) {}

std::vector<ClassWeights> class_weights_of(const Model& model, const FitOptions& options) {
  const std::size_t outputs = model.output_shapes().size();
  const std::size_t lists = options.output_class_weights.size();
  if (!options.class_weight.empty()) {
    internal::require(outputs == 1 && lists == 0,
                      "Model::fit: class_weight: expected a model with one output and no "
                      "output_class_weights, got ",
                      outputs, " output(s) and ", lists,
                      " output_class_weights; use .output_class_weights = {{{1, 2.0}}, {}}");
    return {options.class_weight};
  }
  internal::require(lists == 0 || lists == outputs,
                    "Model::fit: output_class_weights: expected a map for each of the ", outputs,
                    " outputs, got ", lists, "; an empty map leaves all classes unweighted");
  return options.output_class_weights;
}

namespace {

/// Returns "class_weight" or, with several outputs, "output_class_weights of 'kind'".
std::string name_of_class_weight(const Model& model, std::size_t output) {
  const std::vector<Model::Output> outputs = model.outputs();
  return outputs.size() == 1 ? "class_weight"
                             : concat("output_class_weights of '", outputs[output].name, "'");
}

/// Returns the number of classes of an output; 1 if its labels may be any numbers >= 0.
std::int64_t num_classes_of(const Model& model, std::size_t output) {
  const Shape& shape = model.output_shapes()[output];
  return shape.rank() > 0 ? shape[shape.rank() - 1] : 1;
}

bool is_class_of(std::int64_t number, std::int64_t num_classes) {
  return number >= 0 && (num_classes == 1 || number < num_classes);
}

}  // namespace

void warn_of_classes(const Model& model, std::span<const ClassWeights> class_weights) {
  for (std::size_t output = 0; output < class_weights.size(); ++output) {
    const std::int64_t num_classes = num_classes_of(model, output);
    for (const auto& [number, weight] : class_weights[output]) {
      if (is_class_of(number, num_classes)) continue;
      log_warning_once(
          concat("Model::fit: ", name_of_class_weight(model, output),
                 num_classes == 1 ? std::string(": expected classes >= 0")
                                  : concat(": expected classes in 0 .. ", num_classes - 1),
                 ", got ", number, "; no label has this class, so its weight has no effect"));
    }
  }
}

void warn_of_absent_classes(const Model& model, std::span<const ClassWeights> class_weights,
                            std::span<const Tensor> labels) {
  for (std::size_t output = 0; output < class_weights.size(); ++output) {
    if (class_weights[output].empty()) continue;
    const std::vector<std::int64_t> classes = classes_of(labels[output]);
    const std::set<std::int64_t> present(classes.begin(), classes.end());
    for (const auto& [number, weight] : class_weights[output]) {
      if (present.contains(number) || !is_class_of(number, num_classes_of(model, output))) continue;
      log_warning_once(concat("Model::fit: ", name_of_class_weight(model, output),
                              ": expected a class that occurs in the labels (", brief_list(present),
                              "), got ", number, "; its weight has no effect"));
    }
  }
}

namespace {

/// Throws kInvalidArgument with Keras's message and advice.
[[noreturn]] void fail_inputs(const Model& model, std::string_view who, std::size_t received,
                              std::string_view what) {
  const bool is_drawn = dynamic_cast<const Sequential*>(&model) != nullptr ||
                        dynamic_cast<const Functional*>(&model) != nullptr;
  fail(ErrorCode::kInvalidArgument, who, ": the model '", model.name(), "' expects ",
       model.input_shapes().size(), " input(s), but it received ", received, what,
       is_drawn ? "; use Functional for a model with several inputs"
                : "; a custom class declares its inputs and outputs in its constructor: "
                  "set_built({shapes of inputs}, {shapes of outputs})");
}

}  // namespace

void require_counts(const Model& model, std::string_view who, std::size_t inputs,
                    std::size_t labels) {
  if (inputs != model.input_shapes().size()) fail_inputs(model, who, inputs, "");
  const std::size_t outputs = model.output_shapes().size();
  if (labels == 0 || labels == outputs) return;
  fail(ErrorCode::kInvalidArgument, who, ": the model '", model.name(), "' has ", outputs,
       " output(s), so it expects one label tensor for each, but it received ", labels,
       "; pass example weights as .sample_weight");
}

void require_components(const Model& model, std::string_view who, std::size_t components,
                        bool needs_labels) {
  const std::size_t inputs = model.input_shapes().size(), outputs = model.output_shapes().size();
  if (components < inputs) fail_inputs(model, who, components, concat(" component(s) of a batch"));
  const std::size_t rest = components - inputs;
  if (rest == outputs || rest == outputs + 1 || rest == 2 * outputs) return;
  if (rest == 0 && !needs_labels) return;
  fail(ErrorCode::kInvalidArgument, who, ": the model '", model.name(), "' expects ", inputs,
       " input(s), then ", outputs, " label(s) (and 1", outputs > 1 ? concat(" or ", outputs) : "",
       " weight(s)), but it received batches of ", components,
       rest == 0 ? " component(s), without labels; add the labels" : " component(s)");
}

void warn_of_changes_since_compile(const Model& model, const CompiledModel& compiled) {
  const std::span<const Variable> trained = compiled.optimizer->variables();
  const std::vector<Variable> trainable = model.trainable_variables();
  const auto first_missing = [](std::span<const Variable> some, std::span<const Variable> others) {
    const auto missing = [&](const Variable& variable) {
      return std::ranges::none_of(others, [&](const Variable& other) {
        return other.storage().id() == variable.storage().id();
      });
    };
    const auto found = std::ranges::find_if(some, missing);
    return found == some.end() ? std::string() : found->name();
  };
  const std::string left_out = first_missing(trainable, trained);
  const std::string frozen = first_missing(trained, trainable);
  const auto warn = [](const std::string& name, std::string_view what) {
    if (name.empty()) return;
    log_warning_once(concat("Model::fit: '", name, "' ", what,
                            ", because layers were frozen, unfrozen or added after compile(); call "
                            "compile() again for the change to take effect"));
  };
  warn(left_out, "is trainable but is not trained");
  warn(frozen, "is frozen but is trained");
}

ReplicaStep::Parts ReplicaStep::parts_of(const Batch& batch, std::string_view who) const {
  const std::vector<Tensor>& all = batch.element().tensors();
  require_components(model_, who, all.size(),
                     !compiled_.losses.empty() || !compiled_.metrics.empty());
  const std::size_t inputs = model_.input_shapes().size(), outputs = model_.output_shapes().size();
  Parts parts;
  for (std::size_t i = 0; i < inputs + 2 * outputs; ++i) {
    auto& group = i < inputs ? parts.inputs : i < inputs + outputs ? parts.labels : parts.weights;
    group.push_back(i < all.size() ? all[i] : Tensor());
  }
  // A single weight component applies to all outputs.
  if (all.size() == inputs + outputs + 1) parts.weights.assign(outputs, all.back());
  return parts;
}

std::vector<Tensor> ReplicaStep::call_model(const Parts& parts, CallContext context) const {
  return parts.inputs.size() == 1 && model_.output_shapes().size() == 1
             ? std::vector<Tensor>{model_(parts.inputs[0], context)}
             : model_.apply(parts.inputs, context);
}

namespace {

/// Returns true if the elements of every row are >= 0 and add up to 1, unlike logits.
bool are_distributions(const Tensor& rows) {
  if (rows.rank() < 2 || rows.shape()[-1] < 2 || !is_floating(rows.dtype())) return false;
  const auto classes = static_cast<std::size_t>(rows.shape()[-1]);
  const std::vector<double> values = rows.to_doubles();
  for (std::size_t first = 0; first < values.size(); first += classes) {
    double sum = 0.0;
    for (std::size_t i = first; i < first + classes; ++i) {
      if (!(values[i] >= 0.0)) return false;
      sum += values[i];
    }
    if (std::abs(sum - 1.0) > 1e-3) return false;
  }
  return true;
}

}  // namespace

void ReplicaStep::look_for_probabilities(std::span<const Tensor> predictions) const {
  if (has_looked_at_predictions_.load(std::memory_order_relaxed)) return;
  for (std::size_t i = 0; i < compiled_.losses.size(); ++i) {
    const Loss& loss = compiled_.losses[i].loss;
    if (!loss.takes_logits() || loss.name().find("categorical") == std::string::npos) continue;
    const Tensor& rows = predictions[i];
    if (!host_reads_at_once(rows) || rows.num_elements() < 4 * rows.shape()[-1]) return;
    if (!are_distributions(rows) || model_.outputs()[i].activation == "softmax") continue;
    log_warning_once(concat(
        "Model::fit: the predictions of '", model_.outputs()[i].name,
        "' are probabilities (every row adds up to 1), but its loss ", loss.name(),
        " takes logits, so training will be poor; use .from_logits = false in the options of the "
        "loss, or remove the model's last softmax"));
  }
  has_looked_at_predictions_.store(true, std::memory_order_relaxed);
}

Tensor ReplicaStep::total_loss(const Batch& batch, const Parts& parts,
                               std::span<const Tensor> predictions,
                               std::span<const Tensor> added_losses,
                               std::vector<Tensor>& shares) const {
  std::vector<Tensor> others = model_.losses();
  others.insert(others.end(), added_losses.begin(), added_losses.end());
  Tensor loss;
  if (!others.empty()) loss = scale_regularization_loss(others);
  for (std::size_t i = 0; i < compiled_.losses.size(); ++i) {
    const OutputLoss& entry = compiled_.losses[i];
    const Tensor examples =
        entry.loss.per_example(parts.labels[i], predictions[i], parts.weights[i]);
    const bool is_sum = entry.loss.reduction() == LossReduction::kSum;
    shares.push_back(is_sum ? reduce_sum(examples)
                            : compute_average_loss(examples, batch.global_rows()));
    const Tensor share = entry.weight == 1.0 ? shares.back() : shares.back() * entry.weight;
    loss = loss.defined() ? share + loss : share;
  }
  return loss.defined() ? loss : scale_regularization_loss(others);
}

void ReplicaStep::update_metrics(const Batch& batch, const Parts& parts,
                                 std::span<const Tensor> predictions, const Tensor& loss,
                                 std::span<const Tensor> shares) {
  const GradientTape::StopRecording no_gradient;
  const std::int64_t rows = batch.rows(), global_rows = batch.global_rows();
  compiled_.loss_tracker.update_state(loss, rows, global_rows);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (compiled_.losses[i].tracker)
      compiled_.losses[i].tracker->update_state(shares[i], rows, global_rows);
  }
  for (const OutputMetric& entry : compiled_.metrics) {
    entry.metric->update_state(parts.labels[entry.output], predictions[entry.output],
                               entry.weighted ? parts.weights[entry.output] : Tensor());
  }
}

Tensor ReplicaStep::train(const Batch& batch) {
  Parts parts = parts_of(batch, "Model::fit");
  for (std::size_t i = 0; i < class_weights_.size(); ++i) {
    if (class_weights_[i].empty()) continue;
    parts.weights[i] = with_class_weights(parts.labels[i], parts.weights[i], class_weights_[i]);
  }
  const MaskScope masks;  // lets the loss read the predictions' masks
  GradientTape tape;
  std::vector<Tensor> added, shares;
  const std::vector<Tensor> predictions =
      call_model(parts, {.training = true, .added_losses = &added});
  look_for_probabilities(predictions);
  const Tensor loss = total_loss(batch, parts, predictions, added, shares);
  compiled_.optimizer->minimize(tape, loss, SourceLocation());  // fit() has set the call site
  update_metrics(batch, parts, predictions, loss, shares);
  return loss;
}

void ReplicaStep::test(const Batch& batch) {
  const Parts parts = parts_of(batch, "Model::evaluate");
  const MaskScope masks;
  std::vector<Tensor> added, shares;
  const std::vector<Tensor> predictions = call_model(parts, {.added_losses = &added});
  const Tensor loss = total_loss(batch, parts, predictions, added, shares);
  update_metrics(batch, parts, predictions, loss, shares);
}

}  // namespace tutti::internal
