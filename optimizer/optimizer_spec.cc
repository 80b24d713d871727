// Which optimizer, as a value: what Model::compile takes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizer_spec.h"

namespace tutti {

OptimizerSpec::OptimizerSpec(const SgdOptions& options)
    : factory_([options](std::span<const Variable> variables) {
        return std::make_unique<Sgd>(variables, options);
      }) {}

OptimizerSpec::OptimizerSpec(const AdamOptions& options)
    : factory_([options](std::span<const Variable> variables) {
        return std::make_unique<Adam>(variables, options);
      }) {}

OptimizerSpec::OptimizerSpec(const std::string& name) {
  if (name == "sgd") {
    *this = OptimizerSpec(SgdOptions{});
  } else if (name == "adam") {
    *this = OptimizerSpec(AdamOptions{});
  } else {
    fail(ErrorCode::kInvalidArgument, "optimizer '", name,
         "' is unknown; expected one of adam, sgd; or pass SgdOptions, AdamOptions or a function");
  }
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::span<const Variable> variables) {
  return spec.make(variables);
}

}  // namespace tutti
