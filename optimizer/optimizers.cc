// OptimizerSpec: an optimizer by name, by its options, or from a function.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizers.h"

#include <algorithm>
#include <map>
#include <typeindex>

#include "core/call_table.h"
#include "tutti/core/fields.h"

namespace tutti {

namespace {

/// Name of an optimizer, and functions that create its default options and register their type.
struct NamedSpec {
  const char* name;
  OptimizerSpec (*make)();
  void (*register_options)();
};

template <class Options>
constexpr NamedSpec named(const char* name) {
  return {name, [] { return OptimizerSpec(Options{}); }, &register_optimizer<Options>};
}

constexpr NamedSpec kNamedSpecs[] = {named<AdadeltaOptions>("adadelta"),
                                     named<AdagradOptions>("adagrad"),
                                     named<AdamOptions>("adam"),
                                     named<AdamWOptions>("adamw"),
                                     named<FtrlOptions>("ftrl"),
                                     named<LambOptions>("lamb"),
                                     named<LarsOptions>("lars"),
                                     named<LionOptions>("lion"),
                                     named<NadamOptions>("nadam"),
                                     named<RmspropOptions>("rmsprop"),
                                     named<SgdOptions>("sgd")};

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
  OptimizerSpec scaled(OptimizerSpec::Factory([spec, options](std::span<const Variable> variables) {
    std::unique_ptr<Optimizer> optimizer = spec.make(variables);
    optimizer->use_dynamic_loss_scale(options);
    return optimizer;
  }));
  scaled.json_ = [spec, options] {
    return internal::call_of("with_dynamic_loss_scale", spec, options);
  };
  return scaled;
}

// Optimizer options, written and read as JSON.

namespace {

/// Functions that write options, keyed by type, and functions that read them, keyed by name.
struct OptionsRegistry {
  Mutex mutex;
  std::map<std::type_index, std::function<Json(const void*)>> writers TUTTI_GUARDED_BY(mutex);
  internal::CallTable<OptimizerSpec> readers{
      "optimizer",
      "call register_optimizer<its options>() before load_model()",
      {{"with_dynamic_loss_scale", internal::reads_call(&with_dynamic_loss_scale)}}};
};

OptionsRegistry& empty_registry() {
  static OptionsRegistry registry;
  return registry;
}

OptionsRegistry& options_registry() {
  static const bool filled = [] {
    for (const NamedSpec& each : kNamedSpecs) each.register_options();
    return true;
  }();
  static_cast<void>(filled);
  return empty_registry();
}

}  // namespace

void internal::add_optimizer_options(const std::type_info& type,
                                     std::function<Json(const void*)> to_json,
                                     CallReader<OptimizerSpec> reader) {
  OptionsRegistry& registry = empty_registry();
  registry.readers.add(plain_type_name(type), std::move(reader));
  const MutexLock lock(registry.mutex);
  registry.writers[type] = std::move(to_json);
}

Json internal::json_of_options(const std::type_info& type, const void* options) {
  OptionsRegistry& registry = options_registry();
  std::function<Json(const void*)> to_json;
  {
    const MutexLock lock(registry.mutex);
    to_json = registry.writers[type];
  }
  const std::string name = plain_type_name(type);
  if (to_json) return call_of(name, to_json(options));
  fail(ErrorCode::kUnimplemented, "the optimizer of ", name,
       " cannot be saved; call register_optimizer<", name, ">()");
}

Json OptimizerSpec::to_json() const {
  if (json_) return json_();
  fail(ErrorCode::kUnimplemented,
       "an optimizer created by a custom function cannot be saved; use options registered with "
       "register_optimizer()");
}

OptimizerSpec OptimizerSpec::from_json(const Json& json) {
  return options_registry().readers.make(json);
}

}  // namespace tutti
