// The built-in metrics.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/model/layers/metric.h"

namespace tutti {

// Accuracies and errors as metrics.

/// Fraction of rows of predictions [batch, classes] in which the largest value is at the label's
/// index.
class SparseCategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit SparseCategoricalAccuracy(std::string name = "sparse_categorical_accuracy");
};
/// Same as SparseCategoricalAccuracy, but for one-hot labels.
class CategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit CategoricalAccuracy(std::string name = "categorical_accuracy");
};
/// Fraction of predictions for which (prediction > threshold) equals the label, 0 or 1. Use
/// threshold 0 for logits.
class BinaryAccuracy : public MeanPredictionMetric {
 public:
  explicit BinaryAccuracy(std::string name = "binary_accuracy", double threshold = 0.5);
};
/// The mean of (label - prediction)^2.
class MeanSquaredErrorMetric : public MeanPredictionMetric {
 public:
  explicit MeanSquaredErrorMetric(std::string name = "mean_squared_error");
};
/// The mean of |label - prediction|.
class MeanAbsoluteErrorMetric : public MeanPredictionMetric {
 public:
  explicit MeanAbsoluteErrorMetric(std::string name = "mean_absolute_error");
};
/// Cosine of the angle between label and prediction, the negative of losses::cosine_similarity().
class CosineSimilarityMetric : public MeanPredictionMetric {
 public:
  explicit CosineSimilarityMetric(std::string name = "cosine_similarity");
};
/// Square root of the mean squared error over examples and their elements.
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
/// Fraction of rows of predictions [batch, classes] in which the label's class is among the k
/// largest values. Labels are one-hot.
class TopKCategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit TopKCategoricalAccuracy(int k = 5, std::string name = "top_k_categorical_accuracy");
};
/// Same as TopKCategoricalAccuracy, but for class numbers.
class SparseTopKCategoricalAccuracy : public MeanPredictionMetric {
 public:
  explicit SparseTopKCategoricalAccuracy(int k = 5,
                                         std::string name = "sparse_top_k_categorical_accuracy");
};

namespace internal {
/// Returns a function that computes one value per example, [batch]. It applies Keras's rule for
/// "accuracy" with losses that do not determine the kind of accuracy: predictions with one value
/// are binary, labels with the predictions' shape are one-hot, and other labels are class numbers.
MeanPredictionMetric::Function hits_by_shape();
}  // namespace internal

// Metrics based on true and false positives and negatives.

/// Options that determine which predictions are positive.
struct ConfusionOptions {
  /// Predictions above this value are positive. Use 0 for logits.
  double threshold = 0.5;
  /// If set, `threshold` is ignored, and the k largest predictions in each row count as positive.
  std::optional<int> top_k = std::nullopt;
  /// If set, only this column counts.
  std::optional<std::int64_t> class_id = std::nullopt;
  std::string name = "";
};

/// Base class of metrics computed from weighted counts of true and false positives and negatives.
/// Labels are 0 or 1, and have the shape of the predictions.
class ConfusionMetric : public PredictionMetric {
 public:
  Tensor result() const override;

 protected:
  struct Counts {
    double true_positives = 0.0;
    double false_positives = 0.0;
    double true_negatives = 0.0;
    double false_negatives = 0.0;
  };
  /// Computes the result from the counts summed over all replicas.
  using Score = double (*)(const Counts& counts);
  ConfusionMetric(ConfusionOptions options, const char* default_name, Score score,
                  MetricDirection direction = MetricDirection::kUnknown);
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  ConfusionOptions options_;
  Score score_;
  Variable counts_;  // [4]: the members of Counts, in this order
};

