// All metrics, and metrics that are not made yet: names for Model::compile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>

#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/metric.h"
#include "tutti/model/layers/metrics.h"

namespace tutti {

/// A metric that does not exist yet: a name or a function that makes it, so that
/// Model::compile({.metrics = {"accuracy"}}) can make it in the scope of the model's strategy. A
/// value type.
class MetricSpec {
 public:
  using Maker = std::function<std::shared_ptr<PredictionMetric>()>;

  /// accuracy (acc), the snake_case names of the classes of metrics.h, or the name of a loss.
  /// Throws kInvalidArgument listing them for another name.
  MetricSpec(const char* name) : MetricSpec(std::string(name)) {}
  MetricSpec(const std::string& name);
  /// An existing metric, made in the scope of the model's strategy. It is shared: its result() can
  /// be asked for later.
  template <std::derived_from<PredictionMetric> M>
  MetricSpec(const M& metric) : MetricSpec(std::make_shared<M>(metric)) {}
  template <std::derived_from<PredictionMetric> M>
  MetricSpec(std::shared_ptr<M> metric)
      : name_(metric->name()), make_([metric = std::move(metric)] { return metric; }) {}
  MetricSpec(std::string name, Maker make) : name_(std::move(name)), make_(std::move(make)) {}

  const std::string& name() const { return name_; }
  /// "accuracy" becomes the accuracy that fits `loss` and, for others, the shapes. Metrics with a
  /// threshold of 0.5 get 0 for a loss that takes logits.
  std::shared_ptr<PredictionMetric> make(const Loss& loss) const;

 private:
  std::string name_;
  Maker make_;  // empty: by name
};

}  // namespace tutti
