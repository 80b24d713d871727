// Metric: a value accumulated over batches and replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metric.h"

#include "model/layers/labels_and_weights.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/fields.h"
#include "tutti/model/layers/layer.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Variables of metrics, and the metrics Mean and Sum.

namespace {

/// Adds the sum of `values` (times their weights) to `total`.
void add_values(Variable& total, const Tensor& values, const Tensor& sample_weight,
                const std::string& name) {
  total.assign_add(
      reduce_sum(internal::weighted(cast(values, DType::kFloat64), sample_weight, name)));
}

/// Returns the number of values, or the sum of their weights.
Tensor count_of(const Tensor& values, const Tensor& sample_weight, const std::string& name) {
  if (!sample_weight.defined()) {
    return Tensor::scalar(static_cast<double>(values.num_elements()), DType::kFloat64,
                          values.device());
  }
  const Tensor like = cast(values, DType::kFloat64);
  return reduce_sum(
      broadcast_to(internal::fitted_weight(sample_weight, like, name), values.shape()));
}

}  // namespace

Variable Metric::add_sum(const std::string& name, const Shape& shape) {
  VariableOptions options;
  options.name = concat(name_, '/', name);
  options.trainable = false;
  options.synchronization = VariableSynchronization::kOnRead;
  options.aggregation = VariableAggregation::kSum;
  Variable variable(
      [shape](const InitializerContext& context) {
        return Tensor::zeros(shape, DType::kFloat64, context.device);
      },
      options);
  variables_.push_back(variable);
  return variable;
}

void Metric::adopt(const Metric& part) {
  variables_.insert(variables_.end(), part.variables_.begin(), part.variables_.end());
}

Json Metric::describe() const {
  const std::string type = internal::plain_type_name(typeid(*this));
  if (!arguments_) {
    fail(ErrorCode::kUnimplemented, "the metric '", name_, "' (", type,
         ") does not record its constructor arguments, so it cannot be saved; call "
         "made_with(arguments) in the "
         "constructor of ",
         type, " and register_metric<", type, ", types of the arguments>() before load_model()");
  }
  Json::Array call = {type};
  for (Json& argument : arguments_()) call.push_back(std::move(argument));
  return call;
}

void Metric::reset_state() {
  for (Variable& variable : variables_) variable.assign(0.0);
}

Tensor Metric::total(const Variable& sum) {
  const GradientTape::StopRecording no_gradient;
  const AggregateOnReadScope over_replicas;
  return sum.value();
}

Tensor Metric::ratio(const Variable& numerator, const Variable& denominator) {
  const GradientTape::StopRecording no_gradient;
  const Tensor sum = total(numerator);
  const Tensor count = total(denominator);
  if (host_reads_at_once(sum)) {
    return count.item_double() == 0.0 ? Tensor::zeros({}, DType::kFloat64) : sum / count;
  }
  const Tensor none = equal(count, 0.0);  // computed on the device; the host does not wait
  return where(none, 0.0, sum / where(none, 1.0, count));
}

Mean::Mean(std::string name) : Metric(std::move(name)) {
  total_ = add_sum("total");
  count_ = add_sum("count");
}

void Mean::update_state(const Tensor& values, const Tensor& sample_weight) {
  const GradientTape::StopRecording no_gradient;
  add_values(total_, values, sample_weight, name());
  count_.assign_add(count_of(values, sample_weight, name()));
}

Tensor Mean::result() const { return ratio(total_, count_); }

Sum::Sum(std::string name) : Metric(std::move(name)), total_(add_sum("total")) {}

void Sum::update_state(const Tensor& values, const Tensor& sample_weight) {
  const GradientTape::StopRecording no_gradient;
  add_values(total_, values, sample_weight, name());
}

Tensor Sum::result() const { return total(total_); }

// Metrics that compare predictions with labels: the interface, and the mean of a function.

void PredictionMetric::update_state(const Tensor& labels, const Tensor& predictions,
                                    const Tensor& sample_weight) {
  const GradientTape::StopRecording no_gradient;
  if (!is_half(predictions.dtype())) return update(labels, predictions, sample_weight);
  const Tensor wide = cast(predictions, DType::kFloat32);
  MaskScope::set_mask(wide, MaskScope::mask_of(predictions));
  update(labels, wide, sample_weight);
}

MeanPredictionMetric::MeanPredictionMetric(std::string name, Function per_example,
                                           MetricDirection direction)
    : PredictionMetric(name, direction),
      per_example_(
          [function = std::move(per_example)](const Tensor& labels, const Tensor& predictions) {
            return function(internal::same_rank_labels(labels, predictions), predictions);
          }),
      mean_(name) {
  adopt(mean_);
}

void MeanPredictionMetric::update(const Tensor& labels, const Tensor& predictions,
                                  const Tensor& sample_weight) {
  const internal::StepWeights steps(predictions, sample_weight, name());
  if (!steps.any()) return mean_.update_state(per_example_(labels, predictions), sample_weight);
  const Tensor values = steps.values(per_example_, labels, predictions);
  // As in Keras, averages over the steps of each example first; a step of a longer sequence
  // therefore has less weight if sequence lengths differ between batches.
  const double length = static_cast<double>(steps.per_example());
  mean_.update_state(values, steps.weights() / length);
}

internal::PlainPairs internal::plain_pairs(const Tensor& labels, const Tensor& predictions,
                                           const Tensor& sample_weight, std::string_view who) {
  PlainPairs pairs = {
      same_shape_labels(labels, predictions, who).to_doubles(), predictions.to_doubles(), {}};
  if (!sample_weight.defined()) {
    pairs.weights.resize(static_cast<std::size_t>(predictions.num_elements()), 1.0);
    return pairs;
  }
  const Tensor weight = fitted_weight(sample_weight, cast(predictions, DType::kFloat64), who);
  pairs.weights = broadcast_to(weight, predictions.shape()).to_doubles();
  return pairs;
}

}  // namespace tutti
