// Logs and History, functions through which callbacks query the model, and monitored values.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/callback.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"
#include "tutti/model/model.h"

namespace tutti {

namespace {

/// Returns the entry of `entries` named `name`, or nullptr.
template <class Entries>
auto find_entry(Entries& entries, std::string_view name) {
  const auto found =
      std::ranges::find_if(entries, [&](const auto& entry) { return entry.first == name; });
  return found == entries.end() ? nullptr : &*found;
}

template <class Entries>
auto& require_entry(Entries& entries, std::string_view who, std::string_view name) {
  auto* entry = find_entry(entries, name);
  if (!entry) {
    const auto names = internal::names_of(entries, [](auto& each) { return each.first; });
    fail(ErrorCode::kNotFound, who, ": there is no value '", name, "'; expected one of ",
         names.empty() ? "(none)" : internal::choices(names, name));
  }
  return entry->second;
}

}  // namespace

double Logs::at(std::string_view name) const { return require_entry(entries_, "Logs", name); }

bool Logs::has(std::string_view name) const { return find_entry(entries_, name) != nullptr; }

void Logs::set(std::string name, double value) {
  if (auto* entry = find_entry(entries_, name)) {
    entry->second = value;
  } else {
    entries_.emplace_back(std::move(name), value);
  }
}

Json Logs::to_json() const {
  Json json = Json::object();
  for (const auto& [name, value] : entries_) json.set(name, json_of(value));
  return json;
}

Logs Logs::from_json(const Json& json) {
  Logs logs;
  for (const auto& [name, value] : json.as_object()) logs.set(name, value_of<double>(value));
  return logs;
}

const std::vector<double>& History::at(std::string_view name) const {
  return require_entry(values_, "History", name);
}

bool History::has(std::string_view name) const { return find_entry(values_, name) != nullptr; }

std::vector<std::string> History::names() const {
  return internal::names_of(values_, [](const auto& entry) { return entry.first; });
}

void History::append(std::int64_t epoch, const Logs& logs) {
  epochs_.push_back(epoch);
  for (const auto& [name, value] : logs) {
    auto* entry = find_entry(values_, name);
    if (!entry) entry = &values_.emplace_back(name, std::vector<double>());
    entry->second.push_back(value);
  }
}

Json History::to_json() const {
  Json epochs = Json::array(), columns = Json::object();
  for (const std::int64_t epoch : epochs_) epochs.push_back(epoch);
  for (const auto& [name, values] : values_) {
    Json column = Json::array();
    for (const double value : values) column.push_back(json_of(value));
    columns.set(name, std::move(column));
  }
  Json json = Json::object();
  json.set("epochs", std::move(epochs)).set("values", std::move(columns));
  return json;
}

History History::from_json(const Json& json) {
  History history;
  for (const Json& epoch : json.at("epochs").as_array()) history.epochs_.push_back(epoch.as_int());
  for (const auto& [name, column] : json.at("values").as_object()) {
    auto& values = history.values_.emplace_back(name, std::vector<double>()).second;
    for (const Json& value : column.as_array()) values.push_back(value_of<double>(value));
  }
  return history;
}

// Functions that callbacks use to query the model.

bool Callback::is_chief() const { return !model_ || model_->strategy().is_chief(); }

std::vector<std::string> Callback::validation_names() const {
  std::vector<std::string> names;
  if (!model_ || !model_->has_validation()) return names;
  for (const std::string& name : model_->metrics_names()) names.push_back("val_" + name);
  return names;
}

}  // namespace tutti

namespace tutti::internal {

// Implements Monitor.

bool Monitor::larger_is_better(const Model& model) const {
  if (mode_ != MonitorMode::kAuto) return mode_ == MonitorMode::kMax;
  const MetricDirection direction = model.metric_direction(name_);
  if (direction != MetricDirection::kUnknown) return direction == MetricDirection::kUp;
  std::vector<std::string> known;
  for (const std::string& name : model.metrics_names())
    if (model.metric_direction(name) != MetricDirection::kUnknown) known.push_back(name);
  fail(ErrorCode::kInvalidArgument, who_, ": it is unknown whether larger values of '", name_,
       "' are better; expected one of ", join(known),
       " (each may have the prefix val_); use .mode = MonitorMode::kMax or MonitorMode::kMin");
}

bool Monitor::is_better(const Model& model, double value, double best, double min_delta) const {
  const bool larger = larger_is_better(model);
  if (std::isnan(value) || std::isnan(best)) return !std::isnan(value);
  return larger ? value - min_delta > best : value + min_delta < best;
}

std::optional<double> Monitor::value(const Logs& logs) const {
  if (logs.has(name_)) return logs.at(name_);
  const auto names = names_of(logs, [](const auto& entry) { return entry.first; });
  log_warning_once(concat(who_, ": there is no value '", name_, "' to monitor; the values are ",
                          join(names), "; is validation_data missing?"));
  return std::nullopt;
}

}  // namespace tutti::internal
