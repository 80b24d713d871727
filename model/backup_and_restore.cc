// Keeps a running fit on the disk.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/backup_and_restore.h"

#include <utility>

#include "tutti/core/logging.h"
#include "tutti/model/model.h"
#include "tutti/strategy/local_strategy.h"

namespace tutti {

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
  log_info(concat("BackupAndRestore: goes on after batch ", restored_->step, " in all, from ",
                  restored_->path));
}

void BackupAndRestore::on_can_save(const FitPoint& point) {
  stopped_ = point.batches > 0 && stops_here();
  const bool is_due =
      options_.save_freq ? point.steps - saved_steps_ >= *options_.save_freq : point.batches == 0;
  if (!is_due && !stopped_) return;
  saved_steps_ = point.steps;
  manager_->save(point.steps);
  if (stopped_) model().interrupt_training();
}

/// Of several workers one may be asked to; all stop after the same batch.
bool BackupAndRestore::stops_here() {
  if (!options_.stop_requested) return false;
  auto* const workers = dynamic_cast<LocalStrategy*>(&model().strategy());
  if (!workers) return options_.stop_requested();
  if (options_.stop_requested()) workers->request_stop("BackupAndRestore");
  return workers->stops_after(++asked_);
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
  manager_.reset();
}

}  // namespace tutti
