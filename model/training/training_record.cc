// What a run has measured: steps, losses, examples per second.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/training/training_record.h"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace tutti {

TrainingRecord::TrainingRecord(bool keeps_losses, Clock& clock)
    : keeps_losses_(keeps_losses), clock_(&clock), start_(clock.now()), last_step_(start_) {}

void TrainingRecord::step(float loss, std::int64_t rows) {
  last_step_ = clock_->now();
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

std::optional<double> TrainingRecord::seconds_to_first_step() const {
  if (!first_step_) return std::nullopt;
  return seconds_between(start_, *first_step_);
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

}  // namespace tutti
