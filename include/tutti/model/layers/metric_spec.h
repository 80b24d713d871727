// All metrics, and metrics that are not made yet: names for Model::compile.
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
      : name_(metric->name()),
        call_([metric] { return metric->describe(); }),
        make_([metric] { return metric; }) {}
  MetricSpec(std::string name, Maker make) : name_(std::move(name)), make_(std::move(make)) {}

  const std::string& name() const { return name_; }
  /// What Model::save() writes: the name, or the call that makes the metric. Throws kUnimplemented
  /// for a function that makes it.
  Json to_json() const;
  static MetricSpec from_json(const Json& json);
  /// "accuracy" becomes the accuracy that fits `loss` and, for others, the shapes. By name, metrics
  /// with a threshold of 0.5 and AUC follow a loss that takes logits: the threshold is 0 for a
  /// binary loss, and probabilities are compared (after a softmax) for a categorical one.
  std::shared_ptr<PredictionMetric> make(const Loss& loss) const;

 private:
  std::string name_;
  std::function<Json()> call_;  // empty: not known, or by name
  Maker make_;                  // empty: by name
};

namespace internal {
using MetricMaker = CallReader<MetricSpec::Maker>;
void add_metric_maker(std::string type_name, MetricMaker maker);
/// An entry of the table of metrics that can be read. The metric is made later: its variables
/// belong to the scope of a strategy.
template <class M, class... Arguments>
MetricMaker metric_maker() {
  return reads_call<Arguments...>([](Arguments... arguments) -> MetricSpec::Maker {
    return [=] { return std::make_shared<M>(arguments...); };
  });
}
}  // namespace internal

/// Lets load_model() make metrics of type M, whose constructor says made_with(arguments...). Once;
/// throws kAlreadyExists.
template <std::derived_from<PredictionMetric> M, class... Arguments>
void register_metric() {
  internal::add_metric_maker(internal::plain_type_name(typeid(M)),
                             internal::metric_maker<M, Arguments...>());
}

}  // namespace tutti
