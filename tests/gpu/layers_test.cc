// Layers on a GPU: results and gradients of weights and inputs, compared with the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/gpu/gpu_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/strategies.h"

namespace tutti {
namespace {

using gpu_tests::expect_near;
using gpu_tests::kGpu;
using gpu_tests::numbers;

using MakeLayer = std::function<std::unique_ptr<Layer>()>;

/// Makes the layer anew each time: copies of one would share its weights.
template <class L, class... Arguments>
MakeLayer made(const Arguments&... arguments) {
  return [=] { return std::make_unique<L>(arguments...); };
}

/// The layer's result and the gradients of a weighted sum of it, with weights from a fixed seed.
std::vector<Tensor> result_and_gradients(const MakeLayer& make, const Tensor& input, Device device,
                                         CallContext context) {
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  const std::unique_ptr<Layer> layer = make();
  (void)layer->build_for(std::vector<Shape>{input.shape().without_axis(0)});
  std::uint64_t seed = 11;
  for (Variable weight : layer->trainable_variables()) {
    weight.assign(numbers(weight.shape(), ++seed, -0.6, 0.8));
  }
  std::vector<Tensor> results;
  strategy.run([&] {
    const Tensor x = input.to(device);
    GradientTape tape({.persistent = true});
    if (is_floating(x.dtype())) tape.watch(x);
    const Tensor y = (*layer)(x, context);
    EXPECT_EQ(y.device(), device);
    const Tensor target = reduce_sum(cast(y, DType::kFloat32) * numbers(y.shape(), 71).to(device));
    results = {cast(y, DType::kFloat32)};
    const std::vector<Variable> weights = layer->trainable_variables();
    for (const Gradient& gradient : tape.gradient(target, weights)) {
      results.push_back(gradient.to_dense());
    }
    if (is_floating(x.dtype())) results.push_back(tape.gradient(target, x).to_dense());
  });
  for (const Variable& variable : layer->variables()) results.push_back(variable.value());
  return results;
}

void compare_layer(const MakeLayer& make, const Tensor& input, double tolerance = 3e-5) {
  SCOPED_TRACE(make()->type_name());
  for (const bool training : {true, false}) {
    const CallContext context{.training = training};
    try {
      const auto expected = result_and_gradients(make, input, Device{}, context);
      const auto actual = result_and_gradients(make, input, kGpu, context);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        SCOPED_TRACE(concat("result ", i));
        expect_near(actual[i], expected[i], tolerance);
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(GpuLayers, DenseAndActivationsAgreeWithTheCpu) {
  const Tensor x = numbers({4, 6}, 1);
  compare_layer(made<Dense>(5), x);
  compare_layer(made<Dense>(5, DenseOptions{.activation = "relu"}), x);
  compare_layer(made<Dense>(3, DenseOptions{.activation = "softmax"}), x);
  compare_layer(made<Relu>(), x);
  compare_layer(made<Flatten>(), numbers({2, 3, 4}, 2));
}

TEST(GpuLayers, CornersOfActivationsAgreeWithTheCpu) {
  const Tensor x = Tensor::from<float>({2, 5}, {-3, 0, 6, 7, 1, 3, -1, 5, -6, 0.5f});
  for (const char* function : {"relu", "relu6", "selu", "elu", "hard_sigmoid", "hard_silu"})
    compare_layer(made<Activation>(function), x);
  compare_layer(made<Relu>(ReluOptions{.max_value = 6.0, .negative_slope = 0.25}), x);
  compare_layer(made<Relu>(ReluOptions{.max_value = 5.0, .negative_slope = 0.25, .threshold = 1.0}),
                x);
}

TEST(GpuLayers, MasksAgreeWithTheCpu) {
  Tensor x = numbers({2, 5, 3}, 1);
  // The second sequence begins with a gap, whose query sees nothing, and has one inside.
  const Tensor counts = Tensor::from<float>({2, 5, 1}, {1, 1, 1, 0, 0, 0, 1, 0, 1, 1});
  x = x * counts;
  const auto make = [] {
    return std::make_unique<Sequential>(Input{{5, 3}}, Masking(),
                                        MultiHeadAttention(2, 4, {.use_causal_mask = true}),
                                        Bidirectional(LSTM(3, {.return_sequences = true})));
  };
  compare_layer(make, x);
}

TEST(GpuLayers, PartsOfTransformersAgreeWithTheCpu) {
  const Tensor x = numbers({2, 5, 4}, 1);
  compare_layer(made<RMSNormalization>(), x);
  compare_layer(made<RotaryEmbedding>(), x);
  compare_layer(made<SwiGLU>(6), x);
  compare_layer(made<TransformerBlock>(4, 2, 6, TransformerBlockOptions{.num_key_value_heads = 2}),
                x);
}

TEST(GpuLayers, ConvolutionsAndPoolingAgreeWithTheCpu) {
  const Tensor x = numbers({2, 8, 8, 4}, 1);
  compare_layer(made<Conv2D>(6, 3), x);
  compare_layer(made<Conv2D>(6, 3, Conv2DOptions{.strides = 2, .padding = "same"}), x);
  compare_layer(made<DepthwiseConv2D>(3), x);
  compare_layer(made<SeparableConv2D>(6, 3), x);
  compare_layer(made<Conv2DTranspose>(3, 3, Conv2DTransposeOptions{.strides = 2}), x);
  compare_layer(made<MaxPooling2D>(2), x);
  compare_layer(made<AveragePooling2D>(2), x);
  compare_layer(made<GlobalAveragePooling2D>(), x);
  compare_layer(made<UpSampling2D>(2), x);
}

TEST(GpuLayers, NormalizationsAgreeWithTheCpu) {
  const Tensor x = numbers({4, 3, 3, 8}, 1);
  compare_layer(made<BatchNormalization>(), x);
  compare_layer(made<BatchNormalization>(BatchNormalizationOptions{.synchronized = true}), x);
  compare_layer(made<LayerNormalization>(), x);
  compare_layer(made<GroupNormalization>(4), x);
}

TEST(GpuLayers, RecurrentLayersAgreeWithTheCpu) {
  const Tensor x = numbers({3, 5, 4}, 1);
  compare_layer(made<LSTM>(6), x);
  compare_layer(made<GRU>(6), x);
  compare_layer(made<SimpleRNN>(6), x);
}

TEST(GpuLayers, EmbeddingAgreesWithTheCpu) {
  compare_layer(made<Embedding>(10, 4), Tensor::from<std::int64_t>({2, 3}, {1, 9, 0, 1, 4, 1}));
}

TEST(GpuLayers, MixedPoliciesComputeInSixteenBits) {
  for (const char* policy : {"mixed_bfloat16", "mixed_float16"}) {
    set_dtype_policy(policy);
    compare_layer(made<Dense>(5, DenseOptions{.activation = "relu"}), numbers({4, 6}, 1), 3e-2);
    compare_layer(made<Conv2D>(6, 3), numbers({2, 8, 8, 4}, 1), 3e-2);
  }
  set_dtype_policy("float32");
}

TEST(GpuLayers, DropoutMasksAreThoseOfTheCpu) {
  const RandomKey key{.seed = 5};
  const Tensor x = Tensor::ones({200});
  expect_near(dropout(x.to(kGpu), 0.3, key), dropout(x, 0.3, key), 1e-6);
}

}  // namespace
}  // namespace tutti
