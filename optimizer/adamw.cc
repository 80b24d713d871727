// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019).
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/adamw.h"

#include "tutti/optimizer/adam.h"

namespace tutti {
namespace {

OptimizerOptions named_options(const AdamWOptions& options) {
  if (!options.weight_decay) {
    fail(ErrorCode::kInvalidArgument,
         "adamw: expected a weight_decay, got none; try Adam for training without");
  }
  OptimizerOptions shared = shared_options(options);
  if (shared.name.empty()) shared.name = "adamw";
  return shared;
}

}  // namespace

AdamW::AdamW(std::span<const Variable> variables, const AdamWOptions& options)
    : Optimizer(variables,
                std::make_unique<AdamRule>(AdamHyperparameters{options.beta_1, options.beta_2,
                                                               options.epsilon, options.amsgrad}),
                named_options(options)) {}

}  // namespace tutti
