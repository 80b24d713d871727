// Keras's core layers: Dense, Embedding, PositionEmbedding, Masking, Lambda.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/core_layers.h"

#include "core/names.h"
#include "tutti/autograd/embedding_lookup.h"
#include "tutti/model/layers/key_value_cache.h"
#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// The fully connected layer, computed by one fused operation if the activation allows it.

Dense::Dense(std::int64_t units, DenseOptions options)
    : LayerOf(options.name, options.input_shape),
      units_(units),
      options_(std::move(options)),
      activation_(find_activation(options_.activation)) {
  internal::require_positive(units, "Dense", "number of units");
  made_with(units, options_);
}

Shape Dense::build(const Shape& input) {
  internal::require_features(input);
  add_weight(options_.kernel_initializer, {input[-1], units_}, {.name = "kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  add_bias(options_, {units_});
  set_output_activation(activation_.name);
  return input.with_dim(-1, units_);
}

Tensor Dense::call(const Tensor& input, CallContext) const {
  internal::require_features(input, weight(0).shape()[0]);
  const Tensor bias = options_.use_bias ? weight(1).value() : Tensor();
  return internal::dense_product(input, weight(0).value(), bias, activation_);
}

Tensor internal::dense_product(const Tensor& x, const Tensor& kernel, const Tensor& bias,
                               const ActivationFunction& activation) {
  if (!bias.defined()) return activation(matmul(x, kernel));
  const Tensor y = dense(x, kernel, bias, activation.fused);
  return activation.fused == FusedActivation::kNone ? activation(y) : y;
}

// The embedding layer.

Embedding::Embedding(std::int64_t input_dim, std::int64_t output_dim, EmbeddingOptions options)
    : LayerOf(options.name, options.input_shape),
      input_dim_(input_dim),
      output_dim_(output_dim),
      options_(std::move(options)) {
  internal::require(input_dim > 0 && output_dim > 0,
                    "Embedding: expected positive dimensions, got ", input_dim, " x ", output_dim);
  made_with(input_dim, output_dim, options_);
}

Shape Embedding::build(const Shape& input) {
  add_weight(options_.embeddings_initializer, {input_dim_, output_dim_}, {.name = "embeddings"},
             options_.embeddings_regularizer, options_.embeddings_constraint);
  std::vector<std::int64_t> dims(input.begin(), input.end());
  dims.push_back(output_dim_);
  return Shape(std::span<const std::int64_t>(dims));
}

Tensor Embedding::call(const Tensor& input, CallContext) const {
  const Tensor result = embedding_lookup(weight(0), input);
  if (options_.mask_zero) MaskScope::set_mask(result, not_equal(input, 0));
  return result;
}

Tensor Embedding::logits(const Tensor& x) const {
  internal::require_features(x, output_dim_);
  return matmul(x, weight(0).value(), {.transpose_b = true});
}

// The layer for learnt position embeddings.

PositionEmbedding::PositionEmbedding(std::int64_t sequence_length, PositionEmbeddingOptions options)
    : LayerOf(options.name, options.input_shape),
      sequence_length_(sequence_length),
      options_(std::move(options)) {
  internal::require_positive(sequence_length, "PositionEmbedding", "sequence_length");
  made_with(sequence_length, options_);
}

Shape PositionEmbedding::build(const Shape& input) {
  internal::require_sequence(input, "PositionEmbedding");
  add_weight(options_.embeddings_initializer, {sequence_length_, input[1]}, {.name = "embeddings"});
  return input;
}

Tensor PositionEmbedding::call(const Tensor& input, CallContext context) const {
  const std::int64_t first = internal::steps_before(context), steps = input.shape()[1];
  internal::require(first + steps <= sequence_length_, "PositionEmbedding: expected at most ",
                    sequence_length_, " steps, got ", first + steps,
                    "; try shorter sequences, or generate() with .window = ", sequence_length_);
  return input + slice(weight(0).value(), {first, 0}, {steps, -1});
}

// The layer that masks steps of a sequence.

Masking::Masking(double mask_value, LayerOptions options)
    : LayerOf(options.name, options.input_shape), mask_value_(mask_value) {
  made_with(mask_value);
}

Shape Masking::build(const Shape& input) {
  internal::require_sequence(input, "Masking");
  return input;
}

Tensor Masking::call(const Tensor& input, CallContext) const {
  const Tensor mask = reduce_any(not_equal(input, mask_value_), {.axes = {2}});
  const Tensor result = where(expand_dims(mask, 2), input, 0.0);
  MaskScope::set_mask(result, mask);
  return result;
}

// The layer that calls a user's function.

Lambda::Lambda(Function function, LambdaOptions options)
    : LayerOf(options.name, options.input_shape),
      function_(std::move(function)),
      output_shape_(options.output_shape) {
  if (!function_) fail(ErrorCode::kInvalidArgument, "Lambda: expected a function, got none");
}

Shape Lambda::build(const Shape& input) {
  if (output_shape_) return *output_shape_;
  const Shape result = function_(Tensor::zeros(input.with_front(1), dtype())).shape();
  internal::require(result.rank() != 0 && result[0] == 1,
                    "Lambda: expected a result [batch, ...] with as many rows as the input, got ",
                    result, " for an input of one row");
  return result.without_axis(0);
}

Tensor Lambda::call(const Tensor& input, CallContext) const { return function_(input); }

}  // namespace tutti
