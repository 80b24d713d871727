// Keras's core layers: Dense, Embedding, PositionEmbedding, Masking, Lambda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer_of.h"

namespace tutti {

// The fully connected layer.

struct DenseOptions {
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, ..., in] -> [batch, ..., units]: activation(x * kernel [in, units] + bias [units]).
class Dense : public LayerOf<Dense> {
 public:
  explicit Dense(std::int64_t units, DenseOptions options = {});
  /// Same as above, but with only an activation: `Dense(4, "relu")`.
  template <std::convertible_to<std::string> Name>
  Dense(std::int64_t units, const Name& activation)
      : Dense(units, DenseOptions{.activation = activation}) {}

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  std::int64_t units_;
  DenseOptions options_;
  ActivationFunction activation_;
};

namespace internal {
/// Returns activation(x [rows, in] * kernel + bias), in one pass if the kernels support it. `bias`
/// may be undefined.
Tensor dense_product(const Tensor& x, const Tensor& kernel, const Tensor& bias,
                     const ActivationFunction& activation = {});
}  // namespace internal

// The embedding layer.

struct EmbeddingOptions {
  Initializer embeddings_initializer = "uniform";
  Regularizer embeddings_regularizer = {};
  Constraint embeddings_constraint = {};
  /// If true, an input of 0 marks a masked step (MaskScope) for the following layers.
  bool mask_zero = false;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Table lookup: maps indices [batch, ...], int32 or int64 in 0 .. input_dim - 1, to rows [batch,
/// ..., output_dim]. The gradient is sparse (IndexedSlices). Throws kInvalidArgument, naming the
/// index, if an index is out of range.
class Embedding : public LayerOf<Embedding> {
 public:
  Embedding(std::int64_t input_dim, std::int64_t output_dim, EmbeddingOptions options = {});

  /// Returns the products of x [batch, ..., output_dim] with all rows of the table, [batch, ...,
  /// input_dim]: the logits of a model with tied embeddings (Press and Wolf, arXiv 1608.05859). Use
  /// it in the call() of a model or layer that contains this layer.
  Tensor logits(const Tensor& x) const;

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  std::int64_t input_dim_;
  std::int64_t output_dim_;
  EmbeddingOptions options_;
};

// The layer for learnt position embeddings.

struct PositionEmbeddingOptions {
  Initializer embeddings_initializer = "glorot_uniform";
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// GPT-2's position embedding: adds row t of a table to step t of x [batch, steps, features]. Its
/// weight is embeddings [sequence_length, features]. Throws kInvalidArgument for more than
/// sequence_length steps. In a call with a KeyValueCache, steps are counted from the first cached
/// step.
class PositionEmbedding : public LayerOf<PositionEmbedding> {
 public:
  explicit PositionEmbedding(std::int64_t sequence_length, PositionEmbeddingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  std::int64_t sequence_length_;
  PositionEmbeddingOptions options_;
};

// The layer that masks steps of a sequence.

/// Masks the steps of [batch, steps, features] whose features all equal `mask_value`, and sets them
/// to 0. The following layers and the loss skip masked steps (MaskScope).
class Masking : public LayerOf<Masking> {
 public:
  explicit Masking(double mask_value = 0.0, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  double mask_value_;
};

// A layer created from a function.

struct LambdaOptions {
  /// Shape of one example of the result. Default: determined by calling the function with one row
  /// of zeros.
  std::optional<Shape> output_shape = std::nullopt;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Layer without weights that calls a function [batch, ...] -> [batch, ...] composed of tensor
/// operations. The function must be thread-safe.
class Lambda : public LayerOf<Lambda> {
 public:
  using Function = std::function<Tensor(const Tensor& input)>;
  explicit Lambda(Function function, LambdaOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Function function_;
  std::optional<Shape> output_shape_;
};

}  // namespace tutti
