// Metrics that compare predictions with labels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tutti/model/layers/loss.h"
#include "tutti/model/layers/metric.h"

namespace tutti {

/// The mean over examples of a function of labels and predictions.
class PredictionMetric : public Metric {
 public:
  /// labels and predictions [batch, ...] -> one value per example, [batch].
  using Function = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

  PredictionMetric(std::string name, Function per_example);

  /// 0 rows change nothing. sample_weight: [batch], [] or undefined.
  void update_state(const Tensor& labels, const Tensor& predictions,
                    const Tensor& sample_weight = {});
  Tensor result() const override { return mean_.result(); }

 private:
  Function per_example_;
  Mean mean_;
};

/// How often the largest prediction [batch, classes] is that of the label's class number.
class SparseCategoricalAccuracy : public PredictionMetric {
 public:
  explicit SparseCategoricalAccuracy(std::string name = "sparse_categorical_accuracy");
};
/// The same for labels that are one-hot.
class CategoricalAccuracy : public PredictionMetric {
 public:
  explicit CategoricalAccuracy(std::string name = "categorical_accuracy");
};
/// How often (prediction > threshold) is the label, 0 or 1. Logits want threshold 0.
class BinaryAccuracy : public PredictionMetric {
 public:
  explicit BinaryAccuracy(std::string name = "binary_accuracy", double threshold = 0.5);
};
class MeanSquaredErrorMetric : public PredictionMetric {
 public:
  explicit MeanSquaredErrorMetric(std::string name = "mean_squared_error");
};
class MeanAbsoluteErrorMetric : public PredictionMetric {
 public:
  explicit MeanAbsoluteErrorMetric(std::string name = "mean_absolute_error");
};

/// A metric that does not exist yet: a name or a function that makes it, so that
/// Model::compile({.metrics = {"accuracy"}}) can make it in the scope of the model's strategy. A
/// value type.
class MetricSpec {
 public:
  using Maker = std::function<std::shared_ptr<PredictionMetric>()>;

  /// accuracy (acc), sparse_categorical_accuracy, categorical_accuracy, binary_accuracy, mse, mae,
  /// or the name of a loss. Throws kInvalidArgument listing them for another name.
  MetricSpec(const char* name) : MetricSpec(std::string(name)) {}
  MetricSpec(const std::string& name);
  /// An existing metric, made in the scope of the model's strategy.
  MetricSpec(const PredictionMetric& metric);
  MetricSpec(std::string name, Maker make) : name_(std::move(name)), make_(std::move(make)) {}

  const std::string& name() const { return name_; }
  /// "accuracy" becomes the accuracy that fits `loss` and, for others, the shapes.
  std::shared_ptr<PredictionMetric> make(const Loss& loss) const;

 private:
  std::string name_;
  Maker make_;  // empty: by name
};

}  // namespace tutti
