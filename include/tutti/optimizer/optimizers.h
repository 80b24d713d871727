// All optimizers, and OptimizerSpec, the optimizer argument of Model::compile.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "tutti/core/json_values.h"
#include "tutti/optimizer/adadelta.h"
#include "tutti/optimizer/adagrad.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/optimizer/ftrl.h"
#include "tutti/optimizer/lamb.h"
#include "tutti/optimizer/lars.h"
#include "tutti/optimizer/learning_rate_schedules.h"
#include "tutti/optimizer/lion.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/optimizer/rmsprop.h"
#include "tutti/optimizer/sgd.h"

namespace tutti {

namespace internal {
/// Returns the constructor call of options registered with register_optimizer().
Json json_of_options(const std::type_info& type, const void* options);
}  // namespace internal

/// Description of an optimizer: a name ("sgd", "adamw"; see optimizer_names()), an options struct,
/// or a function that creates a custom Optimizer.
class OptimizerSpec {
 public:
  using Factory = std::function<std::unique_ptr<Optimizer>(std::span<const Variable>)>;

  OptimizerSpec() : OptimizerSpec("sgd") {}
  /// Throws kInvalidArgument, listing the known names, for an unknown name.
  OptimizerSpec(const char* name) : OptimizerSpec(std::string(name)) {}
  OptimizerSpec(const std::string& name);
  /// Takes options whose type determines the optimizer: SgdOptions, ..., or a custom type.
  template <class Options, class Made = typename Options::MadeOptimizer>
  OptimizerSpec(const Options& options)
      : factory_([options](std::span<const Variable> variables) {
          return std::make_unique<Made>(variables, options);
        }),
        json_([options] { return internal::json_of_options(typeid(Options), &options); }) {}
  OptimizerSpec(Factory factory) : factory_(std::move(factory)) {}

  std::unique_ptr<Optimizer> make(std::span<const Variable> variables) const {
    return factory_(variables);
  }

  /// Returns the options as Model::save() writes them, e.g. ["AdamOptions", {"learning_rate":
  /// 0.001, ...}]. Throws kUnimplemented for a function, and for custom options that
  /// register_optimizer() has not registered.
  Json to_json() const;
  /// Inverse of to_json(). Throws kNotFound for an unknown options type.
  static OptimizerSpec from_json(const Json& json);

 private:
  friend OptimizerSpec with_dynamic_loss_scale(OptimizerSpec spec, DynamicLossScaleOptions options);

  Factory factory_;
  std::function<Json()> json_;  // null if the description is a function
};

/// Returns the names that OptimizerSpec accepts, in alphabetical order.
std::vector<std::string> optimizer_names();

/// Creates the optimizer that `spec` describes, for these variables.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::span<const Variable> variables);

/// Adds dynamic loss scaling to an optimizer. Corresponds to keras.optimizers.LossScaleOptimizer.
OptimizerSpec with_dynamic_loss_scale(OptimizerSpec spec, DynamicLossScaleOptions options = {});

namespace internal {
void add_optimizer_options(const std::type_info& type,
                           std::function<Json(const void* options)> to_json,
                           CallReader<OptimizerSpec> reader);
}  // namespace internal

/// Registers a custom optimizer's options, so that Model::save() can write them and load_model()
/// can read them. Throws kAlreadyExists if Options is already registered.
template <class Options>
void register_optimizer() {
  internal::add_optimizer_options(
      typeid(Options),
      [](const void* options) { return json_of(*static_cast<const Options*>(options)); },
      internal::reads_call<Options>([](Options options) { return OptimizerSpec(options); }));
}

}  // namespace tutti
