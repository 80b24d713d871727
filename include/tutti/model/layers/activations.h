// Activation functions by name, and activation layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/model/layers/layer_of.h"
#include "tutti/tensor/op.h"

namespace tutti {

// Activation functions by name.

/// An activation function. Elementwise, except for softmax and log_softmax, which work along the
/// last axis. A value type.
struct ActivationFunction {
  std::string name = "linear";
  Tensor (*apply)(const Tensor& x) = nullptr;
  /// Fused form of this activation, which kernels apply to their own results; kNone if kernels do
  /// not support it.
  FusedActivation fused = FusedActivation::kNone;

  bool is_linear() const { return apply == nullptr; }
  Tensor operator()(const Tensor& x) const { return apply ? apply(x) : x; }
};

/// Returns the activation function called `name`: linear (also ""), relu, sigmoid, tanh, softmax,
/// log_softmax, softplus, softsign, elu, selu, gelu (exact), gelu_tanh, swish (silu), hard_swish
/// (hard_silu), mish, relu6, leaky_relu (slope 0.2), exponential, hard_sigmoid (x / 6 + 0.5,
/// clipped). Throws kInvalidArgument for any other name, listing these.
ActivationFunction find_activation(std::string_view name);

// Activation layers.

/// Layer that applies an activation function, given by its name: `Activation("relu")`.
class Activation : public LayerOf<Activation> {
 public:
  explicit Activation(std::string_view function, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  ActivationFunction function_;
};

struct ReluOptions {
  /// Upper bound of the result; nullopt for no bound.
  std::optional<double> max_value = std::nullopt;
  /// Slope below the threshold, where the result is negative_slope * (x - threshold). At the
  /// threshold the result is 0, as in Keras's code, although Keras's documentation specifies x.
  double negative_slope = 0.0;
  double threshold = 0.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// max(x, 0) by default; in general, Keras's ReLU with the given options.
class Relu : public LayerOf<Relu, Activation> {
 public:
  explicit Relu(ReluOptions options = {});

 protected:
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  ReluOptions options_;
};
/// 1 / (1 + exp(-x)).
class Sigmoid : public LayerOf<Sigmoid, Activation> {
 public:
  explicit Sigmoid(LayerOptions options = {}) : LayerOf("sigmoid", std::move(options)) {
    made_with();
  }
};
/// The hyperbolic tangent.
class Tanh : public LayerOf<Tanh, Activation> {
 public:
  explicit Tanh(LayerOptions options = {}) : LayerOf("tanh", std::move(options)) { made_with(); }
};

struct EluOptions {
  double alpha = 1.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x where x > 0, alpha * (exp(x) - 1) elsewhere.
class Elu : public LayerOf<Elu, Activation> {
 public:
  explicit Elu(EluOptions options = {});

 protected:
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  double alpha_;
};

/// x * Phi(x), the exact form.
class Gelu : public LayerOf<Gelu, Activation> {
 public:
  explicit Gelu(LayerOptions options = {}) : LayerOf("gelu", std::move(options)) { made_with(); }
};
/// exp(x) divided by its sum over the last axis.
class Softmax : public LayerOf<Softmax, Activation> {
 public:
  explicit Softmax(LayerOptions options = {}) : LayerOf("softmax", std::move(options)) {
    made_with();
  }
};

/// x where x > 0, negative_slope * x elsewhere; negative_slope >= 0.
class LeakyRelu : public LayerOf<LeakyRelu> {
 public:
  explicit LeakyRelu(double negative_slope = 0.3, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  double negative_slope_;
};

struct PReLUOptions {
  Initializer alpha_initializer = "zeros";
  Regularizer alpha_regularizer = {};
  Constraint alpha_constraint = {};
  /// Axes along which elements share one alpha (the batch is axis 0), e.g. {1, 2} for images.
  std::vector<int> shared_axes = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x where x > 0, alpha * x elsewhere. alpha is learnt; it has the shape of an example, with length
/// 1 on shared axes.
class PReLU : public LayerOf<PReLU> {
 public:
  explicit PReLU(PReLUOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  PReLUOptions options_;
};

// Keras's spellings of the names above.
using ReLU = Relu;
using ELU = Elu;
using LeakyReLU = LeakyRelu;

}  // namespace tutti
