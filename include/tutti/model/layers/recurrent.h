// Recurrent layers, and layers that apply another layer to sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer_of.h"

namespace tutti {

// Recurrent layers: SimpleRNN, LSTM and GRU.

/// Options for all recurrent layers, with Keras's defaults.
struct RecurrentOptions {
  std::string activation = "tanh";
  /// Activation of the LSTM and GRU gates.
  std::string recurrent_activation = "sigmoid";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer recurrent_initializer = "orthogonal";
  Initializer bias_initializer = "zeros";
  Regularizer kernel_regularizer = {};
  Regularizer recurrent_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint recurrent_constraint = {};
  Constraint bias_constraint = {};
  /// Dropout rates of inputs and of states. All steps of a call use the same dropout masks.
  double dropout = 0.0;
  double recurrent_dropout = 0.0;
  /// If true, returns the results of all steps, [batch, steps, units], instead of the last step's
  /// result, [batch, units].
  bool return_sequences = false;
  /// If true, results include the states after the last step; call apply() to get them.
  bool return_state = false;
  /// If true, sets the result of a masked step to 0 instead of the previous step's result.
  bool zero_output_for_mask = false;
  /// If true, processes the steps from last to first, and returns sequences in that order.
  bool go_backwards = false;
  /// LSTM: if true, initialises the bias of the forget gate to 1.
  bool unit_forget_bias = true;
  /// GRU: if true, applies the reset gate after the product with the recurrent kernel, which then
  /// has its own bias.
  bool reset_after = true;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Base class of recurrent layers. Inputs are x [batch, steps, features] and optionally the initial
/// states, each [batch, units]; the options select the results. Weights: "<type>_cell/kernel"
/// [features, gates * units], "<type>_cell/recurrent_kernel" [units, gates * units] and
/// "<type>_cell/bias" [gates * units]. With 0 steps, the result is the initial state (default: 0).
/// A masked step (MaskScope) leaves the states unchanged; its result is the previous result, or
/// zeros with .zero_output_for_mask.
class Recurrent : public MultiLayer {
 public:
  const RecurrentOptions& options() const { return options_; }
  /// Creates a layer of the same kind with its own weights.
  virtual std::shared_ptr<Recurrent> sibling(RecurrentOptions options) const = 0;

 protected:
  /// `gates`: number of gates into which the kernel is divided; `states`: number of tensors passed
  /// from step to step.
  Recurrent(std::int64_t units, int gates, int states, RecurrentOptions options);

  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

  /// Returns the next states; the first is the step's result. x [batch, gates * units] is the input
  /// times the kernel, plus the bias.
  virtual std::vector<Tensor> step(const Tensor& x, const std::vector<Tensor>& states) const = 0;
  virtual Shape bias_shape() const { return {gates_ * units_}; }
  virtual Initializer bias_initializer() const { return options_.bias_initializer; }
  /// Returns the bias [gates * units] that is added to the products of the inputs and the kernel.
  virtual Tensor input_bias() const { return weight(2).value(); }

  std::int64_t units() const { return units_; }
  Tensor recurrent_kernel() const { return weight(1).value(); }
  const ActivationFunction& activation() const { return activation_; }
  const ActivationFunction& recurrent_activation() const { return recurrent_activation_; }

 private:
  std::vector<Tensor> first_states(std::span<const Tensor> inputs) const;
  std::vector<Tensor> inputs_of_steps(const Tensor& x, CallContext context) const;
  /// Returns one mask [batch, 1] per step; empty if `mask` is undefined.
  std::vector<Tensor> masks_of_steps(const Tensor& mask) const;

  std::int64_t units_;
  int gates_;
  int states_;
  RecurrentOptions options_;
  ActivationFunction activation_;
  ActivationFunction recurrent_activation_;
};

/// h = activation(x W + h U + b).
class SimpleRNN : public LayerOf<SimpleRNN, Recurrent> {
 public:
  explicit SimpleRNN(std::int64_t units, RecurrentOptions options = {});
  std::shared_ptr<Recurrent> sibling(RecurrentOptions options) const override;

 protected:
  std::vector<Tensor> step(const Tensor& x, const std::vector<Tensor>& states) const override;
};

/// LSTM with states h and c, and gates in the order input, forget, cell, output.
class LSTM : public LayerOf<LSTM, Recurrent> {
 public:
  explicit LSTM(std::int64_t units, RecurrentOptions options = {});
  std::shared_ptr<Recurrent> sibling(RecurrentOptions options) const override;

 protected:
  std::vector<Tensor> step(const Tensor& x, const std::vector<Tensor>& states) const override;
  Initializer bias_initializer() const override;
};

/// GRU with gates in the order update (z), reset (r), candidate. With reset_after, the bias is [2,
/// 3 * units]: one row for the inputs and one for the state.
class GRU : public LayerOf<GRU, Recurrent> {
 public:
  explicit GRU(std::int64_t units, RecurrentOptions options = {});
  std::shared_ptr<Recurrent> sibling(RecurrentOptions options) const override;

 protected:
  std::vector<Tensor> step(const Tensor& x, const std::vector<Tensor>& states) const override;
  Shape bias_shape() const override;
  Tensor input_bias() const override;
};

// A recurrent layer applied in both directions.

struct BidirectionalOptions {
  /// "concat", "sum", "mul" or "ave".
  std::string merge_mode = "concat";
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Pair of recurrent layers, "forward_<name>" and "backward_<name>": `Bidirectional(LSTM(64))`. The
/// second layer processes steps from last to first. Its result sequence is reversed, and then
/// merged with the first layer's result. Results of masked steps (MaskScope) are 0. Throws
/// kInvalidArgument for layers that return states.
class Bidirectional : public LayerOf<Bidirectional> {
 public:
  template <std::derived_from<Recurrent> L>
  explicit Bidirectional(const L& layer, BidirectionalOptions options = {})
      : Bidirectional(layer, layer.name(), std::move(options)) {}

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  Tensor merge(const Tensor& forward, const Tensor& backward) const;
  Bidirectional(const Recurrent& layer, const std::string& layer_name,
                BidirectionalOptions options);

  std::shared_ptr<Recurrent> forward_;
  std::shared_ptr<Recurrent> backward_;
  std::string merge_mode_;
};

// A layer applied to every step of a sequence.

/// Applies a layer to each step, treating steps as rows of a batch: [batch, steps, ...] -> [batch,
/// steps, ...].
class TimeDistributed : public LayerOf<TimeDistributed> {
 public:
  template <std::derived_from<Layer> L>
  explicit TimeDistributed(L layer, LayerOptions options = {})
      : TimeDistributed(std::make_shared<L>(std::move(layer)), std::move(options)) {}
  explicit TimeDistributed(std::shared_ptr<Layer> layer, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  std::shared_ptr<Layer> layer_;
};

}  // namespace tutti
