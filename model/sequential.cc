// Sequential: a model whose layers are called one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/sequential.h"

#include "tutti/model/layers/layer_description.h"

namespace tutti {

Sequential::Sequential(const SequentialOptions& options, Input input,
                       std::vector<std::shared_ptr<Layer>> layers)
    : LayerOf(options.name, input.shape()),
      remat_(options.remat),
      layers_(std::make_shared<std::vector<std::shared_ptr<Layer>>>()) {
  set_built(input.shape(), input.shape());
  for (auto& layer : layers) add(std::move(layer));
}

void Sequential::add(std::shared_ptr<Layer> layer) {
  set_built(input_shape(), add_layer(*layer, output_shape()));
  set_output_activation(layer->output_activation());
  if (remat_) layer->set_remat();
  layers_->push_back(std::move(layer));
}

Input Sequential::input_of(const Layer& first) {
  if (first.built()) return Input{first.input_shape()};
  if (!first.given_input_shape()) {
    fail(
        ErrorCode::kInvalidArgument,
        "Sequential: the shape of the input is unknown, so the weights of ", first.type_name(),
        " cannot be created; use Sequential(Input{{784}}, ...) or .input_shape = Shape{784} in the "
        "options of the first layer");
  }
  return Input{*first.given_input_shape()};
}

Tensor Sequential::call(const Tensor& input, CallContext context) const {
  if (input.rank() != input_shape().rank() + 1) {
    fail(ErrorCode::kInvalidArgument, "Sequential: expected a batch of examples of shape ",
         input_shape(), ", got a tensor of shape ", input.shape(),
         input.rank() == input_shape().rank() ? "; call expand_dims(x, 0) for a single example"
                                              : "");
  }
  Tensor x = input;
  for (const auto& layer : *layers_) x = (*layer)(x, context);
  return x;
}

Json::Array Sequential::call_arguments() const {
  return {json_of(given_name()), json_of(Input{input_shape()}), json_of(*layers_)};
}

std::vector<Model::Edge> Sequential::edges() const {
  std::vector<Edge> edges;
  for (std::size_t i = 1; i < layers_->size(); ++i)
    edges.emplace_back((*layers_)[i - 1]->name(), (*layers_)[i]->name());
  return edges;
}

}  // namespace tutti
