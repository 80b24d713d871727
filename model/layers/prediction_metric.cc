// Metrics that compare predictions with labels: the interface, and the mean of a function.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/prediction_metric.h"

#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/label_shapes.h"
#include "tutti/model/layers/sample_weight.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

void PredictionMetric::update_state(const Tensor& labels, const Tensor& predictions,
                                    const Tensor& sample_weight) {
  const GradientTape::StopRecording no_gradient;
  update(labels, is_half(predictions.dtype()) ? cast(predictions, DType::kFloat32) : predictions,
         sample_weight);
}

MeanPredictionMetric::MeanPredictionMetric(std::string name, Function per_example)
    : PredictionMetric(name), per_example_(std::move(per_example)), mean_(name) {
  adopt(mean_);
}

void MeanPredictionMetric::update(const Tensor& labels, const Tensor& predictions,
                                  const Tensor& sample_weight) {
  mean_.update_state(per_example_(labels, predictions), sample_weight);
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
