// Metrics that compare predictions with labels: the interface, and the mean of a function.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/prediction_metric.h"

#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/label_shapes.h"
#include "tutti/model/layers/masks.h"
#include "tutti/model/layers/sample_weight.h"
#include "tutti/model/layers/step_weights.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

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
    : PredictionMetric(name, direction), per_example_(std::move(per_example)), mean_(name) {
  adopt(mean_);
}

void MeanPredictionMetric::update(const Tensor& labels, const Tensor& predictions,
                                  const Tensor& sample_weight) {
  const internal::StepWeights steps(predictions, sample_weight, name());
  if (!steps.any()) return mean_.update_state(per_example_(labels, predictions), sample_weight);
  const Tensor values = steps.values(per_example_, labels, predictions);
  // Keras's mean over the steps of each example first: where batches differ in length, a step of a
  // long one counts less.
  const double length = static_cast<double>(steps.per_example());
  mean_.update_state(values, steps.weights() / length);
}

namespace internal {

std::vector<double> plain_weights(const Tensor& sample_weight, const Tensor& like,
                                  std::string_view who) {
  if (!sample_weight.defined())
    return std::vector<double>(static_cast<std::size_t>(like.num_elements()), 1.0);
  const Tensor values = cast(like, DType::kFloat64);
  return broadcast_to(fitted_weight(sample_weight, values, who), like.shape()).to_doubles();
}

PlainPairs plain_pairs(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight,
                       std::string_view who) {
  return {same_shape_labels(labels, predictions, who).to_doubles(), predictions.to_doubles(),
          plain_weights(sample_weight, predictions, who)};
}

}  // namespace internal
}  // namespace tutti
