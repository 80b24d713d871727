// Network of the CIFAR-10 tutorial: two convolutions, two dense layers, and a softmax.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "examples/cifar10/tower.h"
#include "tutti/autograd/variable_store.h"
#include "tutti/optimizer/learning_rate_schedules.h"

namespace tutti::examples::cifar10 {

/// Returns wd * sum(w^2) / 2 with shape []. Differentiable.
Tensor weight_decay_loss(const Tensor& weights, double wd);

/// Returns the number of steps between decays of the learning rate: int(50,000 / batch_size * 350).
/// As in the original, `batch_size` is that of one tower.
std::int64_t decay_steps(std::int64_t batch_size);
/// Returns a schedule that starts at 0.1 and is multiplied by 0.1 after every decay_steps() steps.
ExponentialDecay learning_rate_schedule(std::int64_t batch_size);

/// Network of one tower with 1,068,298 weights in ten variables "conv1/weights", "conv1/biases",
/// ... The first network created from a store creates the variables (truncated normal); later
/// networks share them.
class Cifar10Network {
 public:
  explicit Cifar10Network(VariableStore& store);

  /// Maps images [batch, 24, 24, 3] to logits [batch, 10] in float32. Adds the decay of each
  /// layer's weights to the tower's losses, and records the layers' outputs. `use_fp16` computes in
  /// float16, but weights, their decay and the logits remain float32.
  Tensor inference(Tower& tower, const Tensor& images, bool use_fp16 = false) const;

  /// Adds the mean cross-entropy to the tower's losses, and returns the sum of all losses. `labels`
  /// are int64 [batch].
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
  /// Returns the weights as `dtype`, and adds their decay to the tower's losses. Reads them only
  /// once, because each read copies them if the tower is on another device.
  static Tensor weights_of(Tower& tower, const Layer& layer, DType dtype);
  static Tensor convolution(Tower& tower, const Layer& layer, const Tensor& x);
  static Tensor dense_relu(Tower& tower, const Layer& layer, const Tensor& x);

  Layer conv1_, conv2_, local3_, local4_, softmax_linear_;
};

}  // namespace tutti::examples::cifar10
