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
  /// `Dense(4, "relu")`.
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
/// The activation of x [rows, in] * kernel + bias (undefined: none), in one pass where the kernels
/// can.
Tensor dense_product(const Tensor& x, const Tensor& kernel, const Tensor& bias,
                     const ActivationFunction& activation = {});
}  // namespace internal

// The embedding layer.

struct EmbeddingOptions {
  Initializer embeddings_initializer = "uniform";
  Regularizer embeddings_regularizer = {};
  Constraint embeddings_constraint = {};
  /// Index 0 is a gap: such steps do not count for what follows (MaskScope).
  bool mask_zero = false;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Rows of a table: indices [batch, ...] of int32 or int64 in 0 .. input_dim-1 -> [batch, ...,
/// output_dim]. The gradient is sparse (IndexedSlices). An index out of range throws
/// kInvalidArgument naming it.
class Embedding : public LayerOf<Embedding> {
 public:
  Embedding(std::int64_t input_dim, std::int64_t output_dim, EmbeddingOptions options = {});

  /// The products of x [batch, ..., output_dim] and all rows, [batch, ..., input_dim]: the logits
  /// of a model whose output has the weights of its input (tied embeddings: Press and Wolf, arXiv
  /// 1608.05859). For the call() of a model or layer that has this one as a part.
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

// Positions that are learnt.

struct PositionEmbeddingOptions {
  Initializer embeddings_initializer = "glorot_uniform";
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x [batch, steps, features] plus a row of a table for each step: step t gets row t. Weight
/// embeddings [sequence_length, features]. More steps throw kInvalidArgument; fewer take the first
/// rows, behind those of a KeyValueCache. GPT-2's positions.
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

// The layer that says which steps of a sequence do not count.

/// [batch, steps, features] as it is, but 0 in the steps whose features all are `mask_value`: they
/// do not count for the layers and the loss that follow (MaskScope).
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

// A layer made of a function.

struct LambdaOptions {
  /// Shape of a result's example; default: found by calling the function with one row of zeros.
  std::optional<Shape> output_shape = std::nullopt;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// A function [batch, ...] -> [batch, ...] of tensor operations as a layer without weights. It runs
/// on several threads at once.
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