/// True positives / predicted positives; 0 if there are no predicted positives.
class Precision : public ConfusionMetric {
 public:
  explicit Precision(ConfusionOptions options = {});
};
/// True positives / positive labels.
class Recall : public ConfusionMetric {
 public:
  explicit Recall(ConfusionOptions options = {});
};
/// Number of positive labels that were predicted positive.
class TruePositives : public ConfusionMetric {
 public:
  explicit TruePositives(ConfusionOptions options = {});
};
/// Number of negative labels that were predicted negative.
class TrueNegatives : public ConfusionMetric {
 public:
  explicit TrueNegatives(ConfusionOptions options = {});
};
/// Number of negative labels that were predicted positive.
class FalsePositives : public ConfusionMetric {
 public:
  explicit FalsePositives(ConfusionOptions options = {});
};
/// Number of positive labels that were predicted negative.
class FalseNegatives : public ConfusionMetric {
 public:
  explicit FalseNegatives(ConfusionOptions options = {});
};

/// Method of averaging the scores of classes. kMicro: one score from the counts of all classes.
/// kMacro: unweighted mean over classes. kWeighted: mean weighted by the number of labels in each
/// class.
enum class ScoreAverage { kMicro, kMacro, kWeighted };

struct F1ScoreOptions {
  /// Number of columns in the labels (one-hot) and in the predictions; 1 means binary
  /// classification.
  std::int64_t num_classes = 1;
  ScoreAverage average = ScoreAverage::kMacro;
  /// Predictions above this value are positive. Default: 0.5 for one column; with more columns,
  /// each row's largest predictions are positive unless they are 0.
  std::optional<double> threshold = std::nullopt;
  /// Weight of recall relative to precision.
  double beta = 1.0;
  std::string name = "f1_score";
};

/// (1 + beta^2) * precision * recall / (beta^2 * precision + recall). Corresponds to
/// Keras's F1Score and FBetaScore.
class F1Score : public PredictionMetric {
 public:
  explicit F1Score(F1ScoreOptions options = {});
  Tensor result() const override;
  /// Returns one score per class.
  std::vector<double> per_class() const;

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  F1ScoreOptions options_;
  Variable counts_;  // [3, classes]: true positives, false positives, false negatives
};

struct MeanIoUOptions {
  /// Label of the pixels to ignore.
  std::optional<std::int64_t> ignore_class = std::nullopt;
  std::string name = "mean_io_u";
};

/// Mean over classes of the intersection over union: true positives / (true positives + false
/// positives + false negatives). Labels are class numbers [batch, ...]; predictions are class
/// numbers [batch, ...] or scores [batch, ..., classes]. Classes that occur neither in labels nor
/// in predictions do not count.
class MeanIoU : public PredictionMetric {
 public:
  explicit MeanIoU(std::int64_t num_classes, MeanIoUOptions options = {});
  Tensor result() const override;

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  std::int64_t num_classes_;
  MeanIoUOptions options_;
  Variable confusion_;  // [classes (label), classes (prediction)]
};

// The area under the ROC curve or the precision-recall curve.

/// Curve of the true positive rate against the false positive rate, or of precision against recall.
enum class AucCurve { kRoc, kPrecisionRecall };

struct AucOptions {
  /// Number of points on the curve.
  int num_thresholds = 200;
  AucCurve curve = AucCurve::kRoc;
  /// If true, applies a sigmoid to predictions first.
  bool from_logits = false;
  std::string name = "auc";
};

/// Keras's AUC over evenly spaced thresholds in [0, 1]: the trapezoidal rule for the ROC curve, and
/// Davis and Goadrich's interpolation for the precision-recall curve. Labels are 0 or 1 and have
/// the shape of the predictions; predictions are in [0, 1].
class Auc : public PredictionMetric {
 public:
  explicit Auc(AucOptions options = {});
  Tensor result() const override;

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  AucOptions options_;
  std::vector<double> thresholds_;
  /// [2, thresholds]: counts of predictions above the threshold, for labels 1 and 0.
  Variable positives_;
  Variable labels_;  // [2]: counts of labels equal to 1 and to 0
};

}  // namespace tutti
