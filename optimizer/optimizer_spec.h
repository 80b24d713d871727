// Which optimizer, as a value: what Model::compile takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tutti/optimizer/optimizer.h"

namespace tutti {

/// A name ("sgd", "adam"), an options struct, or a function that makes an Optimizer of your own.
class OptimizerSpec {
 public:
  using Factory = std::function<std::unique_ptr<Optimizer>(std::span<const Variable>)>;

  OptimizerSpec() : OptimizerSpec("sgd") {}
  /// Throws kInvalidArgument listing the names.
  OptimizerSpec(const char* name) : OptimizerSpec(std::string(name)) {}
  OptimizerSpec(const std::string& name);
  OptimizerSpec(const SgdOptions& options);
  OptimizerSpec(const AdamOptions& options);
  OptimizerSpec(Factory factory) : factory_(std::move(factory)) {}

  std::unique_ptr<Optimizer> make(std::span<const Variable> variables) const {
    return factory_(variables);
  }

 private:
  Factory factory_;
};

/// The complete optimizer for these variables.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::span<const Variable> variables);

}  // namespace tutti
