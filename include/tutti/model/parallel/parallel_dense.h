// Dense layers whose weights are cut and lie on several devices: model parallelism within a layer.
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
  /// One part of the kernel on each.
  DeviceList devices = {};
  /// Elementwise: softmax and log_softmax need the whole row.
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// What they share. Throws kInvalidArgument for activations that are not elementwise.
class ParallelLayer : public Layer {
 public:
  /// One for each part.
  const std::vector<Device>& devices() const { return options_.devices.devices; }

 protected:
  ParallelLayer(std::string_view who, ParallelDenseOptions options);
  MaskUse mask_use() const override { return MaskUse::kKeeps; }
  /// Weights "<name>/part_0", ...: `whole` cut along `axis`, each part on its device.
  void add_parts(const std::string& name, const Initializer& initializer, const Shape& whole,
                 int axis);
  /// The bias of the result, on the first device, if there is one.
  void add_bias_there(std::int64_t units);

  ParallelDenseOptions options_;
  ActivationFunction activation_;
};

/// Dense(units) with some columns of the kernel (and of the bias) on each device: each makes some
/// features of all rows from the whole input. [batch, ..., in] -> [batch, ..., units] on the
/// input's device, where the features are put together. Weights "kernel/part_0", "bias/part_0", ...
/// have the initial values of Dense. Made outside of strategies' scopes.
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

/// Dense(units) with some rows of the kernel on each device: each works on some features of the
/// input; their results are added in canonical order on the input's device. The bias is on the
/// first device. Otherwise as ColumnParallelDense.
class RowParallelDense : public LayerOf<RowParallelDense, ParallelLayer> {
 public:
  explicit RowParallelDense(std::int64_t units, ParallelDenseOptions options);

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t units_;
};

/// Dense(hidden, activation) and Dense(units) as Megatron-LM cuts them: columns, then rows, so that
/// each device keeps its hidden features to itself, and there is one sum for both layers. Per call
/// and further device the input goes there and a result comes back, the same for gradients.
/// `options.activation` stands between the layers. Weights "hidden_kernel/part_0", ...,
/// "hidden_bias/part_0", ..., "kernel/part_0", ..., "bias".
class ParallelDensePair : public LayerOf<ParallelDensePair, ParallelLayer> {
 public:
  ParallelDensePair(std::int64_t hidden, std::int64_t units, ParallelDenseOptions options);

  /// What device number `part` adds to the results: of `input` [rows, in] on that device, in the
  /// weights' type, [rows, units] there. Part 0 has the bias. A call gives the sum of all parts.
  Tensor partial_result(std::size_t part, const Tensor& input) const;
  /// The weights on device number `part`: those that partial_result() reads.
  std::vector<Variable> variables_of(std::size_t part) const;

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  /// The number of the weight that is part 0 of the second kernel.
  std::size_t second_kernel() const { return (options_.use_bias ? 2 : 1) * devices().size(); }

  std::int64_t hidden_, units_;
};

}  // namespace tutti
