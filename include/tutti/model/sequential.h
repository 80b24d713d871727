// Sequential: a model whose layers are called one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/model.h"

namespace tutti {

struct SequentialOptions {
  std::string name = "";
  /// If true, applies remat() to each layer: tapes keep only the layer's input, and the backward
  /// pass calls the layer again.
  bool remat = false;
};

/// A model whose layers are called one after the other: `Sequential model(Input{{784}}, Dense(128),
/// Relu(), Dense(10));`. The constructor creates the weights, in the current strategy's scope.
/// Corresponds to keras.Sequential.
class Sequential : public LayerOf<Sequential, Model> {
 public:
  template <std::derived_from<Layer>... Layers>
  explicit Sequential(Input input, Layers... layers)
      : Sequential("", input, std::move(layers)...) {}
  template <std::derived_from<Layer>... Layers>
  Sequential(std::string name, Input input, Layers... layers)
      : Sequential(std::move(name), std::move(input), in_list(std::move(layers)...)) {}

  /// Overload with options: `Sequential model({.remat = true}, Input{{784}}, Dense(128, "relu"),
  /// Dense(10));`
  template <std::derived_from<Layer>... Layers>
  Sequential(const SequentialOptions& options, Input input, Layers... layers)
      : Sequential(options, std::move(input), in_list(std::move(layers)...)) {}

  /// Takes the input shape from the first layer: Dense(10, {.input_shape = Shape{784}}). Throws
  /// kInvalidArgument, showing this form and the form with Input, if the first layer has no input
  /// shape.
  template <std::derived_from<Layer> First, std::derived_from<Layer>... Rest>
  requires(sizeof...(Rest) > 0 ||
           !std::derived_from<First, Sequential>) explicit Sequential(First first, Rest... rest)
      : Sequential("", input_of(first), in_list(std::move(first), std::move(rest)...)) {}

  Sequential(std::string name, Input input, std::vector<std::shared_ptr<Layer>> layers)
      : Sequential(SequentialOptions{.name = std::move(name)}, std::move(input),
                   std::move(layers)) {}
  Sequential(const SequentialOptions& options, Input input,
             std::vector<std::shared_ptr<Layer>> layers);

  /// Appends a layer and creates its weights.
  void add(std::shared_ptr<Layer> layer);
  template <std::derived_from<Layer> L>
  void add(L layer) {
    add(std::make_shared<L>(std::move(layer)));
  }

  std::vector<std::shared_ptr<Layer>> layers() const { return *layers_; }
  std::vector<Edge> edges() const override;

 protected:
  Tensor call(const Tensor& input, CallContext context) const override;
  Json::Array call_arguments() const override;

 private:
  template <class... Layers>
  static std::vector<std::shared_ptr<Layer>> in_list(Layers... layers) {
    return {std::make_shared<Layers>(std::move(layers))...};
  }
  static Input input_of(const Layer& first);

  bool remat_;
  std::shared_ptr<std::vector<std::shared_ptr<Layer>>> layers_;
};

}  // namespace tutti
