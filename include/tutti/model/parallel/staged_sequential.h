// Sequential layers split into stages on several devices: model parallelism by layers.
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
  /// Devices, one per stage, in stage order. A device may occur several times.
  DeviceList devices = {};
  /// Index of the first layer of each stage except stage 0, ascending: with {2}, stage 0 has layers
  /// 0 and 1, and stage 1 has layers 2, 3, .... If empty, all stages have the same number of
  /// layers; any extra layers go to the earlier stages.
  std::vector<std::size_t> cuts = {};
  std::string name = "";
};

/// Sequential split into stages, i.e. groups of consecutive layers with their weights on different
/// devices. Weights have the same names and initial values as in a Sequential of the same layers. A
/// call runs the stages one after the other, and moves each result to the device of the next stage.
/// The final result is moved to the input's device, so losses, metrics, fit, evaluate and predict
/// work as usual. For concurrent stages, see pipeline.h. Must be created outside strategy scopes,
/// which would place the variables.
class StagedSequential : public LayerOf<StagedSequential, Model> {
 public:
  /// Takes the layers as arguments: `StagedSequential model({.devices = "cpu:0-1", .cuts = {2}},
  /// Input{{64}}, Dense(128), ...)`.
  template <std::derived_from<Layer>... Layers>
  StagedSequential(StageOptions options, Input input, Layers... layers)
      : StagedSequential(
            std::move(options), std::move(input),
            std::vector<std::shared_ptr<Layer>>{std::make_shared<Layers>(std::move(layers))...}) {}
  /// Throws kInvalidArgument for invalid cuts or a layer that is in two stages, and
  /// kFailedPrecondition in the scope of a strategy.
  StagedSequential(StageOptions options, Input input, std::vector<std::shared_ptr<Layer>> layers);

  std::size_t num_stages() const { return stages_->size(); }
  /// Return the device and the layers of a stage. Throw kOutOfRange for a stage that does not
  /// exist.
  Device device(std::size_t stage) const;
  const std::vector<std::shared_ptr<Layer>>& layers(std::size_t stage) const;
  /// Returns the trainable variables of the stage, in the order of trainable_variables().
  std::vector<Variable> trainable_variables(std::size_t stage) const;
  using LayerOf::trainable_variables;
  /// Runs the layers of one stage on its device; the result stays on that device.
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
