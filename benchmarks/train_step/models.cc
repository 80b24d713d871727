// The networks, from tutti's layers.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/train_step/models.h"

#include "examples/common/resnet.h"
#include "tutti/model/layers/layers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::benchmarks {
namespace {

Dense relu_dense(std::int64_t units) { return Dense(units, {.activation = "relu"}); }

Conv2D relu_conv(std::int64_t filters, std::int64_t size, const char* padding) {
  return Conv2D(filters, size, {.padding = padding, .activation = "relu"});
}

// TensorFlow's CIFAR-10 tutorial: LRN over 9 channels, pools of 3x3 every 2.
Sequential cifar10_cnn() {
  const LocalResponseNormalizationOptions lrn{
      .depth_radius = 4, .bias = 1.0, .alpha = 0.001 / 9.0, .beta = 0.75};
  const Pooling2DOptions pool{.strides = 2, .padding = "same"};
  return Sequential(Input{example_shape("cifar10_cnn")}, relu_conv(64, 5, "same"),
                    MaxPooling2D(3, pool), LocalResponseNormalization(lrn),
                    relu_conv(64, 5, "same"), LocalResponseNormalization(lrn),
                    MaxPooling2D(3, pool), Flatten(), relu_dense(384), relu_dense(192), Dense(10));
}

}  // namespace

Shape example_shape(const std::string& model) {
  if (model == "cifar10_cnn") return {24, 24, 3};
  if (model == "small_cnn") return {28, 28, 1};
  if (model == "mlp") return {784};
  if (model == "resnet20") return {32, 32, 3};
  return {10};
}

Sequential make_model(const std::string& model) {
  if (model == "cifar10_cnn") return cifar10_cnn();
  if (model == "resnet20") return examples::small_resnet(3);
  const Input input{example_shape(model)};
  if (model == "small_cnn") {
    return Sequential(input, relu_conv(32, 3, "valid"), MaxPooling2D(), relu_conv(64, 3, "valid"),
                      MaxPooling2D(), Flatten(), relu_dense(64), Dense(10));
  }
  if (model == "mlp") return Sequential(input, relu_dense(512), relu_dense(512), Dense(10));
  return Sequential(input, Dense(10));
}

}  // namespace tutti::benchmarks
