// Metric specifications for Model::compile(). This header also includes all metrics.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include "tutti/core/fields.h"
#include "tutti/core/json_values.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/metric.h"
#include "tutti/model/layers/metrics.h"

namespace tutti {

/// Metric that is created later, by name or by a function: Model::compile({.metrics =
/// {"accuracy"}}) creates it in the scope of the model's strategy. May also refer to an existing
/// metric. A value type.
class MetricSpec {
 public:
  using Maker = std::function<std::shared_ptr<PredictionMetric>()>;

  /// `name`: accuracy (acc), the snake_case name of a class in metrics.h, or the name of a loss.
  /// Throws kInvalidArgument, listing the names, for any other name.
  MetricSpec(const char* name) : MetricSpec(std::string(name)) {}
  MetricSpec(const std::string& name);
  /// Uses an existing metric, which must have been created in the scope of the model's strategy. It
  /// is shared, so the caller can read its result() later.
  template <std::derived_from<PredictionMetric> M>
  MetricSpec(const M& metric) : MetricSpec(std::make_shared<M>(metric)) {}
  template <std::derived_from<PredictionMetric> M>
  MetricSpec(std::shared_ptr<M> metric)
      : name_(metric->name()),
        call_([metric] { return metric->describe(); }),
        make_([metric] { return metric; }) {}
  MetricSpec(std::string name, Maker make) : name_(std::move(name)), make_(std::move(make)) {}

  const std::string& name() const { return name_; }
  /// Returns the name, or the call that recreates the metric, for Model::save(). Throws
  /// kUnimplemented for a metric created from a function.
  Json to_json() const;
  static MetricSpec from_json(const Json& json);
  /// Creates the metric. "accuracy" creates the kind of accuracy that suits `loss`; if several
  /// kinds do, the shapes decide. If `loss` takes logits, AUC and metrics with a threshold are
  /// adapted when created by name: for a categorical loss, they apply a softmax to predictions; for
  /// a binary loss, AUC applies a sigmoid, and the threshold is 0 instead of 0.5.
  std::shared_ptr<PredictionMetric> make(const Loss& loss) const;

 private:
  std::string name_;
  std::function<Json()> call_;  // empty if given by name, or if the constructor call is unknown
  Maker make_;                  // empty if the metric is given by name
};

namespace internal {
using MetricMaker = CallReader<MetricSpec::Maker>;
void add_metric_maker(std::string type_name, MetricMaker maker);
/// Returns the function that reads the constructor call of a metric of type M. The metric itself is
/// created later, because its variables belong to the scope of a strategy.
template <class M, class... Arguments>
MetricMaker metric_maker() {
  return reads_call<Arguments...>([](Arguments... arguments) -> MetricSpec::Maker {
    return [=] { return std::make_shared<M>(arguments...); };
  });
}
}  // namespace internal

/// Lets load_model() create metrics of type M, whose constructor calls made_with(arguments...). A
/// second call throws kAlreadyExists.
template <std::derived_from<PredictionMetric> M, class... Arguments>
void register_metric() {
  internal::add_metric_maker(internal::plain_type_name(typeid(M)),
                             internal::metric_maker<M, Arguments...>());
}

}  // namespace tutti
