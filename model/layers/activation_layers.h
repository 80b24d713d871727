// Activations as layers of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer.h"

namespace tutti {

struct ActivationOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// A function of activations.h on every element: Activation("relu").
class Activation : public Layer {
 public:
  explicit Activation(std::string_view function, ActivationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  ActivationFunction function_;
};

class Relu : public Activation {
 public:
  explicit Relu(ActivationOptions options = {}) : Activation("relu", std::move(options)) {}
};
class Sigmoid : public Activation {
 public:
  explicit Sigmoid(ActivationOptions options = {}) : Activation("sigmoid", std::move(options)) {}
};
class Tanh : public Activation {
 public:
  explicit Tanh(ActivationOptions options = {}) : Activation("tanh", std::move(options)) {}
};
class Elu : public Activation {
 public:
  explicit Elu(ActivationOptions options = {}) : Activation("elu", std::move(options)) {}
};
class Gelu : public Activation {
 public:
  explicit Gelu(ActivationOptions options = {}) : Activation("gelu", std::move(options)) {}
};
/// Over the last axis.
class Softmax : public Activation {
 public:
  explicit Softmax(ActivationOptions options = {}) : Activation("softmax", std::move(options)) {}
};

/// x where x > 0, alpha * x elsewhere; alpha in [0, 1].
class LeakyRelu : public Layer {
 public:
  explicit LeakyRelu(double alpha = 0.3, ActivationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  double alpha_;
};

}  // namespace tutti
