// All optimizers, and an optimizer as a value: what Model::compile takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/optimizer/adagrad.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/optimizer/learning_rate_schedules.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/trust_ratio.h"

namespace tutti {

/// A name ("sgd", "adamw"; optimizer_names()), an options struct, or a function that makes an
/// Optimizer of your own.
class OptimizerSpec {
 public:
  using Factory = std::function<std::unique_ptr<Optimizer>(std::span<const Variable>)>;

  OptimizerSpec() : OptimizerSpec("sgd") {}
  /// Throws kInvalidArgument listing the names.
  OptimizerSpec(const char* name) : OptimizerSpec(std::string(name)) {}
  OptimizerSpec(const std::string& name);
  /// Options whose type names the optimizer that takes them: SgdOptions, ..., or your own.
  template <class Options, class Made = typename Options::MadeOptimizer>
  OptimizerSpec(const Options& options)
      : factory_([options](std::span<const Variable> variables) {
          return std::make_unique<Made>(variables, options);
        }) {}
  OptimizerSpec(Factory factory) : factory_(std::move(factory)) {}

  std::unique_ptr<Optimizer> make(std::span<const Variable> variables) const {
    return factory_(variables);
  }

 private:
  Factory factory_;
};

/// The names that an OptimizerSpec can be, in alphabetical order.
std::vector<std::string> optimizer_names();

/// The complete optimizer for these variables.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::span<const Variable> variables);

/// The same optimizer with dynamic loss scaling: keras.optimizers.LossScaleOptimizer.
OptimizerSpec with_dynamic_loss_scale(OptimizerSpec spec, DynamicLossScaleOptions options = {});

}  // namespace tutti
