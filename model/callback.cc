// What callbacks ask of the model that is trained, and the value that they watch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/callback.h"

#include <cmath>
#include <vector>

#include "core/names.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"
#include "tutti/model/model.h"

namespace tutti {

// What callbacks ask of the model that is trained.

bool Callback::is_chief() const { return !model_ || model_->strategy().is_chief(); }

std::vector<std::string> Callback::validation_names() const {
  std::vector<std::string> names;
  if (!model_ || !model_->has_validation()) return names;
  for (const std::string& name : model_->metrics_names()) names.push_back("val_" + name);
  return names;
}

}  // namespace tutti

namespace tutti::internal {

// The value that a callback watches, and what is better.

bool Monitor::larger_is_better(const Model& model) const {
  if (mode_ != MonitorMode::kAuto) return mode_ == MonitorMode::kMax;
  const MetricDirection direction = model.metric_direction(name_);
  if (direction != MetricDirection::kUnknown) return direction == MetricDirection::kUp;
  std::vector<std::string> known;
  for (const std::string& name : model.metrics_names())
    if (model.metric_direction(name) != MetricDirection::kUnknown) known.push_back(name);
  fail(ErrorCode::kInvalidArgument, who_, ": whether larger values of '", name_,
       "' are better is not known; expected one of ", join(known),
       " (or the same with val_ in front); try .mode = MonitorMode::kMax or MonitorMode::kMin");
}

bool Monitor::is_better(const Model& model, double value, double best, double min_delta) const {
  const bool larger = larger_is_better(model);
  if (std::isnan(value) || std::isnan(best)) return !std::isnan(value);
  return larger ? value - min_delta > best : value + min_delta < best;
}

std::optional<double> Monitor::value(const Logs& logs) const {
  if (logs.has(name_)) return logs.at(name_);
  const auto names = names_of(logs, [](const auto& entry) { return entry.first; });
  log_warning_once(concat(who_, ": there is no value '", name_, "' to watch; there are ",
                          join(names), "; is validation_data missing?"));
  return std::nullopt;
}

}  // namespace tutti::internal
