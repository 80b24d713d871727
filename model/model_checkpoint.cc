// Saves the model after epochs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/model_checkpoint.h"

#include <cstdio>

#include "tutti/model/model.h"
#include "tutti/model/monitored_value.h"

namespace tutti {
namespace {

/// `path` with {epoch} and {name} replaced. Throws kNotFound for a name that the logs lack.
std::string filled_in(const std::string& path, std::int64_t epoch, const Logs& logs) {
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
      best_(worst_value(options_.mode, options_.monitor)) {}

void ModelCheckpoint::on_epoch_end(std::int64_t epoch, const Logs& logs) {
  if (options_.save_best_only) {
    const std::optional<double> value =
        internal::monitored_value("ModelCheckpoint", options_.monitor, logs);
    if (!value || !is_better(options_.mode, options_.monitor, *value, best_, 0.0)) return;
    best_ = *value;
  }
  last_path_ = filled_in(path_, epoch, logs);
  if (options_.save_weights_only) {
    model().save_weights(last_path_);
  } else {
    model().checkpoint().save(last_path_, model().optimizer().iterations().value().item_int());
  }
}

}  // namespace tutti
