// Metrics that count right and wrong decisions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/model/layers/prediction_metric.h"

namespace tutti {

struct ConfusionOptions {
  /// Predictions above it say yes. Logits want 0.
  double threshold = 0.5;
  /// Instead of the threshold: the k largest predictions of a row say yes.
  std::optional<int> top_k = std::nullopt;
  /// Only this column counts.
  std::optional<std::int64_t> class_id = std::nullopt;
  std::string name = "";
};

/// Weighted numbers of decisions; labels are 0 or 1, of the shape of the predictions.
class ConfusionMetric : public PredictionMetric {
 protected:
  ConfusionMetric(ConfusionOptions options, const char* default_name,
                  MetricDirection direction = MetricDirection::kUnknown);
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

  struct Counts {
    double true_positives = 0.0;
    double false_positives = 0.0;
    double true_negatives = 0.0;
    double false_negatives = 0.0;
  };
  /// Over all replicas.
  Counts counts() const;
  /// [] float64.
  Tensor scalar(double value) const;

 private:
  ConfusionOptions options_;
  Variable counts_;  // [4], in the order of Counts
};

/// Right among those that were said to be yes; 0 when none were.
class Precision : public ConfusionMetric {
 public:
  explicit Precision(ConfusionOptions options = {});
  Tensor result() const override;
};
/// Found among those whose label is yes.
class Recall : public ConfusionMetric {
 public:
  explicit Recall(ConfusionOptions options = {});
  Tensor result() const override;
};
class TruePositives : public ConfusionMetric {
 public:
  explicit TruePositives(ConfusionOptions options = {});
  Tensor result() const override;
};
class TrueNegatives : public ConfusionMetric {
 public:
  explicit TrueNegatives(ConfusionOptions options = {});
  Tensor result() const override;
};
class FalsePositives : public ConfusionMetric {
 public:
  explicit FalsePositives(ConfusionOptions options = {});
  Tensor result() const override;
};
class FalseNegatives : public ConfusionMetric {
 public:
  explicit FalseNegatives(ConfusionOptions options = {});
  Tensor result() const override;
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

}  // namespace tutti
