// Writes the --metrics-json file: the losses, speed and hashes of a run.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/metrics_file.h"

#include <cstdio>
#include <fstream>

#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/numerics.h"

namespace tutti::examples {

std::string hex_float(float value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", static_cast<double>(value));
  return text;
}

TrainingRecord make_record(const ExampleOptions& options) {
  return TrainingRecord(!options.metrics_json.empty());
}

void write_metrics(const ExampleOptions& options, const TrainingRecord& record, double accuracy,
                   Strategy& strategy, std::span<const Variable> weights,
                   std::span<const Variable> slots) {
  if (options.metrics_json.empty()) return;
  // All workers compute the hashes, because reading variables is collective.
  const std::string weights_hash = hash_variables(weights);
  const std::string slots_hash = hash_variables(slots);
  if (!strategy.is_chief()) return;
  Json losses = Json::array();
  Json losses_hex = Json::array();
  for (float loss : record.losses()) {
    losses.push_back(static_cast<double>(loss));
    losses_hex.push_back(hex_float(loss));
  }
  Json metrics = Json::object();
  metrics.set("strategy", strategy.name());
  metrics.set("num_replicas", strategy.num_replicas_in_sync());
  metrics.set("cross_device_ops", strategy.reduction_name());
  metrics.set("numerics", numerics_fingerprint());
  metrics.set("steps", record.steps());
  metrics.set("examples_per_second", record.examples_per_second());
  metrics.set("final_loss",
              record.losses().empty() ? Json() : Json(static_cast<double>(record.losses().back())));
  metrics.set("losses", std::move(losses));
  metrics.set("losses_hex", std::move(losses_hex));
  metrics.set("accuracy", accuracy);
  metrics.set("weights_hash", weights_hash);
  metrics.set("slots_hash", slots_hash);
  const std::optional<double> seconds = record.seconds_to_first_step();
  metrics.set("seconds_to_first_step", seconds ? Json(*seconds) : Json());
  std::ofstream file(options.metrics_json);
  file << metrics.dump(2) << std::endl;
  if (!file) fail(ErrorCode::kUnavailable, "--metrics-json: cannot write ", options.metrics_json);
}

TrainingSessionOptions session_options(const ExampleOptions& options) {
  return {.epochs = options.epochs,
          .steps = options.steps,
          .log_dir = options.log_dir,
          .checkpoint_dir = options.checkpoint_dir,
          .resume = options.resume,
          .keep_losses = !options.metrics_json.empty()};
}

int finish(TrainingSession& session, const ExampleOptions& options, Strategy& strategy,
           std::span<const Variable> weights, const Optimizer& optimizer, double min_value) {
  write_metrics(options, session.record(), session.last_value(), strategy, weights,
                optimizer.state_variables());
  const int code = session.finish();
  if (code != 0 || session.last_value() >= min_value) return code;
  std::fprintf(stderr, "error: expected a test accuracy of at least %.4f, got %.4f\n", min_value,
               session.last_value());
  return 1;
}

}  // namespace tutti::examples
