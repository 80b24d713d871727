// Implements the network of the CIFAR-10 tutorial.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/cifar10_network.h"

#include "examples/cifar10/cifar10_input.h"
#include "tutti/autograd/variable.h"
#include "tutti/model/layers/initializers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::examples::cifar10 {
namespace {

constexpr double kInitialLearningRate = 0.1;
constexpr double kLearningRateDecayFactor = 0.1;
constexpr double kNumEpochsPerDecay = 350.0;

Tensor max_pool_3x3(const Tensor& x) {
  return max_pool2d(x, {.window_h = 3, .window_w = 3, .padding = Padding::kSame});
}

Tensor normalized(const Tensor& x) {
  return local_response_normalization(
      x, {.depth_radius = 4, .bias = 1.0, .alpha = 0.001 / 9.0, .beta = 0.75});
}

}  // namespace

struct Cifar10Network::LayerSpec {
  const char* name;
  Shape weights;
  double stddev;
  double bias;
  double weight_decay;
};

Tensor weight_decay_loss(const Tensor& weights, double wd) {
  return reduce_sum(square(weights)) * static_cast<float>(wd / 2.0);
}

std::int64_t decay_steps(std::int64_t batch_size) {
  const double batches_per_epoch =
      static_cast<double>(kNumExamplesForTraining) / static_cast<double>(batch_size);
  return static_cast<std::int64_t>(batches_per_epoch * kNumEpochsPerDecay);
}

ExponentialDecay learning_rate_schedule(std::int64_t batch_size) {
  return ExponentialDecay({.initial_learning_rate = kInitialLearningRate,
                           .decay_steps = decay_steps(batch_size),
                           .decay_rate = kLearningRateDecayFactor,
                           .staircase = true});
}

Cifar10Network::Layer Cifar10Network::make_layer(VariableStore& store, const LayerSpec& spec) {
  const std::string name = spec.name;
  const Shape biases{spec.weights.dim(-1)};
  return {.name = name,
          .weights =
              store.get(name + "/weights", spec.weights,
                        initializers::truncated_normal(0.0, spec.stddev).for_shape(spec.weights)),
          .biases = store.get(name + "/biases", biases,
                              initializers::constant(spec.bias).for_shape(biases)),
          .weight_decay = spec.weight_decay};
}

Cifar10Network::Cifar10Network(VariableStore& store)
    : conv1_(make_layer(store, {"conv1", {5, 5, 3, 64}, 0.05, 0.0, 0.0})),
      conv2_(make_layer(store, {"conv2", {5, 5, 64, 64}, 0.05, 0.1, 0.0})),
      local3_(make_layer(store, {"local3", {6 * 6 * 64, 384}, 0.04, 0.1, 0.004})),
      local4_(make_layer(store, {"local4", {384, 192}, 0.04, 0.1, 0.004})),
      softmax_linear_(
          make_layer(store, {"softmax_linear", {192, kNumClasses}, 1.0 / 192.0, 0.0, 0.0})) {}

Tensor Cifar10Network::weights_of(Tower& tower, const Layer& layer, DType dtype) {
  const AutocastScope in_float32(std::nullopt);
  const Tensor weights = layer.weights.value();
  // A layer without decay adds a term of value 0, as in the original.
  tower.add_loss("weight_loss", layer.weight_decay == 0.0
                                    ? Tensor::zeros({}, weights.dtype(), weights.device())
                                    : weight_decay_loss(weights, layer.weight_decay));
  return weights.dtype() == dtype ? weights : cast(weights, dtype);
}

Tensor Cifar10Network::convolution(Tower& tower, const Layer& layer, const Tensor& x) {
  const auto scope = tower.name_scope(layer.name);
  const Tensor weights = weights_of(tower, layer, x.dtype());
  Tensor y = conv2d(x, weights, layer.biases,
                    {.padding = Padding::kSame, .activation = FusedActivation::kRelu});
  tower.note_activation("activations", y);
  return y;
}

Tensor Cifar10Network::dense_relu(Tower& tower, const Layer& layer, const Tensor& x) {
  const auto scope = tower.name_scope(layer.name);
  const Tensor weights = weights_of(tower, layer, x.dtype());
  Tensor y = dense(x, weights, layer.biases, FusedActivation::kRelu);
  tower.note_activation("activations", y);
  return y;
}

Tensor Cifar10Network::inference(Tower& tower, const Tensor& images, bool use_fp16) const {
  const AutocastScope types(use_fp16 ? std::optional(DType::kFloat16) : std::nullopt);
  Tensor x = use_fp16 ? cast(images, DType::kFloat16) : images;
  x = convolution(tower, conv1_, x);
  x = normalized(max_pool_3x3(x));
  x = convolution(tower, conv2_, x);
  x = max_pool_3x3(normalized(x));  // in the first layer, pooling precedes normalization
  x = dense_relu(tower, local3_, flatten_rows(x));
  x = dense_relu(tower, local4_, x);
  const auto scope = tower.name_scope(softmax_linear_.name);
  const Tensor weights = weights_of(tower, softmax_linear_, x.dtype());
  Tensor logits = cast(dense(x, weights, softmax_linear_.biases), DType::kFloat32);
  tower.note_activation("activations", logits);
  return logits;
}

Tensor Cifar10Network::loss(Tower& tower, const Tensor& logits, const Tensor& labels) {
  tower.add_loss("cross_entropy", reduce_mean(sparse_softmax_cross_entropy(labels, logits)));
  return tower.total_loss();
}

}  // namespace tutti::examples::cifar10
