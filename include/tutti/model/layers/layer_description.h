// Descriptions of layers: Model::save() writes them, and load_model() reads them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tutti/core/fields.h"
#include "tutti/model/layers/layer.h"

namespace tutti {

/// Description of a layer without its weights.
struct LayerDescription {
  Json call;              // ["Dense", 64, {"activation": "relu", ...}]
  std::string name = "";  // empty if `call` contains the name
  std::optional<Shape> input_shape = std::nullopt;
  std::string dtype_policy = "float32";
};

/// JSON form of a layer: its LayerDescription. To read it, the layer's type must be registered
/// (register_layer()).
template <>
struct JsonForm<std::shared_ptr<Layer>> {
  static Json to(const std::shared_ptr<Layer>& layer);
  static std::shared_ptr<Layer> from(const Json& json);
};

namespace internal {
using LayerMaker = CallReader<std::shared_ptr<Layer>>;
/// Creates the layer that `call` describes, without weights. Throws the errors of
/// Layer::of_description().
std::shared_ptr<Layer> made_layer(const Json& call);
void add_layer_maker(std::string type_name, LayerMaker maker);
/// Returns the types that made_layer() can create.
std::vector<std::string> readable_layers();
/// Returns LayerDescription::call, with name and input_shape removed from the options.
Json call_of_layer(const std::string& type_name, const Json::Array& arguments);
/// Returns the function that creates a layer of type L from its constructor call.
template <class L, class... Arguments>
LayerMaker layer_maker() {
  return reads_call<Arguments...>([](Arguments... arguments) -> std::shared_ptr<Layer> {
    return std::make_shared<L>(std::move(arguments)...);
  });
}
}  // namespace internal

/// Lets load_model() create layers of type L, whose constructor calls made_with(arguments...):
/// `register_layer<Scale, double>()` for a Scale(double factor, LayerOptions options = {}),
/// `register_layer<Scale, ScaleOptions>()` for a Scale(ScaleOptions). A second call throws
/// kAlreadyExists.
template <std::derived_from<Layer> L, class... Arguments>
void register_layer() {
  internal::add_layer_maker(internal::plain_type_name(typeid(L)),
                            internal::layer_maker<L, Arguments...>());
}

}  // namespace tutti
