// An optimizer as a value: by name, by its options, or made by a function.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizers.h"

#include <algorithm>

#include "tutti/core/names.h"

namespace tutti {

// Which optimizer, as a value: what Model::compile takes.

namespace {

struct NamedSpec {
  const char* name;
  OptimizerSpec (*make)();
};

template <class Options>
OptimizerSpec with_defaults() {
  return OptimizerSpec(Options{});
}

constexpr NamedSpec kNamedSpecs[] = {{"adadelta", with_defaults<AdadeltaOptions>},
                                     {"adagrad", with_defaults<AdagradOptions>},
                                     {"adam", with_defaults<AdamOptions>},
                                     {"adamw", with_defaults<AdamWOptions>},
                                     {"ftrl", with_defaults<FtrlOptions>},
                                     {"lamb", with_defaults<LambOptions>},
                                     {"lars", with_defaults<LarsOptions>},
                                     {"lion", with_defaults<LionOptions>},
                                     {"nadam", with_defaults<NadamOptions>},
                                     {"rmsprop", with_defaults<RmspropOptions>},
                                     {"sgd", with_defaults<SgdOptions>}};

}  // namespace

OptimizerSpec::OptimizerSpec(const std::string& name) {
  const auto found = std::ranges::find(kNamedSpecs, name, &NamedSpec::name);
  if (found == std::end(kNamedSpecs)) {
    fail(ErrorCode::kInvalidArgument, "optimizer '", name, "' is unknown; expected one of ",
         internal::choices(optimizer_names(), name),
         "; or pass SgdOptions, AdamOptions, ... or a function");
  }
  *this = found->make();
}

std::vector<std::string> optimizer_names() {
  return internal::names_of(kNamedSpecs, &NamedSpec::name);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::span<const Variable> variables) {
  return spec.make(variables);
}

OptimizerSpec with_dynamic_loss_scale(OptimizerSpec spec, DynamicLossScaleOptions options) {
  return OptimizerSpec(OptimizerSpec::Factory(
      [spec = std::move(spec), options](std::span<const Variable> variables) {
        std::unique_ptr<Optimizer> optimizer = spec.make(variables);
        optimizer->use_dynamic_loss_scale(options);
        return optimizer;
      }));
}

}  // namespace tutti
