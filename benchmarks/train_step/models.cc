// Implements the networks with tutti's layers.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/train_step/models.h"

#include "examples/common/resnet.h"
#include "examples/gpt/gpt_model.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::benchmarks {
namespace {

Dense relu_dense(std::int64_t units) { return Dense(units, {.activation = "relu"}); }

Conv2D relu_conv(std::int64_t filters, std::int64_t size, const char* padding) {
  return Conv2D(filters, size, {.padding = padding, .activation = "relu"});
}

/// Returns the shape of one example: [height, width, channels] or [features].
Shape example_shape(const std::string& model) {
  if (model == "cifar10_cnn") return {24, 24, 3};
  if (model == "small_cnn") return {28, 28, 1};
  if (model == "mlp") return {784};
  if (model == "resnet20") return {32, 32, 3};
  return {10};
}

// The network of TensorFlow's CIFAR-10 tutorial, with LRN over 9 channels and 3x3 pooling layers
// with stride 2.
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

Dataset synthetic_data(const std::string& model, std::int64_t rows) {
  const RandomKey key{.seed = 1, .purpose = kUserPurpose};
  if (model == "gpt") {
    const examples::GptConfig config;
    const auto context = config.context;
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(rows * (context + 1)));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int64_t>(
          RandomStream(key).below(i, static_cast<std::uint64_t>(config.vocabulary)));
    }
    const Tensor all = Tensor::from(Shape{rows, context + 1}, tokens);
    return Dataset::from_tensor_slices(
               {slice(all, {0, 0}, {-1, context}), slice(all, {0, 1}, {-1, context})})
        .batch(rows);
  }
  std::vector<std::int64_t> dims = {rows};
  for (const std::int64_t dim : example_shape(model)) dims.push_back(dim);
  std::vector<std::int32_t> labels(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int>(7 * i % 10);
  return Dataset::from_tensor_slices(
             {random_normal(Shape(dims), key), Tensor::from(Shape{rows}, labels)})
      .batch(rows);
}

std::unique_ptr<Model> make_model(const std::string& model) {
  if (model == "gpt") return std::make_unique<examples::Gpt>(examples::GptConfig{});
  const auto own = [](Sequential layers) {
    return std::make_unique<Sequential>(std::move(layers));
  };
  if (model == "cifar10_cnn") return own(cifar10_cnn());
  if (model == "resnet20") return own(examples::small_resnet(3));
  const Input input{example_shape(model)};
  if (model == "small_cnn") {
    return own(Sequential(input, relu_conv(32, 3, "valid"), MaxPooling2D(),
                          relu_conv(64, 3, "valid"), MaxPooling2D(), Flatten(), relu_dense(64),
                          Dense(10)));
  }
  if (model == "mlp") return own(Sequential(input, relu_dense(512), relu_dense(512), Dense(10)));
  return own(Sequential(input, Dense(10)));
}

}  // namespace tutti::benchmarks
