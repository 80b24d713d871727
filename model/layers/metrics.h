// Accuracies and errors as metrics.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/prediction_metric.h"

namespace tutti {

/// How often the largest prediction [batch, classes] is that of the label's class number.
class SparseCategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit SparseCategoricalAccuracy(std::string name = "sparse_categorical_accuracy");
};
/// The same for labels that are one-hot.
class CategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit CategoricalAccuracy(std::string name = "categorical_accuracy");
};
/// How often (prediction > threshold) is the label, 0 or 1. Logits want threshold 0.
class BinaryAccuracy : public MeanPredictionMetric {
 public:
  explicit BinaryAccuracy(std::string name = "binary_accuracy", double threshold = 0.5);
};
class MeanSquaredErrorMetric : public MeanPredictionMetric {
 public:
  explicit MeanSquaredErrorMetric(std::string name = "mean_squared_error");
};
class MeanAbsoluteErrorMetric : public MeanPredictionMetric {
 public:
  explicit MeanAbsoluteErrorMetric(std::string name = "mean_absolute_error");
};
/// The cosine of the angle between label and prediction: minus the loss of this name.
class CosineSimilarityMetric : public MeanPredictionMetric {
 public:
  explicit CosineSimilarityMetric(std::string name = "cosine_similarity");
};
/// The root of the mean over examples of the mean over their elements.
class RootMeanSquaredError : public PredictionMetric {
 public:
  explicit RootMeanSquaredError(std::string name = "root_mean_squared_error");
  Tensor result() const override;

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  Mean squares_;
};
/// How often the label's class is among the k largest predictions [batch, classes]; labels one-hot.
class TopKCategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit TopKCategoricalAccuracy(int k = 5, std::string name = "top_k_categorical_accuracy");
};
/// The same for class numbers.
class SparseTopKCategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit SparseTopKCategoricalAccuracy(int k = 5,
                                         std::string name = "sparse_top_k_categorical_accuracy");
};

namespace internal {
/// The functions behind these metrics; each gives one value per example, [batch].
MeanPredictionMetric::Function sparse_hits();
MeanPredictionMetric::Function one_hot_hits();
MeanPredictionMetric::Function binary_hits(double threshold);
/// Keras's rule for "accuracy" where the loss does not tell: one output is binary, labels of the
/// shape of the predictions are one-hot, others are class numbers.
MeanPredictionMetric::Function hits_by_shape();
}  // namespace internal

}  // namespace tutti
