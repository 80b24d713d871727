// Recurrent layers, and layers that apply another layer to sequences.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/recurrent.h"

#include <algorithm>

#include "core/names.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/dropout.h"
#include "tutti/model/layers/key_value_cache.h"
#include "tutti/model/layers/layer_description.h"
#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/random_ops.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Recurrent layers: SimpleRNN, LSTM and GRU.
//
// One product multiplies the inputs of all steps by the kernel; each step computes only the product
// of the state and the recurrent kernel.

namespace {

/// Swaps [batch, steps, ...] and [steps, batch, ...].
Tensor swapped(const Tensor& x) {
  std::vector<int> order = {1, 0};
  for (int axis = 2; axis < x.rank(); ++axis) order.push_back(axis);
  return transpose(x, order);
}

}  // namespace

Recurrent::Recurrent(std::int64_t units, int gates, int states, RecurrentOptions options)
    : MultiLayer(options.name, options.input_shape),
      units_(units),
      gates_(gates),
      states_(states),
      options_(std::move(options)),
      activation_(find_activation(options_.activation)),
      recurrent_activation_(find_activation(options_.recurrent_activation)) {
  internal::require_positive(units, "Recurrent", "number of units");
  internal::require_rate(options_.dropout, "Recurrent", "dropout");
  internal::require_rate(options_.recurrent_dropout, "Recurrent", "recurrent_dropout");
  made_with(units, options_);
}

