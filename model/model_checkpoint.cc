// Callbacks that save the model, or the state of a running fit().
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/model_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "core/call_site.h"
#include "tutti/core/logging.h"
#include "tutti/model/callback.h"
#include "tutti/model/model.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

// Saving the model after each epoch or every save_freq batches.

namespace {

/// Returns the names that appear in braces in the path.
std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::size_t close = 0;
  for (std::size_t open = path.find('{'); open != std::string::npos; open = path.find('{', close)) {
    close = path.find('}', open);
    if (close == std::string::npos) break;
    names.push_back(path.substr(open + 1, close - open - 1));
  }
  return names;
}

/// Returns `path` with the names in braces replaced by their values. Throws kNotFound for a name
/// that is missing from the logs.
std::string filled_in(const std::string& path, std::int64_t epoch, std::int64_t batch,
                      const Logs& logs) {
  std::string filled;
  for (std::size_t i = 0; i < path.size();) {
    const std::size_t close = path[i] == '{' ? path.find('}', i) : std::string::npos;
    if (close == std::string::npos) {
      filled += path[i++];
      continue;
    }
    const std::string name = path.substr(i + 1, close - i - 1);
    if (name == "epoch") {
      filled += concat(epoch + 1);
    } else if (name == "batch") {
      filled += concat(batch + 1);
    } else {
      char text[32];
      std::snprintf(text, sizeof text, "%.4f", logs.at(name));
      filled += text;
    }
    i = close + 1;
  }
  return filled;
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(std::string path, ModelCheckpointOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      monitor_("ModelCheckpoint", options_.monitor, options_.mode),
      best_(options_.initial_value_threshold.value_or(internal::Monitor::kNothing)) {
  if (options_.max_to_keep < 0 || options_.save_freq.value_or(1) <= 0) {
    fail(ErrorCode::kInvalidArgument,
         "ModelCheckpoint: expected max_to_keep >= 0 and a positive save_freq, got ",
         options_.max_to_keep, " and ", options_.save_freq.value_or(1));
  }
  for (const std::string& name : names_in(path_)) {
    if (name.find_first_of(":!.[{") == std::string::npos && !name.empty()) continue;
    fail(ErrorCode::kInvalidArgument,
         "ModelCheckpoint: expected {epoch}, {batch} or {name of a value} in the path, got {", name,
         "}; format specifiers are not supported; use {",
         name.substr(0, name.find_first_of(":!.[{")), "}");
  }
}

void ModelCheckpoint::on_train_begin() {
  if (options_.save_best_only) (void)monitor_.larger_is_better(model());  // checks the name
  for (const std::string& name : names_in(path_)) {
    if (!name.starts_with("val_") || model().has_validation()) continue;
    const std::vector<std::string> metrics = model().metrics_names();
    if (std::ranges::find(metrics, name.substr(4)) == metrics.end()) continue;
    fail(ErrorCode::kInvalidArgument, "ModelCheckpoint: the path contains {", name,
         "}, but fit() has no validation_data; set it, or use {", name.substr(4), "}");
  }
}

void ModelCheckpoint::on_train_batch_end(std::int64_t batch, const Logs& logs) {
  if (!options_.save_freq || ++batches_ < *options_.save_freq) return;
  batches_ = 0;
  save(batch, logs);
}

void ModelCheckpoint::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  epoch_ = epoch;
  if (!options_.save_freq) save(0, logs);
}

void ModelCheckpoint::save(std::int64_t batch, const Logs& logs) {
  if (options_.save_best_only) {
    const std::optional<double> value = monitor_.value(logs);
    if (!value || !monitor_.is_better(model(), *value, best_)) return;
    best_ = *value;
  }
  last_path_ = filled_in(path_, epoch_, batch, logs);
  if (options_.save_weights_only) {
    model().save_weights(last_path_, CallSite::current());
  } else {
    model().checkpoint().save(last_path_, model().optimizer().iterations().value().item_int(),
                              CallSite::current());
  }
  std::erase(paths_, last_path_);
  paths_.push_back(last_path_);
  delete_old();
}

void ModelCheckpoint::delete_old() {
  while (options_.max_to_keep > 0 &&
         paths_.size() > static_cast<std::size_t>(options_.max_to_keep)) {
    std::error_code ignored;  // another process may have deleted the file
    if (model().strategy().is_chief()) std::filesystem::remove(paths_.front(), ignored);
    paths_.erase(paths_.begin());
  }
}

Json ModelCheckpoint::save_state() const {
  Json state = Json::object();
  state.set("best", json_of(best_)).set("last_path", last_path_);
  state.set("paths", json_of(paths_)).set("epoch", epoch_).set("batches", batches_);
  return state;
}

void ModelCheckpoint::restore_state(const Json& state) {
  best_ = value_of<double>(state.at("best"));
  last_path_ = state.at("last_path").as_string();
  paths_ = value_of<std::vector<std::string>>(state.at("paths"));
  epoch_ = state.at("epoch").as_int();
  batches_ = state.at("batches").as_int();
}

// Saving the state of a running fit() to disk.

BackupAndRestore::BackupAndRestore(std::string backup_dir, BackupAndRestoreOptions options)
    : backup_dir_(std::move(backup_dir)), options_(options) {
  if (!backup_dir_.empty() && options_.save_freq.value_or(1) > 0 && options_.max_to_keep > 0) {
    return;
  }
  fail(ErrorCode::kInvalidArgument,
       "BackupAndRestore: expected a folder, a positive save_freq and a positive max_to_keep, got "
       "'",
       backup_dir_, "', ", options_.save_freq.value_or(1), " and ", options_.max_to_keep);
}

void BackupAndRestore::on_train_begin() {
  restored_.reset();
  saved_steps_ = asked_ = 0;
  stopped_ = false;
  manager_.emplace(model().fit_checkpoint(), backup_dir_,
                   CheckpointManagerOptions{.max_to_keep = options_.max_to_keep,
                                            .asynchronous = true,
                                            .on_error = options_.on_error});
}

void BackupAndRestore::on_can_restore() {
  restored_ = manager_->restore_latest();
  if (!restored_ || !is_chief()) return;
  log_info(concat("BackupAndRestore: resuming after a total of ", restored_->step,
                  " batches, from ", restored_->path));
}

void BackupAndRestore::on_can_save(const FitPoint& point) {
  stopped_ = point.is_stop || (point.batches > 0 && stops_here());
  const bool is_due =
      options_.save_freq ? point.steps - saved_steps_ >= *options_.save_freq : point.batches == 0;
  if (!is_due && !stopped_) return;
  saved_steps_ = point.steps;
  manager_->save(point.steps);
  if (stopped_) model().interrupt_training();
}

/// Returns true if training must stop here. All workers stop after the same batch, even if only one
/// of them is asked to stop.
bool BackupAndRestore::stops_here() {
  if (!options_.stop_requested) return false;
  Strategy& strategy = model().strategy();
  ++asked_;
  if (options_.stop_requested()) {
    if (!internal::team_of(strategy)) return true;
    strategy.request_stop("BackupAndRestore");
  }
  return strategy.stops_after(asked_);
}

Json BackupAndRestore::save_state() const {
  Json state = Json::object();
  state.set("saved_steps", saved_steps_).set("asked", asked_);
  return state;
}

void BackupAndRestore::restore_state(const Json& state) {
  saved_steps_ = state.at("saved_steps").as_int();
  asked_ = state.at("asked").as_int();
}

void BackupAndRestore::on_train_end(const Logs&) {
  if (options_.delete_checkpoint && !stopped_) {
    manager_->delete_all();
  } else {
    manager_->wait();
  }
  last_error_ = manager_->last_error();
  manager_.reset();
}

}  // namespace tutti
