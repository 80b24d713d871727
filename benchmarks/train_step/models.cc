// The networks, from tutti's layers.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/train_step/models.h"

#include "tutti/model/layers/layers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::benchmarks {
namespace {

Dense relu_dense(std::int64_t units) { return Dense(units, {.activation = "relu"}); }

Conv2D relu_conv(std::int64_t filters, std::int64_t size, const char* padding) {
  return Conv2D(filters, size, {.padding = padding, .activation = "relu"});
}

Conv2D plain_conv(std::int64_t filters, std::int64_t size, std::int64_t stride) {
  return Conv2D(filters, size, {.strides = stride, .padding = "same", .use_bias = false});
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

// Two convolutions with batch normalisation and what goes around them (1x1 where shapes change).
class ResidualBlock final : public Layer {
 public:
  ResidualBlock(std::int64_t filters, std::int64_t stride)
      : filters_(filters),
        stride_(stride),
        first_(plain_conv(filters, 3, stride)),
        second_(plain_conv(filters, 3, 1)),
        shortcut_(plain_conv(filters, 1, stride)) {}

 protected:
  Shape build(const Shape& input) override {
    projects_ = stride_ != 1 || input[2] != filters_;
    const Shape inner = add_layer(first_norm_, add_layer(first_, input));
    if (projects_) add_layer(shortcut_norm_, add_layer(shortcut_, input));
    return add_layer(second_norm_, add_layer(second_, inner));
  }
  Tensor call(const Tensor& x, CallContext context) const override {
    const Tensor inner = relu(first_norm_(first_(x, context), context));
    const Tensor y = second_norm_(second_(inner, context), context);
    return relu(y + (projects_ ? shortcut_norm_(shortcut_(x, context), context) : x));
  }

 private:
  std::int64_t filters_;
  std::int64_t stride_;
  bool projects_ = false;
  Conv2D first_;
  Conv2D second_;
  Conv2D shortcut_;
  BatchNormalization first_norm_;
  BatchNormalization second_norm_;
  BatchNormalization shortcut_norm_;
};

Sequential resnet20() {
  return Sequential(Input{example_shape("resnet20")}, plain_conv(16, 3, 1), BatchNormalization(),
                    Relu(), ResidualBlock(16, 1), ResidualBlock(16, 1), ResidualBlock(16, 1),
                    ResidualBlock(32, 2), ResidualBlock(32, 1), ResidualBlock(32, 1),
                    ResidualBlock(64, 2), ResidualBlock(64, 1), ResidualBlock(64, 1),
                    GlobalAveragePooling2D(), Dense(10));
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
  if (model == "resnet20") return resnet20();
  const Input input{example_shape(model)};
  if (model == "small_cnn") {
    return Sequential(input, relu_conv(32, 3, "valid"), MaxPooling2D(), relu_conv(64, 3, "valid"),
                      MaxPooling2D(), Flatten(), relu_dense(64), Dense(10));
  }
  if (model == "mlp") return Sequential(input, relu_dense(512), relu_dense(512), Dense(10));
  return Sequential(input, Dense(10));
}

}  // namespace tutti::benchmarks
