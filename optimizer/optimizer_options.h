// What every optimizer takes besides the numbers of its rule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/optimizer/clipping.h"
#include "tutti/optimizer/learning_rate_schedule.h"

namespace tutti {

/// Keeps an exponential moving average of the weights: after each update average = momentum *
/// average + (1 - momentum) * weight, the first time the weight itself. Every
/// `overwrite_frequency` updates, if given, the weights become their averages;
/// Optimizer::finalize_variable_values() does it at the end. Keras's use_ema.
struct EmaOptions {
  double momentum = 0.99;
  std::optional<std::int64_t> overwrite_frequency = std::nullopt;
};

/// Loss scaling that looks for the largest scale at which gradients stay finite: an update with a
/// gradient that is not finite on some replica is skipped on all, and the scale divided by
/// `multiplier` (never below 1); after `growth_steps` updates in a row it is multiplied by it, as
/// long as it stays finite as a float32. tf's DynamicLossScale.
struct DynamicLossScaleOptions {
  double initial_scale = 32768.0;
  std::int64_t growth_steps = 2000;
  double multiplier = 2.0;
};

/// The options structs of the optimizers repeat these fields. Keras's names and meanings.
struct OptimizerOptions {
  LearningRate learning_rate = 0.01;
  /// Before each update weights shrink by weight * learning rate * this (decoupled).
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  /// A fixed factor on the loss, by which gradients are divided again.
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  /// Gradients of this many calls are averaged for one update; they are summed over replicas once.
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";  // empty: the rule's name
};

/// The shared fields of `options`, the options of some optimizer.
template <class Options>
OptimizerOptions shared_options(const Options& options) {
  return {.learning_rate = options.learning_rate,
          .weight_decay = options.weight_decay,
          .clipping = options.clipping,
          .ema = options.ema,
          .loss_scale_factor = options.loss_scale_factor,
          .dynamic_loss_scale = options.dynamic_loss_scale,
          .gradient_accumulation_steps = options.gradient_accumulation_steps,
          .name = options.name};
}

}  // namespace tutti
