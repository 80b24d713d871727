// What a run reports: losses, speed, hashes; the metrics file of --metrics-json.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/training_record.h"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "tutti/core/file.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/numerics.h"

namespace tutti::examples {

std::string hex_float(float value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", static_cast<double>(value));
  return text;
}

TrainingRecord::TrainingRecord(const ExampleOptions& options, Clock& clock)
    : keeps_losses_(!options.metrics_json.empty()),
      clock_(clock),
      start_(clock.now()),
      last_step_(start_) {}

void TrainingRecord::step(float loss, std::int64_t rows) {
  last_step_ = clock_.now();
  if (first_step_) {
    timed_rows_ += rows;
  } else {
    first_step_ = last_step_;
  }
  ++steps_;
  if (keeps_losses_) losses_.push_back(loss);
}

double TrainingRecord::examples_per_second() const {
  if (!first_step_) return 0.0;
  const double seconds = seconds_between(*first_step_, last_step_);
  return seconds > 0 ? static_cast<double>(timed_rows_) / seconds : 0.0;
}

Json TrainingRecord::save() const {
  std::string bits;  // eight digits each: this is written with every checkpoint
  for (const float loss : losses_) {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", std::bit_cast<std::uint32_t>(loss));
    bits += text;
  }
  Json state = Json::object();
  state.set("steps", steps_);
  state.set("loss_bits", std::move(bits));
  return state;
}

void TrainingRecord::restore(const Json& state) {
  steps_ = state.at("steps").as_int();
  losses_.clear();
  if (!keeps_losses_) return;
  const std::string& bits = state.at("loss_bits").as_string();
  for (std::size_t place = 0; place < bits.size(); place += 8) {
    const auto number = std::strtoul(bits.substr(place, 8).c_str(), nullptr, 16);
    losses_.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(number)));
  }
  losses_.resize(static_cast<std::size_t>(steps_), std::numeric_limits<float>::quiet_NaN());
}

void TrainingRecord::write(const ExampleOptions& options, Strategy& strategy,
                           std::span<const Variable> weights,
                           std::span<const Variable> slots) const {
  if (options.metrics_json.empty()) return;
  // Hashes read variables, which all workers do together; one writes.
  const std::string weights_hash = hash_variables(weights);
  const std::string slots_hash = hash_variables(slots);
  if (!strategy.is_chief()) return;
  Json losses = Json::array();
  Json losses_hex = Json::array();
  for (float loss : losses_) {
    losses.push_back(static_cast<double>(loss));
    losses_hex.push_back(hex_float(loss));
  }
  Json metrics = Json::object();
  metrics.set("strategy", strategy.name());
  metrics.set("num_replicas", strategy.num_replicas_in_sync());
  metrics.set("cross_device_ops", strategy.reduction_name());
  metrics.set("numerics", numerics_fingerprint());
  metrics.set("steps", steps());
  metrics.set("examples_per_second", examples_per_second());
  metrics.set("final_loss", losses_.empty() ? Json() : Json(static_cast<double>(losses_.back())));
  metrics.set("losses", std::move(losses));
  metrics.set("losses_hex", std::move(losses_hex));
  if (accuracy_) metrics.set("accuracy", *accuracy_);
  metrics.set("weights_hash", weights_hash);
  metrics.set("slots_hash", slots_hash);
  metrics.set("seconds_to_first_step",
              first_step_ ? Json(seconds_between(start_, *first_step_)) : Json());
  write_file_atomically(options.metrics_json, metrics.dump(2) + "\n");
}

}  // namespace tutti::examples
