// Splits layers into stages, and runs the stages one after the other.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/staged_sequential.h"

#include <algorithm>

#include "core/names.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti {
namespace {

/// Returns the index of the first layer of each stage, followed by the number of layers.
std::vector<std::size_t> bounds_of(const StageOptions& options, std::size_t num_layers) {
  const std::size_t num_stages = options.devices.devices.size();
  internal::require(num_stages != 0 && num_layers >= num_stages,
                    "StagedSequential: expected at least one device and at least ",
                    "one layer for each, got ", num_stages, " devices and ", num_layers, " layers");
  std::vector<std::size_t> bounds{0};
  if (options.cuts.empty()) {
    for (std::size_t s = 0; s < num_stages; ++s) {
      bounds.push_back(bounds.back() + num_layers / num_stages + (s < num_layers % num_stages));
    }
    return bounds;
  }
  bounds.insert(bounds.end(), options.cuts.begin(), options.cuts.end());
  bounds.push_back(num_layers);
  const bool ascends =
      std::ranges::adjacent_find(bounds, std::ranges::greater_equal()) == bounds.end();
  if (options.cuts.size() + 1 != num_stages || !ascends) {
    fail(ErrorCode::kInvalidArgument, "StagedSequential: cuts: expected ", num_stages - 1,
         " ascending layer indices from 1 to ", num_layers - 1, ", for ", num_stages,
         " devices, got [", join(options.cuts), "]; leave cuts empty for stages of similar size");
  }
  return bounds;
}

void require_no_strategy() {
  if (!has_strategy()) return;
  fail(ErrorCode::kFailedPrecondition,
       "StagedSequential: expected a call outside strategy scopes, because the options place the "
       "variables, got one in the scope of '",
       get_strategy().name(), "'; create the model outside strategy.scope()");
}

}  // namespace

StagedSequential::StagedSequential(StageOptions options, Input input,
                                   std::vector<std::shared_ptr<Layer>> layers)
    : LayerOf(options.name, input.shape()), stages_(std::make_shared<std::vector<Stage>>()) {
  require_no_strategy();
  const std::vector<std::size_t> bounds = bounds_of(options, layers.size());
  set_built(input.shape(), input.shape());
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    Stage stage{options.devices.devices[s], {}};
    const DeviceScope scope(stage.device);
    for (std::size_t i = bounds[s]; i < bounds[s + 1]; ++i) {
      set_built(input_shape(), add_layer(*layers[i], output_shape()));
      set_output_activation(layers[i]->output_activation());
      stage.layers.push_back(layers[i]);
    }
    stages_->push_back(std::move(stage));
  }
  for (std::size_t s = 0; s < num_stages(); ++s) {
    for (const Variable& variable : trainable_variables(s)) {
      if (variable.storage().devices().front() == device(s)) continue;
      fail(ErrorCode::kInvalidArgument, "StagedSequential: the weights of '", variable.name(),
           "' are on ", variable.storage().devices().front(), ", but stage ", s, " is on ",
           device(s),
           "; expected layers that were created for this model, each used in only one stage");
    }
  }
}

const StagedSequential::Stage& StagedSequential::stage(std::size_t number) const {
  if (number < stages_->size()) return (*stages_)[number];
  fail(ErrorCode::kOutOfRange, "StagedSequential: expected a stage from 0 to ", stages_->size() - 1,
       ", got ", number);
}

Device StagedSequential::device(std::size_t number) const { return stage(number).device; }

const std::vector<std::shared_ptr<Layer>>& StagedSequential::layers(std::size_t number) const {
  return stage(number).layers;
}

std::vector<Variable> StagedSequential::trainable_variables(std::size_t number) const {
  std::vector<Variable> own;
  for (const auto& layer : stage(number).layers) {
    for (const Variable& variable : layer->variables()) own.push_back(variable);
  }
  std::vector<Variable> result;
  for (const Variable& variable : trainable_variables()) {
    if (std::ranges::find(own, variable) != own.end()) result.push_back(variable);
  }
  return result;
}

Tensor StagedSequential::call_stage(std::size_t number, const Tensor& input,
                                    CallContext context) const {
  const DeviceScope scope(device(number));
  Tensor x = input;
  for (const auto& layer : stage(number).layers) x = (*layer)(x, context);
  return x;
}

Tensor StagedSequential::call(const Tensor& input, CallContext context) const {
  Tensor x = input;
  for (std::size_t s = 0; s < num_stages(); ++s) x = call_stage(s, x, context);
  const Tensor mask = MaskScope::mask_of(x);
  Tensor result = transfer(x, input.device());
  MaskScope::set_mask(result, mask);
  return result;
}

std::vector<Model::Edge> StagedSequential::edges() const {
  std::vector<Edge> edges;
  std::string previous;
  for (const Stage& each : *stages_) {
    for (const auto& layer : each.layers) {
      if (!previous.empty()) edges.emplace_back(previous, layer->name());
      previous = layer->name();
    }
  }
  return edges;
}

}  // namespace tutti
