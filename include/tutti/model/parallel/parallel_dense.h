// Dense layers whose weights are split across devices: model parallelism within a layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer_of.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

struct ParallelDenseOptions {
  /// Devices, one for each part of the kernel.
  DeviceList devices = {};
  /// Elementwise activation; softmax and log_softmax need the whole row.
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Base of the layers below. Throws kInvalidArgument for activations that are not elementwise.
class ParallelLayer : public Layer {
 public:
  /// Devices, one for each part.
  const std::vector<Device>& devices() const { return options_.devices.devices; }

 protected:
  ParallelLayer(std::string_view who, ParallelDenseOptions options);
  MaskUse mask_use() const override { return MaskUse::kKeeps; }
  /// Adds the weights "<name>/part_0", ...: `whole` split along `axis`, each part on its device.
  void add_parts(const std::string& name, const Initializer& initializer, const Shape& whole,
                 int axis);
  /// Adds the bias of the result, if there is one, on the first device.
  void add_bias_there(std::int64_t units);

  ParallelDenseOptions options_;
  ActivationFunction activation_;
};

/// Dense(units) with the columns of the kernel (and of the bias) split across devices. Each device
/// computes some features of all rows from the whole input. [batch, ..., in] -> [batch, ..., units]
/// on the input's device, where the features are concatenated. Weights "kernel/part_0",
/// "bias/part_0", ... have the initial values of Dense. Must be built outside strategy scopes.
class ColumnParallelDense : public LayerOf<ColumnParallelDense, ParallelLayer> {
 public:
  /// Throws kInvalidArgument for no devices, more devices than units, or softmax.
  explicit ColumnParallelDense(std::int64_t units, ParallelDenseOptions options);

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t units_;
};

/// Dense(units) with the rows of the kernel split across devices. Each device works on some
/// features of the input; the results are added in canonical order on the input's device. The bias
/// is on the first device. Otherwise like ColumnParallelDense.
class RowParallelDense : public LayerOf<RowParallelDense, ParallelLayer> {
 public:
  explicit RowParallelDense(std::int64_t units, ParallelDenseOptions options);

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t units_;
};

/// Dense(hidden, activation) and Dense(units), split as in Megatron-LM: columns, then rows. Each
/// device thus keeps its hidden features, and both layers need only one sum. In a call, each
/// further device receives the input and returns a result, and likewise for gradients.
/// `options.activation` is applied between the layers. Weights "hidden_kernel/part_0", ...,
/// "hidden_bias/part_0", ..., "kernel/part_0", ..., "bias".
class ParallelDensePair : public LayerOf<ParallelDensePair, ParallelLayer> {
 public:
  ParallelDensePair(std::int64_t hidden, std::int64_t units, ParallelDenseOptions options);

  /// Returns the part of a call's result that device number `part` adds: `input` [rows, in] on that
  /// device, in the weights' type, gives [rows, units] there. Part 0 includes the bias.
  Tensor partial_result(std::size_t part, const Tensor& input) const;
  /// Returns the weights on device number `part`, which partial_result() reads.
  std::vector<Variable> variables_of(std::size_t part) const;

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  /// Index of the weight that is part 0 of the second kernel.
  std::size_t second_kernel() const { return (options_.use_bias ? 2 : 1) * devices().size(); }

  std::int64_t hidden_, units_;
};

}  // namespace tutti
