// The metrics that come with tutti.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/model/layers/metric.h"

namespace tutti {

// Accuracies and errors as metrics.

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
/// One value per example, [batch]. Keras's rule for "accuracy" where the loss does not tell: one
/// output is binary, labels of the shape of the predictions are one-hot, others are class numbers.
MeanPredictionMetric::Function hits_by_shape();
}  // namespace internal

// Metrics that count right and wrong decisions.

/// What counts as a decision for yes.
struct ConfusionOptions {
  /// Predictions above it say yes. Logits want 0.
  double threshold = 0.5;
  /// Instead of the threshold: the k largest predictions of a row say yes.
  std::optional<int> top_k = std::nullopt;
  /// Only this column counts.
  std::optional<std::int64_t> class_id = std::nullopt;
  std::string name = "";
};

/// What is made of weighted numbers of decisions; labels are 0 or 1, of the shape of the
/// predictions.
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
  /// `score` makes the result of the numbers over all replicas.
  using Score = double (*)(const Counts& counts);
  ConfusionMetric(ConfusionOptions options, const char* default_name, Score score,
                  MetricDirection direction = MetricDirection::kUnknown);
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  ConfusionOptions options_;
  Score score_;
  Variable counts_;  // [4], in the order of Counts
};

/// Right among those that were said to be yes; 0 when none were.
class Precision : public ConfusionMetric {
 public:
  explicit Precision(ConfusionOptions options = {});
};
/// Found among those whose label is yes.
class Recall : public ConfusionMetric {
 public:
  explicit Recall(ConfusionOptions options = {});
};
/// How many were said to be yes, and are.
class TruePositives : public ConfusionMetric {
 public:
  explicit TruePositives(ConfusionOptions options = {});
};
/// How many were said to be no, and are.
class TrueNegatives : public ConfusionMetric {
 public:
  explicit TrueNegatives(ConfusionOptions options = {});
};
/// How many were said to be yes, and are no.
class FalsePositives : public ConfusionMetric {
 public:
  explicit FalsePositives(ConfusionOptions options = {});
};
/// How many were said to be no, and are yes.
class FalseNegatives : public ConfusionMetric {
 public:
  explicit FalseNegatives(ConfusionOptions options = {});
};

/// How the scores of classes become one: kMicro counts all decisions together, kMacro is the mean
/// over classes, kWeighted that mean weighted by the numbers of their labels.
enum class ScoreAverage { kMicro, kMacro, kWeighted };

struct F1ScoreOptions {
  /// Columns of labels (one-hot) and predictions; 1 is a binary decision.
  std::int64_t num_classes = 1;
  ScoreAverage average = ScoreAverage::kMacro;
  /// Default: 0.5 for one column; otherwise the largest prediction of a row says yes: of equal ones
  /// all, of those that are 0 none.
  std::optional<double> threshold = std::nullopt;
  /// Recall counts beta times as much as precision.
  double beta = 1.0;
  std::string name = "f1_score";
};

/// (1 + beta^2) * precision * recall / (beta^2 * precision + recall). Keras's F1Score, FBetaScore.
class F1Score : public PredictionMetric {
 public:
  explicit F1Score(F1ScoreOptions options = {});
  Tensor result() const override;
  /// One score per class.
  std::vector<double> per_class() const;

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  F1ScoreOptions options_;
  Variable counts_;  // [3, classes]: true positives, false positives, false negatives
};

struct MeanIoUOptions {
  /// Pixels with this label do not count.
  std::optional<std::int64_t> ignore_class = std::nullopt;
  std::string name = "mean_io_u";
};

/// The mean over classes of intersection over union: true positives / (true and false positives +
/// false negatives). Labels are class numbers [batch, ...]; predictions likewise, or scores
/// [batch, ..., classes]. Classes that neither holds do not count.
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

// The area under the ROC or the precision-recall curve.

/// True positive rate over false positive rate, or precision over recall.
enum class AucCurve { kRoc, kPrecisionRecall };

struct AucOptions {
  /// The curve has this many points.
  int num_thresholds = 200;
  AucCurve curve = AucCurve::kRoc;
  /// Predictions go through a sigmoid first.
  bool from_logits = false;
  std::string name = "auc";
};

/// Keras's AUC: thresholds spread evenly over [0, 1], trapezoids under the ROC curve, the
/// interpolation of Davis and Goadrich under the other. Labels are 0 or 1, of the shape of the
/// predictions; predictions are in [0, 1].
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
  Variable positives_;  // [2, thresholds]: predictions above each threshold, by label 1 and 0
  Variable labels_;     // [2]: labels 1 and 0
};

}  // namespace tutti
