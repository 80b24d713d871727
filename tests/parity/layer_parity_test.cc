// Layers against Keras's, forward and backward, in float64.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/layers.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::parity {
namespace {

/// Keras's gelu divides by a square root of 2 in float32.
double tolerance_of(const std::string& name) { return name == "gelu" ? 1e-6 : 1e-9; }

using MakeLayer = std::function<std::shared_ptr<Layer>()>;

template <class L, class... Args>
MakeLayer make(Args... args) {
  return [=] { return std::make_shared<L>(args...); };
}

/// The layers of layer_cases.py.
const std::map<std::string, MakeLayer>& layer_table() {
  static const std::map<std::string, MakeLayer> table = {
      {"dense", make<Dense>(3)},
      {"dense_relu", make<Dense>(3, DenseOptions{.activation = "relu"})},
      {"dense_no_bias_tanh", make<Dense>(3, DenseOptions{.activation = "tanh", .use_bias = false})},
      {"dense_rank_3", make<Dense>(4)},
      {"conv2d_valid", make<Conv2D>(4, 3)},
      {"conv2d_same_stride_2",
       make<Conv2D>(4, 3, Conv2DOptions{.strides = 2, .padding = "same", .activation = "relu"})},
      {"conv2d_kernel_2x3", make<Conv2D>(2, Size2D(2, 3), Conv2DOptions{.use_bias = false})},
      {"max_pooling2d", make<MaxPooling2D>()},
      {"max_pooling2d_same",
       make<MaxPooling2D>(3, Pooling2DOptions{.strides = 2, .padding = "same"})},
      {"average_pooling2d", make<AveragePooling2D>()},
      {"average_pooling2d_same",
       make<AveragePooling2D>(3, Pooling2DOptions{.strides = 2, .padding = "same"})},
      {"global_average_pooling2d", make<GlobalAveragePooling2D>()},
      {"global_max_pooling2d", make<GlobalMaxPooling2D>()},
      {"batch_normalization_training",
       make<BatchNormalization>(BatchNormalizationOptions{.momentum = 0.9})},
      {"batch_normalization_inference", make<BatchNormalization>()},
      {"batch_normalization_of_rows",
       make<BatchNormalization>(BatchNormalizationOptions{.epsilon = 1e-5})},
      {"flatten", make<Flatten>()},
      {"reshape", make<Reshape>(std::vector<std::int64_t>{-1, 3})},
      {"rescaling", make<Rescaling>(1 / 256.0, RescalingOptions{.offset = -0.5})},
      {"relu", make<Activation>("relu")},
      {"sigmoid", make<Activation>("sigmoid")},
      {"tanh", make<Activation>("tanh")},
      {"elu", make<Activation>("elu")},
      {"gelu", make<Activation>("gelu")},
      {"softmax", make<Activation>("softmax")},
      {"leaky_relu", make<LeakyRelu>(0.25)},
  };
  return table;
}

const Record& layer_record() {
  static const Record record("layers");
  return record;
}

bool trains(const std::string& name) {
  return name.starts_with("batch_normalization") && !name.ends_with("inference");
}

class LayerParity : public ::testing::TestWithParam<std::string> {};

TEST_P(LayerParity, IsKerasForwardAndBackward) {
  const Float64 policy;
  const Record& record = layer_record();
  const std::string prefix = GetParam() + "/";
  const std::shared_ptr<Layer> layer = layer_table().at(GetParam())();
  const Tensor& x = record.at(prefix + "x0");
  const Shape& shape = x.shape();
  layer->build_for(Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end())));
  const std::vector<Variable> weights = layer->variables();
  const std::vector<Tensor> values = record.list(prefix + "w");
  ASSERT_EQ(weights.size(), values.size());
  for (std::size_t i = 0; i < weights.size(); ++i) Variable(weights[i]).assign(values[i]);

  const Variable input(x, {.name = "x"});
  std::vector<Variable> sources = {input};
  for (const Variable& weight : layer->trainable_variables()) sources.push_back(weight);
  GradientTape tape;
  const Tensor y = (*layer)(input.value(), {.training = trains(GetParam())});
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  const std::vector<Gradient> gradients = tape.gradient(target, sources);

  expect_close(y, record.at(prefix + "y"), tolerance_of(GetParam()), "y");
  expect_close(gradients[0].dense(), record.at(prefix + "dx0"), tolerance_of(GetParam()),
               "gradient of the input");
  for (std::size_t i = 1; i < sources.size(); ++i) {
    expect_close(gradients[i].to_dense(), record.at(concat(prefix, "dw", i - 1)),
                 tolerance_of(GetParam()), "gradient of " + sources[i].name());
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string after = concat(prefix, "after", i);
    if (record.has(after)) {
      expect_close(weights[i].value(), record.at(after), tolerance_of(GetParam()),
                   weights[i].name());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayerParity, ::testing::ValuesIn(names_of(layer_table())),
                         [](const auto& info) { return info.param; });

TEST(LayerParityTable, HasTheCasesOfTheRecord) {
  EXPECT_EQ(names_of(layer_table()), layer_record().cases());
}

}  // namespace
}  // namespace tutti::parity