std::vector<Shape> Recurrent::build_all(std::span<const Shape> inputs) {
  const Shape& x = inputs[0];
  internal::require_sequence(x, type_name());
  if (inputs.size() != 1 && inputs.size() != static_cast<std::size_t>(states_ + 1)) {
    fail(ErrorCode::kInvalidArgument, type_name(),
         ": expected a sequence, optionally with initial states (", states_,
         " for this layer), got ", inputs.size(), " inputs");
  }
  for (const Shape& state : inputs.subspan(1)) {
    if (!(state == Shape{units_})) {
      fail(ErrorCode::kInvalidArgument, type_name(), ": expected initial states of shape ",
           Shape{units_}, ", got ", state);
    }
  }
  const std::string cell = internal::snake_case(type_name()) + "_cell/";
  add_weight(options_.kernel_initializer, {x[1], gates_ * units_}, {.name = cell + "kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  add_weight(options_.recurrent_initializer, {units_, gates_ * units_},
             {.name = cell + "recurrent_kernel"}, options_.recurrent_regularizer,
             options_.recurrent_constraint);
  if (options_.use_bias) {
    add_weight(bias_initializer(), bias_shape(), {.name = cell + "bias"}, options_.bias_regularizer,
               options_.bias_constraint);
  }
  std::vector<Shape> results = {options_.return_sequences ? Shape{x[0], units_} : Shape{units_}};
  if (options_.return_state) results.resize(static_cast<std::size_t>(states_ + 1), Shape{units_});
  return results;
}

std::vector<Tensor> Recurrent::first_states(std::span<const Tensor> inputs) const {
  if (inputs.size() > 1) return {inputs.begin() + 1, inputs.end()};
  const Tensor& x = inputs[0];
  return std::vector<Tensor>(static_cast<std::size_t>(states_),
                             Tensor::zeros({x.shape()[0], units_}, x.dtype(), x.device()));
}

std::vector<Tensor> Recurrent::inputs_of_steps(const Tensor& input, CallContext context) const {
  Tensor x = input;
  if (context.training && options_.dropout > 0.0)
    x = internal::drop_channels(x, options_.dropout, next_random_key());
  const Tensor bias = options_.use_bias ? input_bias() : Tensor();
  std::vector<Tensor> parts = unstack(internal::dense_product(swapped(x), weight(0).value(), bias));
  if (options_.go_backwards) std::ranges::reverse(parts);
  return parts;
}

std::vector<Tensor> Recurrent::masks_of_steps(const Tensor& mask) const {
  if (!mask.defined()) return {};
  std::vector<Tensor> steps =
      split(mask, std::vector<std::int64_t>(static_cast<std::size_t>(mask.shape()[1]), 1), 1);
  if (options_.go_backwards) std::ranges::reverse(steps);
  return steps;
}

std::vector<Tensor> Recurrent::call_all(std::span<const Tensor> inputs, CallContext context) const {
  internal::require_no_cache(context, type_name());
  std::vector<Tensor> states = first_states(inputs);
  Tensor dropped_units;
  if (context.training && options_.recurrent_dropout > 0.0) {
    dropped_units = dropout(Tensor::ones(states[0].shape(), states[0].dtype(), states[0].device()),
                            options_.recurrent_dropout, next_random_key());
  }
  const Tensor mask = MaskScope::mask_of(inputs[0]);
  const std::vector<Tensor> masks = masks_of_steps(mask);
  Tensor zeros;
  if (!masks.empty())
    zeros = Tensor::zeros(states[0].shape(), states[0].dtype(), states[0].device());
  Tensor result = masks.empty() ? states[0] : zeros;
  std::vector<Tensor> results;
  std::size_t number = 0;
  for (const Tensor& x : inputs_of_steps(inputs[0], context)) {
    std::vector<Tensor> before = states;
    if (dropped_units.defined()) before[0] = before[0] * dropped_units;
    std::vector<Tensor> after = step(x, before);
    if (masks.empty()) {
      result = after[0];
    } else {
      result = where(masks[number], after[0], options_.zero_output_for_mask ? zeros : result);
      for (std::size_t i = 0; i < after.size(); ++i)
        after[i] = where(masks[number], after[i], states[i]);
      ++number;
    }
    states = std::move(after);
    if (options_.return_sequences) results.push_back(result);
  }
  if (options_.return_sequences) {
    const Shape shape{inputs[0].shape()[0], inputs[0].shape()[1], units_};
    result = results.empty() ? Tensor::zeros(shape, inputs[0].dtype(), inputs[0].device())
                             : swapped(stack(results));
    MaskScope::set_mask(result, mask);
  }
  std::vector<Tensor> all = {result};
  if (options_.return_state) all.insert(all.end(), states.begin(), states.end());
  return all;
}

SimpleRNN::SimpleRNN(std::int64_t units, RecurrentOptions options)
    : LayerOf(units, 1, 1, std::move(options)) {}

std::shared_ptr<Recurrent> SimpleRNN::sibling(RecurrentOptions options) const {
  return std::make_shared<SimpleRNN>(units(), std::move(options));
}

std::vector<Tensor> SimpleRNN::step(const Tensor& x, const std::vector<Tensor>& states) const {
  return {activation()(x + matmul(states[0], recurrent_kernel()))};
}

LSTM::LSTM(std::int64_t units, RecurrentOptions options)
    : LayerOf(units, 4, 2, std::move(options)) {}

std::shared_ptr<Recurrent> LSTM::sibling(RecurrentOptions options) const {
  return std::make_shared<LSTM>(units(), std::move(options));
}

Initializer LSTM::bias_initializer() const {
  if (!options().unit_forget_bias) return options().bias_initializer;
  return Initializer("lstm_bias", [count = units(), plain = options().bias_initializer](
                                      const Shape& shape, const InitializerContext& context) {
    const std::vector<Tensor> parts = split(plain.for_shape(shape)(context), 4);
    return concat(
        {parts[0], Tensor::ones({count}, DType::kFloat32, context.device), parts[2], parts[3]}, 0);
  });
}

std::vector<Tensor> LSTM::step(const Tensor& x, const std::vector<Tensor>& states) const {
  const std::vector<Tensor> gates = split(x + matmul(states[0], recurrent_kernel()), 4, 1);
  const Tensor input = recurrent_activation()(gates[0]);
  const Tensor forget = recurrent_activation()(gates[1]);
  const Tensor cell = forget * states[1] + input * activation()(gates[2]);
  return {recurrent_activation()(gates[3]) * activation()(cell), cell};
}

GRU::GRU(std::int64_t units, RecurrentOptions options) : LayerOf(units, 3, 1, std::move(options)) {}

std::shared_ptr<Recurrent> GRU::sibling(RecurrentOptions options) const {
  return std::make_shared<GRU>(units(), std::move(options));
}

Shape GRU::bias_shape() const {
  return options().reset_after ? Shape{2, 3 * units()} : Shape{3 * units()};
}

Tensor GRU::input_bias() const {
  const Tensor bias = weight(2).value();
  return options().reset_after ? reshape(slice(bias, {0, 0}, {1, -1}), {-1}) : bias;
}

std::vector<Tensor> GRU::step(const Tensor& x, const std::vector<Tensor>& states) const {
  const Tensor& h = states[0];
  const std::vector<Tensor> from_x = split(x, 3, 1);
  std::vector<Tensor> from_h;
  if (options().reset_after) {
    Tensor products = matmul(h, recurrent_kernel());
    if (options().use_bias)
      products = products + reshape(slice(weight(2).value(), {1, 0}, {1, -1}), {-1});
    from_h = split(products, 3, 1);
  } else {
    const Tensor of_gates = slice(recurrent_kernel(), {0, 0}, {-1, 2 * units()});
    from_h = split(matmul(h, of_gates), 2, 1);
  }
  const Tensor update = recurrent_activation()(from_x[0] + from_h[0]);
  const Tensor reset = recurrent_activation()(from_x[1] + from_h[1]);
  const Tensor from_state =
      options().reset_after
          ? reset * from_h[2]
          : matmul(reset * h, slice(recurrent_kernel(), {0, 2 * units()}, {-1, -1}));
  const Tensor candidate = activation()(from_x[2] + from_state);
  return {update * h + (1.0 - update) * candidate};
}

// A recurrent layer applied in both directions.

Bidirectional::Bidirectional(const Recurrent& layer, const std::string& layer_name,
                             BidirectionalOptions options)
    : LayerOf(options.name, options.input_shape), merge_mode_(options.merge_mode) {
  if (merge_mode_ != "concat" && merge_mode_ != "sum" && merge_mode_ != "mul" &&
      merge_mode_ != "ave") {
    fail(ErrorCode::kInvalidArgument,
         "Bidirectional: expected merge_mode 'concat', 'sum', 'mul' or 'ave', got '", merge_mode_,
         "'");
  }
  if (layer.options().return_state) {
    fail(ErrorCode::kInvalidArgument,
         "Bidirectional: the layer returns its states, which cannot be merged; use .return_state = "
         "false");
  }
  RecurrentOptions forward = layer.options();
  forward.zero_output_for_mask = forward.return_sequences;
  RecurrentOptions backward = forward;
  forward.name = "forward_" + layer_name;
  backward.name = "backward_" + layer_name;
  backward.go_backwards = !forward.go_backwards;
  made_with(std::shared_ptr<Layer>(layer.sibling(layer.options())), options);
  forward_ = layer.sibling(std::move(forward));
  backward_ = layer.sibling(std::move(backward));
}

Shape Bidirectional::build(const Shape& input) {
  const Shape shape = add_layer(*forward_, input);
  add_layer(*backward_, input);
  return merge_mode_ == "concat" ? shape.with_dim(-1, 2 * shape[-1]) : shape;
}

Tensor Bidirectional::call(const Tensor& input, CallContext context) const {
  const Tensor a = (*forward_)(input, context);
  Tensor b = (*backward_)(input, context);
  if (backward_->options().return_sequences) b = reverse(b, {1});
  const Tensor merged = merge(a, b);
  if (forward_->options().return_sequences) MaskScope::set_mask(merged, MaskScope::mask_of(input));
  return merged;
}

Tensor Bidirectional::merge(const Tensor& a, const Tensor& b) const {
  if (merge_mode_ == "concat") return concat({a, b}, -1);
  if (merge_mode_ == "mul") return a * b;
  return merge_mode_ == "sum" ? a + b : (a + b) * 0.5;
}

// A layer applied to every step of a sequence.

TimeDistributed::TimeDistributed(std::shared_ptr<Layer> layer, LayerOptions options)
    : LayerOf(std::move(options)), layer_(std::move(layer)) {
  made_with(layer_);
}

Shape TimeDistributed::build(const Shape& input) {
  internal::require(input.rank() != 0,
                    "TimeDistributed: expected examples of shape [steps, ...], got scalars");
  return add_layer(*layer_, input.without_axis(0)).with_front(input[0]);
}

Tensor TimeDistributed::call(const Tensor& input, CallContext context) const {
  const std::int64_t rows = input.shape()[0], steps = input.shape()[1];
  const Shape step = input.shape().without_axis(0).without_axis(0);
  const Tensor y = (*layer_)(reshape(input, step.with_front(rows * steps)), context);
  return reshape(y, y.shape().without_axis(0).with_front(steps).with_front(rows));
}

}  // namespace tutti
