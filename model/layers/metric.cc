// Metrics: their variables, mean and sum.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metric.h"

#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/sample_weight.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

/// Adds the values (times weights) to `total`.
void add_values(Variable& total, const Tensor& values, const Tensor& sample_weight,
                const std::string& name) {
  total.assign_add(
      reduce_sum(internal::weighted(cast(values, DType::kFloat64), sample_weight, name)));
}

/// How many values there are, or the sum of their weights.
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
  if (sum.device().type == DeviceType::kCpu) {
    return count.item_double() == 0.0 ? Tensor::zeros({}, DType::kFloat64) : sum / count;
  }
  const Tensor none = equal(count, 0.0);  // without waiting for the number
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

}  // namespace tutti
