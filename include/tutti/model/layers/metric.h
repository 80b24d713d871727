// The metric: a number gathered over batches, and over replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/json_values.h"

namespace tutti {

/// Which of a metric's values are better: kUp the larger, kDown the smaller ones; kUnknown: it does
/// not say (counts, plain means and sums).
enum class MetricDirection { kUnknown, kUp, kDown };

/// Gathers a number over many calls of update_state(). Its variables are ON_READ with aggregation
/// SUM, so replicas update their own component without waiting, and result() is that of all
/// replicas together. Make it inside the strategy's scope. Copies share the variables. Updates of
/// several replicas at once are safe. Sums and counts are float64: exact for more than 2^24
/// examples.
class Metric {
 public:
  virtual ~Metric() = default;

  const std::string& name() const { return name_; }
  /// What callbacks that watch this metric go by (MonitorMode::kAuto).
  MetricDirection direction() const { return direction_; }
  /// [] float64, over all replicas; 0 before the first update. Inside run every replica must ask.
  virtual Tensor result() const = 0;
  /// Back to nothing gathered. Outside run: on all replicas.
  void reset_state();
  const std::vector<Variable>& variables() const { return variables_; }
  /// What Model::save() writes: the call that makes it, ["Auc", {"num_thresholds": 200, ...}].
  /// Throws kUnimplemented for a metric that does not say so with made_with().
  Json describe() const;

 protected:
  explicit Metric(std::string name, MetricDirection direction = MetricDirection::kUnknown)
      : name_(std::move(name)), direction_(direction) {}
  Metric(const Metric&) = default;
  Metric& operator=(const Metric&) = default;

  /// Says, in the constructor, with which arguments the metric is made, so that it can be saved.
  template <class... Arguments>
  void made_with(const Arguments&... arguments) {
    arguments_ = [=] { return Json::Array{json_of(arguments)...}; };
  }
  /// A sum of this shape that starts at 0, float64.
  Variable add_sum(const std::string& name, const Shape& shape = {});
  /// The sum over replicas of a variable made by add_sum().
  static Tensor total(const Variable& sum);
  /// Counts the variables of `part`, a metric that this one is made of, as its own.
  void adopt(const Metric& part);
  /// total(numerator) / total(denominator); 0 when the latter is 0.
  static Tensor ratio(const Variable& numerator, const Variable& denominator);

 private:
  std::string name_;
  MetricDirection direction_;
  std::vector<Variable> variables_;
  std::function<Json::Array()> arguments_;  // of the constructor; null: not said
};

/// The mean of all values: (sum of value * weight) / (sum of weights).
class Mean final : public Metric {
 public:
  explicit Mean(std::string name = "mean");
  /// values of any shape, number of elements 0 included; weights as losses take them.
  void update_state(const Tensor& values, const Tensor& sample_weight = {});
  Tensor result() const override;

 private:
  Variable total_;
  Variable count_;
};

/// The sum of all values (times their weights).
class Sum final : public Metric {
 public:
  explicit Sum(std::string name = "sum");
  void update_state(const Tensor& values, const Tensor& sample_weight = {});
  Tensor result() const override;

 private:
  Variable total_;
};

// Metrics that compare predictions with labels: the interface, and the mean of a function.

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
/// the predictions (MaskScope) tell apart are examples of their own, as in Keras; metrics that are
/// no such mean do not read masks, there or here.
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

}  // namespace internal
}  // namespace tutti
