// Metric, a value accumulated over batches and replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/json_values.h"

namespace tutti {

/// Direction in which a metric improves: larger values are better for kUp, and smaller values for
/// kDown. kUnknown for metrics that declare no direction (counts, plain means and sums).
enum class MetricDirection { kUnknown, kUp, kDown };

/// Value accumulated over many calls of update_state(). Its variables are ON_READ with aggregation
/// SUM, so replicas update their own components without waiting, and result() covers all replicas.
/// Create a metric inside the strategy's scope. Copies share the variables. Replicas may update it
/// concurrently. Sums and counts are float64, so counts stay exact beyond 2^24 examples.
class Metric {
 public:
  virtual ~Metric() = default;

  const std::string& name() const { return name_; }
  /// Direction for callbacks that monitor this metric (MonitorMode::kAuto).
  MetricDirection direction() const { return direction_; }
  /// Returns the value over all replicas as a float64 scalar; 0 before the first update. Collective
  /// inside run().
  virtual Tensor result() const = 0;
  /// Sets the variables to 0. Outside run(), does so on all replicas.
  void reset_state();
  const std::vector<Variable>& variables() const { return variables_; }
  /// Returns the call that recreates the metric, for Model::save(): ["Auc", {"num_thresholds": 200,
  /// ...}]. Throws kUnimplemented for a metric that does not call made_with().
  Json describe() const;

 protected:
  explicit Metric(std::string name, MetricDirection direction = MetricDirection::kUnknown)
      : name_(std::move(name)), direction_(direction) {}
  Metric(const Metric&) = default;
  Metric& operator=(const Metric&) = default;

  /// Declares the constructor's arguments so that the metric can be saved. Call it in the
  /// constructor.
  template <class... Arguments>
  void made_with(const Arguments&... arguments) {
    arguments_ = [=] { return Json::Array{json_of(arguments)...}; };
  }
  /// Creates a float64 variable of the given shape, initially 0.
  Variable add_sum(const std::string& name, const Shape& shape = {});
  /// Returns the sum, over replicas, of a variable that add_sum() created.
  static Tensor total(const Variable& sum);
  /// Adds the variables of `part`, a metric that this metric contains, to this metric's variables.
  void adopt(const Metric& part);
  /// Returns total(numerator) / total(denominator); 0 if the denominator is 0.
  static Tensor ratio(const Variable& numerator, const Variable& denominator);

 private:
  std::string name_;
  MetricDirection direction_;
  std::vector<Variable> variables_;
  std::function<Json::Array()> arguments_;  // constructor arguments; null if not declared
};

/// Mean of all values: (sum of value * weight) / (sum of weights); 0 if the weights sum to 0.
class Mean final : public Metric {
 public:
  explicit Mean(std::string name = "mean");
  /// `values` may have any shape, including shapes with 0 elements. `sample_weight` is used as in
  /// losses.
  void update_state(const Tensor& values, const Tensor& sample_weight = {});
  Tensor result() const override;

 private:
  Variable total_;
  Variable count_;
};

/// Sum of all values (multiplied by their weights).
class Sum final : public Metric {
 public:
  explicit Sum(std::string name = "sum");
  void update_state(const Tensor& values, const Tensor& sample_weight = {});
  Tensor result() const override;

 private:
  Variable total_;
};

// Metrics that compare predictions with labels: the interface, and metrics that are the mean of a
// function.

/// Metric that compares predictions with labels, for Model::compile(). For a custom metric, derive
/// from PredictionMetric: create sums with add_sum() in the constructor, add to them in update(),
/// and read their totals over all replicas with total() in result().
class PredictionMetric : public Metric {
 public:
  /// Adds a batch. labels and predictions are [batch, ...] with 0 or more rows. sample_weight:
  /// [batch], [] or undefined; for predictions [batch, steps, ...] also [batch, steps]. Throws
  /// kInvalidArgument, naming the metric, for incompatible shapes.
  void update_state(const Tensor& labels, const Tensor& predictions,
                    const Tensor& sample_weight = {});

 protected:
  using Metric::Metric;
  /// Adds a batch to the sums. Not recorded on tapes. Must be thread-safe.
  virtual void update(const Tensor& labels, const Tensor& predictions,
                      const Tensor& sample_weight) = 0;
};

/// Mean, over the examples, of a function of labels and predictions. If there are weights per step,
/// or the predictions have a mask (MaskScope), each step counts as an example, as in Keras. Other
/// metrics ignore masks, as in Keras.
class MeanPredictionMetric : public PredictionMetric {
 public:
  /// Maps labels and predictions [batch, ...] to one value per example, [batch].
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

/// Labels, predictions and weights of one batch as plain numbers. Each element has one label, one
/// prediction and one weight (1 by default).
struct PlainPairs {
  std::vector<double> labels;
  std::vector<double> predictions;
  std::vector<double> weights;
};
/// Converts the tensors; labels get the shape of predictions. Throws the errors of
/// same_shape_labels().
PlainPairs plain_pairs(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight,
                       std::string_view who);

}  // namespace internal
}  // namespace tutti
