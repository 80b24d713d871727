// The parts of transformers around their attention; tests/parity has most of their values.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/multi_head_attention.h"
#include "tutti/model/layers/transformer.h"

namespace tutti {
namespace {

using namespace layer_tests;
using ::testing::ElementsAre;

TEST(RMSNormalizationTest, HasAScaleOfItsAxes) {
  RMSNormalization steps({.axes = {1}});
  steps.build_for({4, 3});
  EXPECT_THAT(weights_of_layer(steps), ElementsAre("rms_normalization/scale [4]"));
  EXPECT_ERROR(RMSNormalization({.axes = {3}}).build_for({4, 3}), kInvalidArgument,
               "RMSNormalization: expected axes from 1 to 2");
  EXPECT_ERROR(RMSNormalization bad({.epsilon = 0.0}), kInvalidArgument,
               "expected a positive epsilon");
}

TEST(RMSNormalizationTest, Computes16BitNumbersInFloat32) {
  RMSNormalization layer;
  layer.set_dtype_policy("mixed_float16");
  layer.build_for({2});
  // The square of 300 is beyond float16.
  const Tensor y = layer(cast(Tensor::from<float>({1, 2}, {300, -300}), DType::kFloat16));
  EXPECT_EQ(y.dtype(), DType::kFloat16);
  EXPECT_THAT(y.to_doubles(), ElementsAre(1.0, -1.0));
}

TEST(RotaryEmbeddingTest, EqualsPlainLoops) {
  const ExactLayers exact;
  constexpr std::size_t kSteps = 4, kHeads = 2, kFeatures = 6;
  RotaryEmbedding layer({.max_wavelength = 50.0});
  layer.build_for({kSteps, kHeads, kFeatures});
  const Tensor x = spread({2, kSteps, kHeads, kFeatures}, 1);
  const std::vector<double> in = x.to_doubles();
  std::vector<double> expected(in.size());
  for (std::size_t at = 0; at < in.size(); at += kFeatures) {
    const std::size_t step = at / (kHeads * kFeatures) % kSteps;
    for (std::size_t i = 0; i < kFeatures / 2; ++i) {
      const double angle =
          static_cast<double>(step) / std::pow(50.0, 2.0 * static_cast<double>(i) / kFeatures);
      const double a = in[at + i], b = in[at + i + kFeatures / 2];
      expected[at + i] = a * std::cos(angle) - b * std::sin(angle);
      expected[at + i + kFeatures / 2] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  expect_values(layer(x), expected, 1e-12);
}

TEST(RotaryEmbeddingTest, ErrorsNameTheArgument) {
  EXPECT_ERROR(RotaryEmbedding().build_for({3, 5}), kInvalidArgument,
               "expected an even number of features, got 5");
  EXPECT_ERROR(RotaryEmbedding().build_for({4}), kInvalidArgument,
               "expected examples of shape [steps, ..., features], got [4]");
  EXPECT_ERROR(RotaryEmbedding bad({.max_wavelength = 0.0}), kInvalidArgument,
               "positive max_wavelength");
}

TEST(SwiGLUTest, HasGateUpAndDown) {
  SwiGLU layer(4, {.output_dim = 2, .use_bias = true});
  layer.build_for({3, 5});
  EXPECT_THAT(
      weights_of_layer(layer),
      ElementsAre("swi_glu/gate/kernel [5, 4]", "swi_glu/gate/bias [4]", "swi_glu/up/kernel [5, 4]",
                  "swi_glu/up/bias [4]", "swi_glu/down/kernel [4, 2]", "swi_glu/down/bias [2]"));
}

TEST(SwiGLUTest, ErrorsNameTheArgument) {
  EXPECT_ERROR(SwiGLU bad(0), kInvalidArgument, "SwiGLU");
  EXPECT_ERROR(SwiGLU bad(4, {.output_dim = -1}), kInvalidArgument, "output_dim");
}

TEST(TransformerBlockTest, HasTheWeightsOfItsParts) {
  TransformerBlock block(2, 4, 5, {.num_key_value_heads = 1, .epsilon = 0.125});
  block.build_for({3, 6});
  EXPECT_THAT(weights_of_layer(block),
              ElementsAre("transformer_block/attention_norm/scale [6]",
                          "transformer_block/attention/query/kernel [6, 2, 4]",
                          "transformer_block/attention/key/kernel [6, 1, 4]",
                          "transformer_block/attention/value/kernel [6, 1, 4]",
                          "transformer_block/attention/attention_output/kernel [2, 4, 6]",
                          "transformer_block/feed_forward_norm/scale [6]",
                          "transformer_block/feed_forward/gate/kernel [6, 5]",
                          "transformer_block/feed_forward/up/kernel [6, 5]",
                          "transformer_block/feed_forward/down/kernel [5, 6]"));
}

TEST(TransformerBlockTest, ErrorsNameTheArgument) {
  EXPECT_ERROR(TransformerBlock bad(2, 3, 4), kInvalidArgument, "even number");
  EXPECT_ERROR(TransformerBlock(1, 2, 3).build_for({4}), kInvalidArgument,
               "TransformerBlock: expected examples of shape [steps, channels]");
}

TEST(TransformerBlockTest, DropsInTrainingAlone) {
  TransformerBlock block(2, 2, 3, {.dropout = 0.5});
  block.build_for({3, 4});
  const Tensor x = cast(spread({2, 3, 4}, 1), DType::kFloat32);
  const std::vector<double> still = block(x).to_doubles();
  EXPECT_EQ(block(x).to_doubles(), still);
  EXPECT_NE(block(x, {.training = true}).to_doubles(), still);
}

TEST(TransformerBlockTest, StepsThatDoNotCountChangeNoOther) {
  TransformerBlock block(2, 2, 3, {.use_causal_mask = false});
  block.build_for({3, 4});
  Masking masking;
  masking.build_for({3, 4});
  const Tensor seen = cast(spread({1, 2, 4}, 1), DType::kFloat32);
  const MaskScope scope;
  const Tensor x = masking(concat({seen, Tensor::zeros({1, 1, 4})}, 1));
  const Tensor y = block(x);
  EXPECT_THAT(MaskScope::mask_of(y).to_doubles(), ElementsAre(1.0, 1.0, 0.0));
  TransformerBlock same = block;
  expect_values(slice(y, {0, 0, 0}, {1, 2, 4}), same(seen).to_doubles(), 1e-6);
}

}  // namespace
}  // namespace tutti
