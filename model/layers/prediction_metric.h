// Metrics that compare predictions with labels: the interface, and the mean of a function.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tutti/model/layers/metric.h"

namespace tutti {

/// A number gathered from labels and predictions: what Model::compile takes as a metric. Derive
/// from it, make sums with add_sum() in the constructor and add to them in update(): replicas then
/// count as one.
class PredictionMetric : public Metric {
 public:
  /// labels and predictions [batch, ...]; 0 rows change nothing. sample_weight: [batch], [] or
  /// undefined; for predictions [batch, steps, ...] also [batch, steps]. Throws kInvalidArgument
  /// naming the metric when they do not fit.
  void update_state(const Tensor& labels, const Tensor& predictions,
                    const Tensor& sample_weight = {});

 protected:
  using Metric::Metric;
  /// Not recorded on tapes. May be called by several replicas at once.
  virtual void update(const Tensor& labels, const Tensor& predictions,
                      const Tensor& sample_weight) = 0;
};

/// The mean over examples of a function of labels and predictions. Steps that weights or a mask of
/// the predictions (masks.h) tell apart are examples of their own, as in Keras; metrics that are no
/// such mean do not read masks, there or here.
class MeanPredictionMetric : public PredictionMetric {
 public:
  /// labels and predictions [batch, ...] -> one value per example, [batch].
  using Function = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

  MeanPredictionMetric(std::string name, Function per_example,
                       MetricDirection direction = MetricDirection::kUnknown);
  Tensor result() const override { return mean_.result(); }

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  Function per_example_;
  Mean mean_;
};

namespace internal {

/// Labels, predictions and weights of one batch as plain numbers, element by element. Weights are
/// 1 when there are none.
struct PlainPairs {
  std::vector<double> labels;
  std::vector<double> predictions;
  std::vector<double> weights;
};
/// Labels are brought to the shape of the predictions. Throws like same_shape_labels().
PlainPairs plain_pairs(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight,
                       std::string_view who);
/// One weight per element of `like`.
std::vector<double> plain_weights(const Tensor& sample_weight, const Tensor& like,
                                  std::string_view who);

}  // namespace internal
}  // namespace tutti
