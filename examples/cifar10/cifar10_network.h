// Network of the CIFAR-10 tutorial: two convolutions, two dense layers, a softmax.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "examples/cifar10/tower.h"
#include "tutti/autograd/variable_store.h"
#include "tutti/optimizer/learning_rate_schedules.h"

namespace tutti::examples::cifar10 {

/// Returns wd * sum(w^2) / 2, shape []. Differentiable.
Tensor weight_decay_loss(const Tensor& weights, double wd);

/// Returns the steps between decays of the learning rate: int(50,000 / batch_size * 350).
/// `batch_size` is that of a tower, as in the original.
std::int64_t decay_steps(std::int64_t batch_size);
/// Returns a schedule that starts at 0.1 and multiplies by 0.1 every decay_steps().
ExponentialDecay learning_rate_schedule(std::int64_t batch_size);

/// One tower's view of the 1,068,298 weights in ten variables "conv1/weights", "conv1/biases", ...
/// The first network made from a store creates them (truncated normal); later ones share them.
class Cifar10Network {
 public:
  explicit Cifar10Network(VariableStore& store);

  /// Maps images [batch, 24, 24, 3] to logits [batch, 10] float32. Adds the decay of every layer's
  /// weights to the tower's losses and records the layers' outputs. `use_fp16`: computes in
  /// float16; weights, their decay and the logits stay float32.
  Tensor inference(Tower& tower, const Tensor& images, bool use_fp16 = false) const;

  /// Adds the mean cross-entropy to the tower's losses and returns their sum. labels [batch] int64.
  static Tensor loss(Tower& tower, const Tensor& logits, const Tensor& labels);

 private:
  struct Layer {
    std::string name;
    Variable weights;
    Variable biases;
    double weight_decay = 0.0;
  };
  struct LayerSpec;
  static Layer make_layer(VariableStore& store, const LayerSpec& spec);
  /// Returns the weights as `dtype` and adds their decay to the tower's losses. Reads them once,
  /// since a tower on another device than the variables copies them in each read.
  static Tensor weights_of(Tower& tower, const Layer& layer, DType dtype);
  static Tensor convolution(Tower& tower, const Layer& layer, const Tensor& x);
  static Tensor dense_relu(Tower& tower, const Layer& layer, const Tensor& x);

  Layer conv1_, conv2_, local3_, local4_, softmax_linear_;
};

}  // namespace tutti::examples::cifar10
