// What is written of a layer, and read.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/layer_description.h"

#include <set>
#include <utility>

#include "model/layers/layer_state.h"

namespace tutti {

void Layer::set_arguments(std::function<Json::Array()> arguments) {
  state_->arguments = std::move(arguments);
}

Json::Array Layer::call_arguments() const {
  if (state_->arguments) return state_->arguments();
  fail(ErrorCode::kUnimplemented,
       "it does not say how it is made; try made_with(arguments) in the "
       "constructor of ",
       type_name(), " and register_layer<", type_name(), ", their types>() before load_model()");
}

std::string Layer::given_name() const { return state_->has_given_name ? state_->name : ""; }

LayerDescription Layer::describe() const {
  try {
    const bool is_named = !state_->made_built && (state_->built || state_->has_given_name);
    return {internal::call_of_layer(type_name(), call_arguments()), is_named ? name() : "",
            state_->given_input_shape, state_->policy.name};
  } catch (const Error& error) {
    throw named(error);
  }
}

std::shared_ptr<Layer> Layer::of_description(const LayerDescription& description) {
  struct PolicyBefore {
    ~PolicyBefore() { tutti::set_dtype_policy(policy); }
    DTypePolicy policy = tutti::dtype_policy();
  } const before;
  tutti::set_dtype_policy(DTypePolicy(description.dtype_policy));
  std::shared_ptr<Layer> layer = internal::made_layer(description.call);
  State& state = *layer->state_;
  if (!description.name.empty()) state.name = description.name;
  state.has_given_name = state.has_given_name || !description.name.empty();
  state.given_input_shape = description.input_shape;
  return layer;
}

std::vector<Layer::Extras> Layer::extras() const {
  std::vector<Extras> extras;
  std::set<const State*> seen;
  State::visit_layers(
      state_,
      [&](const State& state) {
        extras.push_back({static_cast<std::int64_t>(state.number), state.frozen});
      },
      seen);
  return extras;
}

void Layer::restore_extras(std::span<const Extras> extras) {
  const std::size_t expected = this->extras().size();
  if (extras.size() != expected) {
    fail(ErrorCode::kInvalidArgument, "layer '", name(), "' (", type_name(), "): expected ",
         expected, " layers, got ", extras.size());
  }
  std::set<const State*> seen;
  State::visit_layers(
      state_,
      [&, next = extras.begin()](State& state) mutable {
        state.number = static_cast<std::uint64_t>(next->random_number);
        state.frozen = next++->frozen;
      },
      seen);
}

}  // namespace tutti
