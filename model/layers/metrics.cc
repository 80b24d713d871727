// Accuracies and errors as metrics.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metrics.h"

#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/label_shapes.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

Tensor sparse_hits(const Tensor& labels, const Tensor& predictions) {
  const Tensor classes =
      internal::class_numbers(labels, predictions, "sparse_categorical_accuracy");
  return internal::mean_per_example(cast(equal(argmax(predictions, -1), classes), DType::kFloat32));
}

Tensor one_hot_hits(const Tensor& labels, const Tensor& predictions) {
  const Tensor fitted = internal::same_shape_labels(labels, predictions, "categorical_accuracy");
  return internal::mean_per_example(
      cast(equal(argmax(predictions, -1), argmax(fitted, -1)), DType::kFloat32));
}

PredictionMetric::Function binary_hits(double threshold) {
  return [threshold](const Tensor& labels, const Tensor& predictions) {
    const Tensor fitted = internal::same_shape_labels(labels, predictions, "binary_accuracy");
    const Tensor decided = cast(greater(predictions, threshold), predictions.dtype());
    return internal::mean_per_example(cast(equal(decided, fitted), DType::kFloat32));
  };
}

/// Keras's rule for "accuracy" where the loss does not tell: one output is binary, labels of the
/// shape of the predictions are one-hot, others are class numbers.
Tensor hits_by_shape(const Tensor& labels, const Tensor& predictions) {
  if (predictions.rank() < 2 || predictions.shape()[-1] == 1)
    return binary_hits(0.5)(labels, predictions);
  const bool one_hot = labels.shape() == predictions.shape();
  return one_hot ? one_hot_hits(labels, predictions) : sparse_hits(labels, predictions);
}

std::shared_ptr<PredictionMetric> make_accuracy(const std::string& name, const Loss& loss) {
  if (loss.name() == "sparse_categorical_crossentropy")
    return std::make_shared<SparseCategoricalAccuracy>(name);
  if (loss.name() == "categorical_crossentropy") return std::make_shared<CategoricalAccuracy>(name);
  if (loss.name() == "binary_crossentropy")
    return std::make_shared<BinaryAccuracy>(name, loss.takes_logits() ? 0.0 : 0.5);
  return std::make_shared<PredictionMetric>(name, &hits_by_shape);
}

bool is_accuracy(const std::string& name) { return name == "accuracy" || name == "acc"; }

/// nullptr for a name that is no metric of its own.
PredictionMetric::Function find_function(const std::string& name) {
  if (name == "sparse_categorical_accuracy") return &sparse_hits;
  if (name == "categorical_accuracy") return &one_hot_hits;
  if (name == "binary_accuracy") return binary_hits(0.5);
  return nullptr;
}

}  // namespace

PredictionMetric::PredictionMetric(std::string name, Function per_example)
    : Metric(name), per_example_(std::move(per_example)), mean_(name) {
  adopt(mean_);
}

void PredictionMetric::update_state(const Tensor& labels, const Tensor& predictions,
                                    const Tensor& sample_weight) {
  const GradientTape::StopRecording no_gradient;
  mean_.update_state(per_example_(labels, predictions), sample_weight);
}

SparseCategoricalAccuracy::SparseCategoricalAccuracy(std::string name)
    : PredictionMetric(std::move(name), &sparse_hits) {}
CategoricalAccuracy::CategoricalAccuracy(std::string name)
    : PredictionMetric(std::move(name), &one_hot_hits) {}
BinaryAccuracy::BinaryAccuracy(std::string name, double threshold)
    : PredictionMetric(std::move(name), binary_hits(threshold)) {}
MeanSquaredErrorMetric::MeanSquaredErrorMetric(std::string name)
    : PredictionMetric(std::move(name), &losses::mean_squared_error) {}
MeanAbsoluteErrorMetric::MeanAbsoluteErrorMetric(std::string name)
    : PredictionMetric(std::move(name), &losses::mean_absolute_error) {}

MetricSpec::MetricSpec(const std::string& name) : name_(name) {
  if (is_accuracy(name) || find_function(name)) return;
  try {
    const Loss loss(name);
  } catch (const Error& error) {
    throw Error(error.code(),
                concat("MetricSpec: no metric is named '", name,
                       "'; expected accuracy, sparse_categorical_accuracy, categorical_accuracy, "
                       "binary_accuracy or a loss (",
                       error.message(), ")"));
  }
}

MetricSpec::MetricSpec(const PredictionMetric& metric)
    : name_(metric.name()),
      make_([shared = std::make_shared<PredictionMetric>(metric)] { return shared; }) {}

std::shared_ptr<PredictionMetric> MetricSpec::make(const Loss& loss) const {
  if (make_) return make_();
  if (is_accuracy(name_)) return make_accuracy(name_, loss);
  if (auto function = find_function(name_))
    return std::make_shared<PredictionMetric>(name_, std::move(function));
  const Loss named(name_);
  const bool same_kind = named.prediction_kind_is_open() && !loss.takes_logits();
  const Loss function = same_kind ? named.for_predictions(PredictionKind::kProbabilities) : named;
  return std::make_shared<PredictionMetric>(
      name_, [function](const Tensor& labels, const Tensor& predictions) {
        return function.per_example(labels, predictions);
      });
}

}  // namespace tutti
