// Layers in a row, cut into stages that live on several devices: model parallelism by layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/model.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

struct StageOptions {
  /// One stage on each, in this order. A device may stand several times.
  DeviceList devices = {};
  /// Number of the first layer of each stage but the first, ascending: {2} makes stages of layers
  /// 0, 1 and of layers 2, 3, .... Empty: equal numbers of layers, earlier stages the larger.
  std::vector<std::size_t> cuts = {};
  std::string name = "";
};

/// A Sequential whose weights lie on several devices: each stage (consecutive layers) has its own.
/// Weights have the names and initial values of a Sequential of the same layers. A call runs stage
/// after stage, moving what one gives to the next; the result is moved to the input's device, so
/// that losses, metrics, fit, evaluate and predict work as ever. Stages that compute at the same
/// time: pipeline.h. Made outside of strategies' scopes, which place variables otherwise.
class StagedSequential : public LayerOf<StagedSequential, Model> {
 public:
  /// `StagedSequential model({.devices = "cpu:0-1", .cuts = {2}}, Input{{64}}, Dense(128), ...)`.
  template <std::derived_from<Layer>... Layers>
  StagedSequential(StageOptions options, Input input, Layers... layers)
      : StagedSequential(
            std::move(options), std::move(input),
            std::vector<std::shared_ptr<Layer>>{std::make_shared<Layers>(std::move(layers))...}) {}
  /// Throws kInvalidArgument for cuts that are none or a layer that stands in two stages,
  /// kFailedPrecondition in the scope of a strategy.
  StagedSequential(StageOptions options, Input input, std::vector<std::shared_ptr<Layer>> layers);

  std::size_t num_stages() const { return stages_->size(); }
  /// Throw kOutOfRange for a stage that there is not.
  Device device(std::size_t stage) const;
  const std::vector<std::shared_ptr<Layer>>& layers(std::size_t stage) const;
  /// The trainable variables of the stage, in the order of trainable_variables().
  std::vector<Variable> trainable_variables(std::size_t stage) const;
  using LayerOf::trainable_variables;
  /// `input` through the layers of one stage, on its device, where the result stays.
  Tensor call_stage(std::size_t stage, const Tensor& input, CallContext context) const;
  std::vector<Edge> edges() const override;

 protected:
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  struct Stage {
    Device device;
    std::vector<std::shared_ptr<Layer>> layers;
  };
  const Stage& stage(std::size_t number) const;

  std::shared_ptr<std::vector<Stage>> stages_;
};

}  // namespace tutti
