// Convolution and pooling of sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer_of.h"
#include "tutti/tensor/op.h"

namespace tutti {

struct Conv1DOptions {
  std::int64_t strides = 1;
  /// "valid", "same" or "causal" (a result sees no later step).
  std::string padding = "valid";
  std::int64_t dilation_rate = 1;
  std::int64_t groups = 1;
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

/// [batch, steps, in] -> [batch, out_steps, filters], kernel [kernel_size, in / groups, filters],
/// bias [filters].
class Conv1D : public LayerOf<Conv1D> {
 public:
  Conv1D(std::int64_t filters, std::int64_t kernel_size, Conv1DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t filters_;
  std::int64_t kernel_size_;
  Conv1DOptions options_;
  Padding padding_;
  ActivationFunction activation_;
};

struct Pooling1DOptions {
  /// Default: the size of the window.
  std::optional<std::int64_t> strides = std::nullopt;
  std::string padding = "valid";  // or "same"
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, steps, channels]: the largest value of each window.
class MaxPooling1D : public LayerOf<MaxPooling1D> {
 public:
  explicit MaxPooling1D(std::int64_t pool_size = 2, Pooling1DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t pool_size_;
  std::int64_t strides_;
  Padding padding_;
};

/// The mean of each window; padding is not counted.
class AveragePooling1D : public LayerOf<AveragePooling1D> {
 public:
  explicit AveragePooling1D(std::int64_t pool_size = 2, Pooling1DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t pool_size_;
  std::int64_t strides_;
  Padding padding_;
};

struct GlobalPooling1DOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, steps, channels] -> [batch, channels]: the mean of the steps that count (masks.h), 0
/// where none does.
class GlobalAveragePooling1D : public LayerOf<GlobalAveragePooling1D> {
 public:
  explicit GlobalAveragePooling1D(GlobalPooling1DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }
};

/// [batch, steps, channels] -> [batch, channels].
class GlobalMaxPooling1D : public LayerOf<GlobalMaxPooling1D> {
 public:
  explicit GlobalMaxPooling1D(GlobalPooling1DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

}  // namespace tutti
