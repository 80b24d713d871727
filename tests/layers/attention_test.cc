// Tests attention, its caches, other parts of transformers, and step masks in all layers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/layers/layer_checks.h"
#include "tests/support/seen_ops.h"
#include "tutti/model/layers/convolution.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/key_value_cache.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/multi_head_attention.h"
#include "tutti/model/layers/pooling.h"
#include "tutti/model/layers/recurrent.h"
#include "tutti/model/layers/transformer.h"

namespace tutti::testing::attention_test {

// Here the numbers of queries and keys differ. In tests/parity, which compares with Keras, they are
// equal.
TEST(MultiHeadAttentionTest, RotatesEachQueryByItsPosition) {
  const ExactLayers exact;
  MultiHeadAttention layer(4, 4, {.num_key_value_heads = 2, .rotary_max_wavelength = 50.0});
  layer.build_for(std::vector<Shape>{{5, 2}, {3, 2}});
  const Tensor query = spread({1, 5, 2}, 41), value = spread({1, 3, 2}, 42);
  const Tensor first = slice(query, {0, 0, 0}, {-1, 3, -1});
  expect_values(slice(layer(std::vector<Tensor>{query, value}), {0, 0, 0}, {-1, 3, -1}),
                layer(std::vector<Tensor>{first, value}).to_doubles(), 1e-9);
}

TEST(MultiHeadAttentionTest, FullyMaskedQueryYieldsOnlyBias) {
  // Masks all keys for the second query of the first example, and for all queries of the second
  // example.
  const Tensor mask = Tensor::from<float>({2, 2, 3}, {1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  for (const double dropout : {0.0, 0.5}) {
    MultiHeadAttention layer(2, 3, {.dropout = dropout, .with_mask = true});
    layer.build_for(std::vector<Shape>{{2, 4}, {3, 4}, {2, 3}});
    for (Variable weight : layer.variables())
      weight.assign(cast(spread(weight.shape(), 3), DType::kFloat32));
    const Tensor query = cast(spread({2, 2, 4}, 11), DType::kFloat32);
    const Tensor value = cast(spread({2, 3, 4}, 12), DType::kFloat32);
    GradientTape tape;
    tape.watch(value);
    const Tensor y = layer(std::vector<Tensor>{query, value, mask}, {.training = true});
    const Gradient gradient = tape.gradient(reduce_sum(y), value);
    const std::vector<double> rows = y.to_doubles();
    const std::vector<double> bias = layer.variables().back().value().to_doubles();
    for (std::size_t i = 4; i < rows.size(); ++i) EXPECT_EQ(rows[i], bias[i % 4]) << i;
    EXPECT_NE(std::vector<double>(rows.begin(), rows.begin() + 4), bias);
    const std::vector<double> moved = gradient.to_dense().to_doubles();
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const bool is_hidden = i / 4 == 1 || i / 4 > 2;
      if (!is_hidden) continue;
      EXPECT_EQ(moved[i], 0.0) << "hidden value " << i;
    }
  }
}

TEST(MultiHeadAttentionTest, UsesFusedOperationWhenEquivalent) {
  const Tensor x = cast(spread({2, 3, 4}, 1), DType::kFloat32);
  const Tensor mask = Tensor::ones({2, 3, 3});
  const auto is_one_operation = [&](const MultiHeadAttentionOptions& options, bool training) {
    MultiHeadAttention layer(2, 3, options);
    std::vector<Tensor> inputs = {x};
    if (options.with_mask) inputs = {x, x, mask};
    std::vector<Shape> shapes;
    for (const Tensor& input : inputs) shapes.push_back(input.shape().without_axis(0));
    layer.build_for(shapes);
    const SeenOps seen;
    (void)layer(inputs, {.training = training});
    return seen.ops.contains(OpId::kAttention);
  };
  EXPECT_TRUE(is_one_operation({}, true));
  EXPECT_TRUE(is_one_operation({.use_causal_mask = true}, true));
  EXPECT_TRUE(is_one_operation({.dropout = 0.5}, false));
  EXPECT_FALSE(is_one_operation({.dropout = 0.5}, true));
  EXPECT_FALSE(is_one_operation({.with_mask = true}, false));
}

TEST(MultiHeadAttentionTest, WeightsMatchKeras) {
  MultiHeadAttention layer(2, 3);
  layer.build_for({4, 8});
  EXPECT_THAT(
      weights_of_layer(layer),
      ElementsAre(
          "multi_head_attention/query/kernel [8, 2, 3]", "multi_head_attention/query/bias [2, 3]",
          "multi_head_attention/key/kernel [8, 2, 3]", "multi_head_attention/key/bias [2, 3]",
          "multi_head_attention/value/kernel [8, 2, 3]", "multi_head_attention/value/bias [2, 3]",
          "multi_head_attention/attention_output/kernel [2, 3, 8]",
          "multi_head_attention/attention_output/bias [8]"));
}

TEST(MultiHeadAttentionTest, GroupedQueryHeadsShareKeysAndValues) {
  MultiHeadAttention layer(4, 3, {.num_key_value_heads = 2, .value_dim = 5, .use_bias = false});
  layer.build_for({4, 8});
  EXPECT_THAT(weights_of_layer(layer),
              ElementsAre("multi_head_attention/query/kernel [8, 4, 3]",
                          "multi_head_attention/key/kernel [8, 2, 3]",
                          "multi_head_attention/value/kernel [8, 2, 5]",
                          "multi_head_attention/attention_output/kernel [4, 5, 8]"));
}

TEST(MultiHeadAttentionTest, ErrorsNameLayerAndShapes) {
  auto error_for = [](MultiHeadAttention layer, const std::vector<Shape>& shapes) {
    return error_of([&] { layer.build_for(shapes); });
  };
  EXPECT_THAT(error_for(MultiHeadAttention(1, 2), {{4}}),
              HasSubstr("layer 'multi_head_attention' (MultiHeadAttention): MultiHeadAttention: "
                        "expected examples of shape [steps, channels], got [4]"));
  EXPECT_THAT(error_for(MultiHeadAttention(1, 2), {{3, 4}, {3, 4}, {2, 4}}),
              HasSubstr("equal numbers of keys and values"));
  EXPECT_THAT(error_for(MultiHeadAttention(1, 2, {.with_mask = true}), {{3, 4}, {2, 4}, {3, 3}}),
              HasSubstr("expected a mask of shape [3, 2], got [3, 3]"));
  EXPECT_INVALID(MultiHeadAttention bad(0, 2), "positive numbers");
  EXPECT_INVALID(MultiHeadAttention bad(4, 2, {.num_key_value_heads = 3}),
                 "expected num_key_value_heads to divide 4 heads, got 3");
  EXPECT_INVALID(MultiHeadAttention bad(4, 3, {.rotary_max_wavelength = 10}),
                 "expected an even number of features, got 3");
}

TEST(MultiHeadAttentionTest, RegularizesAndConstrainsAllKernelsAndBiases) {
  MultiHeadAttention layer(2, 3,
                           {.bias_initializer = "ones",
                            .kernel_regularizer = regularizers::l2(0.5),
                            .bias_regularizer = regularizers::l1(1.0),
                            .kernel_constraint = constraints::non_neg(),
                            .bias_constraint = constraints::non_neg()});
  layer.build_for({4, 5});
  const std::vector<Tensor> losses = layer.losses();
  ASSERT_EQ(losses.size(), 8u);
  EXPECT_DOUBLE_EQ(losses[1].item_double(), 6.0);
  for (Variable weight : layer.variables()) weight.assign(weight.value() - 2.0);
  layer.apply_constraints();
  for (const Variable& weight : layer.variables())
    for (const double value : weight.value().to_doubles()) EXPECT_EQ(value, 0.0) << weight.name();
}

constexpr std::int64_t kSteps = 7, kFeatures = 4;

/// Layer with learned and rotary positions, two blocks, and keys shared by several heads.
class Decoder : public Layer {
 protected:
  Shape build(const Shape& input) override {
    add_layer(positions_, input);
    add_layer(first_, input);
    return add_layer(second_, input);
  }
  Tensor call(const Tensor& input, CallContext context) const override {
    return second_(first_(positions_(input, context), context), context);
  }

 private:
  PositionEmbedding positions_{kSteps};
  TransformerBlock first_{2, 4, 5, {.num_key_value_heads = 1}};
  TransformerBlock second_{2, 2, 3, {.rotary_max_wavelength = std::nullopt}};
};

Tensor steps_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  return slice(x, {0, first, 0}, {-1, count, -1});
}

TEST(KeyValueCacheTest, IncrementalStepsMatchOneCall) {
  const ExactLayers exact;
  Decoder decoder;
  decoder.build_for({kSteps, kFeatures});
  const Tensor x = spread({3, kSteps, kFeatures}, 1);
  const Tensor whole = decoder(x);
  for (const std::vector<std::int64_t>& parts :
       {std::vector<std::int64_t>{7}, {4, 3}, {1, 1, 1, 1, 1, 1, 1}, {3, 1, 2, 1}}) {
    KeyValueCache cache;
    for (const std::int64_t count : parts) {
      const std::int64_t first = cache.steps();
      const Tensor y = cache.call(decoder, steps_of(x, first, count));
      expect_values(y, steps_of(whole, first, count).to_doubles(), 1e-12);
      EXPECT_EQ(cache.steps(), first + count);
    }
  }
}

TEST(KeyValueCacheTest, RotaryPositionsContinueAcrossCalls) {
  const ExactLayers exact;
  class Turned : public Layer {
   protected:
    Shape build(const Shape& input) override {
      add_layer(attention_, input);
      return add_layer(rotation_, input);
    }
    Tensor call(const Tensor& input, CallContext context) const override {
      return rotation_(attention_(input, context), context);
    }

   private:
    MultiHeadAttention attention_{1, 2, {.use_causal_mask = true}};
    RotaryEmbedding rotation_;
  };
  Turned layer;
  layer.build_for({kSteps, kFeatures});
  const Tensor x = spread({1, kSteps, kFeatures}, 1);
  KeyValueCache cache;
  (void)cache.call(layer, steps_of(x, 0, 5));
  expect_values(cache.call(layer, steps_of(x, 5, 2)), steps_of(layer(x), 5, 2).to_doubles(), 1e-12);
}

TEST(KeyValueCacheTest, FailedCallKeepsCacheUnchanged) {
  Decoder decoder;
  decoder.build_for({kSteps, kFeatures});
  const Tensor x = cast(spread({2, kSteps, kFeatures}, 1), DType::kFloat32);
  KeyValueCache cache;
  (void)cache.call(decoder, steps_of(x, 0, 5));
  EXPECT_INVALID((void)cache.call(decoder, steps_of(x, 4, 3)),
                 "expected at most 7 steps, got 8; try shorter sequences, or generate()");
  EXPECT_INVALID((void)cache.call(decoder, x.detached_rows(0, 1)), "PositionEmbedding");
  EXPECT_INVALID((void)cache.call(decoder, steps_of(x.detached_rows(0, 1), 5, 1)),
                 "KeyValueCache: expected a batch of 2 as in the first call, got 1");
  EXPECT_INVALID((void)cache.call(decoder, Tensor::zeros({2})),
                 "expected [batch, steps, ...], got [2]");
  EXPECT_EQ(cache.steps(), 5);
  expect_values(cache.call(decoder, steps_of(x, 5, 2)), steps_of(decoder(x), 5, 2).to_doubles(),
                1e-5);
}

TEST(KeyValueCacheTest, RejectsLayersThatMixSteps) {
  const auto refusal = [](Layer&& layer) {
    layer.build_for({kSteps, kFeatures});
    KeyValueCache cache;
    return error_of([&] { (void)cache.call(layer, Tensor::zeros({1, kSteps, kFeatures})); });
  };
  const auto not_kept = HasSubstr(
      "the layer's result depends on earlier steps, which a KeyValueCache "
      "does not store; call generate() with .use_cache = false");
  EXPECT_THAT(refusal(GRU(2)), not_kept);
  EXPECT_THAT(refusal(Conv1D(2, 2)), not_kept);
  EXPECT_THAT(refusal(MaxPooling1D(2)), not_kept);
  EXPECT_THAT(refusal(GlobalAveragePooling1D()), not_kept);
  EXPECT_THAT(refusal(MultiHeadAttention(1, 2)), HasSubstr("needs .use_causal_mask = true"));
  EXPECT_THAT(refusal(Dense(2)), HasSubstr("contains a MultiHeadAttention, found none"));
}

TEST(KeyValueCacheTest, RejectsMaskedSteps) {
  MultiHeadAttention attention(1, 2, {.use_causal_mask = true});
  attention.build_for({2, kFeatures});
  const MaskScope scope;
  const Tensor x = Tensor::zeros({1, 2, kFeatures});
  MaskScope::set_mask(x, cast(Tensor::from<float>({1, 2}, {0, 1}), DType::kBool));
  KeyValueCache cache;
  EXPECT_ERROR((void)cache.call(attention, x), kUnimplemented, "without a mask");
}

TEST(RMSNormalizationTest, ScaleHasShapeOfNormalizedAxes) {
  RMSNormalization steps({.axes = {1}});
  steps.build_for({4, 3});
  EXPECT_THAT(weights_of_layer(steps), ElementsAre("rms_normalization/scale [4]"));
  EXPECT_INVALID(RMSNormalization({.axes = {3}}).build_for({4, 3}),
                 "RMSNormalization: expected axes from 1 to 2");
  EXPECT_INVALID(RMSNormalization bad({.epsilon = 0.0}), "expected a positive epsilon");
}

TEST(RMSNormalizationTest, Normalizes16BitInputsInFloat32) {
  RMSNormalization layer;
  layer.set_dtype_policy("mixed_float16");
  layer.build_for({2});
  // The square of 300 exceeds the range of float16.
  const Tensor y = layer(cast(Tensor::from<float>({1, 2}, {300, -300}), DType::kFloat16));
  EXPECT_EQ(y.dtype(), DType::kFloat16);
  EXPECT_THAT(y.to_doubles(), ElementsAre(1.0, -1.0));
}

// The angles are the same as in MultiHeadAttention, which tests/parity compares with Keras.
TEST(RotaryEmbeddingTest, RotatesEachStepByItsPosition) {
  const ExactLayers exact;
  RotaryEmbedding layer;
  layer.build_for({3, 1, 2});
  const Tensor x = Tensor::from<double>({1, 3, 1, 2}, {1, 0, 1, 0, 1, 0});
  expect_values(layer(x), {1, 0, std::cos(1), std::sin(1), std::cos(2), std::sin(2)}, 1e-12);
}

TEST(RotaryEmbeddingTest, ErrorsNameTheArgument) {
  EXPECT_INVALID(RotaryEmbedding().build_for({3, 5}), "expected an even number of features, got 5");
  EXPECT_INVALID(RotaryEmbedding().build_for({4}),
                 "expected examples of shape [steps, ..., features], got [4]");
  EXPECT_INVALID(RotaryEmbedding bad({.max_wavelength = 0.0}), "positive max_wavelength");
  RotaryEmbedding of_heads, of_steps;
  of_heads.build_for({3, 2, 4});
  of_steps.build_for({3, 4});
  EXPECT_INVALID(
      (void)of_heads(Tensor::zeros({3, 2, 4})),
      "expected a batch of examples of shape [3, 2, 4], got [3, 2, 4]; call expand_dims(x, 0)");
  EXPECT_INVALID(
      (void)of_steps(Tensor::zeros({3, 4})),
      "expected a batch of examples of shape [3, 4], got [3, 4]; call expand_dims(x, 0)");
}

TEST(SwiGLUTest, HasGateUpDownWeightsAndValidatesArguments) {
  SwiGLU layer(4, {.output_dim = 2, .use_bias = true});
  layer.build_for({3, 5});
  EXPECT_THAT(
      weights_of_layer(layer),
      ElementsAre("swi_glu/gate/kernel [5, 4]", "swi_glu/gate/bias [4]", "swi_glu/up/kernel [5, 4]",
                  "swi_glu/up/bias [4]", "swi_glu/down/kernel [4, 2]", "swi_glu/down/bias [2]"));
  EXPECT_INVALID(SwiGLU bad(0), "SwiGLU");
  EXPECT_INVALID(SwiGLU bad(4, {.output_dim = -1}), "output_dim");
}

TEST(TransformerBlockTest, HasWeightsOfItsSublayers) {
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

TEST(TransformerBlockTest, AppliesDropoutOnlyInTrainingAndValidatesArguments) {
  TransformerBlock block(2, 2, 3, {.dropout = 0.5});
  block.build_for({3, 4});
  const Tensor x = cast(spread({2, 3, 4}, 1), DType::kFloat32);
  const std::vector<double> still = block(x).to_doubles();
  EXPECT_EQ(block(x).to_doubles(), still);
  EXPECT_NE(block(x, {.training = true}).to_doubles(), still);
  EXPECT_INVALID(TransformerBlock bad(2, 3, 4), "even number");
  EXPECT_INVALID(TransformerBlock(1, 2, 3).build_for({4}),
                 "TransformerBlock: expected examples of shape [steps, channels]");
}

TEST(TransformerBlockTest, MaskedStepsDoNotAffectUnmaskedSteps) {
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

/// Returns two sequences of three steps. In the second sequence, only the first step is valid.
Tensor gappy() { return Tensor::from<float>({2, 3, 1}, {1, 2, 3, 4, 0, 0}); }

std::vector<double> mask_values(const Tensor& x) {
  const Tensor mask = MaskScope::mask_of(x);
  return mask.defined() ? mask.to_doubles() : std::vector<double>{};
}

template <class L>
L built(L layer, const std::vector<Shape>& shapes = {{3, 1}}) {
  layer.build_for(shapes);
  return layer;
}

TEST(MaskTest, MaskingAndEmbeddingCreateMasks) {
  const MaskScope masks;
  const Tensor x = built(Masking())(gappy());
  EXPECT_THAT(mask_values(x), ElementsAre(1, 1, 1, 1, 0, 0));
  const Tensor nines = built(Masking(9.0))(Tensor::from<float>({1, 3, 1}, {1, 9, 0}));
  EXPECT_THAT(mask_values(nines), ElementsAre(1, 0, 1));
  expect_values(nines, {1, 0, 0});
  const Tensor words = Tensor::from<std::int64_t>({1, 3}, {2, 0, 1});
  EXPECT_THAT(mask_values(built(Embedding(3, 2, {.mask_zero = true}), {{3}})(words)),
              ElementsAre(1, 0, 1));
  EXPECT_THAT(mask_values(built(Embedding(3, 2), {{3}})(words)), IsEmpty());
}

TEST(MaskTest, PerStepLayersPropagateMask) {
  const MaskScope masks;
  const Tensor x = built(Masking())(gappy());
  const auto kept = ElementsAre(1, 1, 1, 1, 0, 0);
  EXPECT_THAT(mask_values(built(Dense(2))(x)), kept);
  EXPECT_THAT(mask_values(built(Relu())(x)), kept);
  EXPECT_THAT(mask_values(built(Dropout(0.5))(x, {.training = true})), kept);
  EXPECT_THAT(mask_values(built(LayerNormalization())(x)), kept);
  EXPECT_THAT(mask_values(built(TimeDistributed(Dense(2)))(x)), kept);
  EXPECT_THAT(mask_values(built(LSTM(2, {.return_sequences = true}))(x)), kept);
  EXPECT_THAT(mask_values(built(BatchNormalization())(x)), kept);
  EXPECT_THAT(mask_values(built(LSTM(2))(x)), IsEmpty());
  EXPECT_THAT(mask_values(built(Flatten())(x)), IsEmpty());
  EXPECT_ERROR(built(BatchNormalization())(x, {.training = true}), kUnimplemented,
               "LayerNormalization");
}

TEST(MaskTest, IsForgottenAtEndOfScope) {
  {
    const MaskScope masks;
    EXPECT_FALSE(MaskScope::has_masks());
    built(Masking())(gappy());
    EXPECT_TRUE(MaskScope::has_masks());
  }
  EXPECT_FALSE(MaskScope::has_masks());
  const Tensor x = built(Masking())(gappy());
  EXPECT_FALSE(MaskScope::mask_of(x).defined())
      << "a layer called outside a MaskScope stored a mask";
}

TEST(MaskTest, MergedMaskIsUnionOfInputMasks) {
  const MaskScope masks;
  const Tensor x = built(Masking())(gappy());
  const Tensor y = built(Masking(2.0))(gappy());
  const Tensor plain = counting({2, 3, 1});
  const std::vector<Shape> two = {{3, 1}, {3, 1}};
  EXPECT_THAT(mask_values(built(Add(), two)({x, y})), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(mask_values(built(Average(), two)({x, x})), ElementsAre(1, 1, 1, 1, 0, 0));
  EXPECT_THAT(mask_values(built(Add(), two)({x, plain})), IsEmpty());
  EXPECT_THAT(mask_values(built(Concatenate(), two)({x, x})), ElementsAre(1, 1, 1, 1, 0, 0));
  EXPECT_THAT(mask_values(built(Concatenate({.axis = 1}), two)({x, plain})),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1));
  EXPECT_THAT(mask_values(built(Multiply(), two)({x, x})), IsEmpty());
}

TEST(MaskTest, AveragePoolingOfFullyMaskedSequenceIsZero) {
  const MaskScope masks;
  const Tensor none = built(Masking())(Tensor::zeros({1, 3, 1}));
  expect_values(built(GlobalAveragePooling1D())(none), {0});
}

TEST(MaskTest, LossesAverageOverUnmaskedSteps) {
  const Tensor labels = Tensor::from<float>({2, 3, 1}, {0, 0, 0, 1, 1, 1});
  const Loss loss("mse");
  expect_values(loss.per_example(labels, gappy()), {14.0 / 3, 11.0 / 3});
  const MaskScope masks;
  const Tensor x = built(Masking())(gappy());
  expect_values(loss.per_example(labels, x), {14.0 / 3, 9});
  EXPECT_FLOAT_EQ(static_cast<float>(loss(labels, x).item_double()), 41.0f / 6);
  const Tensor classes = Tensor::from<std::int64_t>({2, 3}, {0, 0, 0, 0, 0, 0});
  const Tensor logits = built(Dense(2, {.kernel_initializer = "zeros"}))(x);
  expect_values(Loss("sparse_categorical_crossentropy").per_example(classes, logits),
                {std::log(2.0), std::log(2.0)});
  EXPECT_INVALID(loss.per_example(Tensor::zeros({2}), x), "[batch, steps, ...]");
}

TEST(MaskTest, RejectsMismatchedMasks) {
  const MaskScope masks;
  const Tensor x = gappy();
  EXPECT_INVALID(MaskScope::set_mask(x, Tensor::ones({2, 3})), "bool");
  EXPECT_INVALID(MaskScope::set_mask(x, Tensor::ones({2, 4}, DType::kBool)), "[2, 3, 1]");
}

TEST(RecurrentTest, WeightsMatchKeras) {
  LSTM lstm(3);
  lstm.build_for({5, 2});
  EXPECT_THAT(weights_of_layer(lstm),
              ElementsAre("lstm/lstm_cell/kernel [2, 12]",
                          "lstm/lstm_cell/recurrent_kernel [3, 12]", "lstm/lstm_cell/bias [12]"));
  expect_values(lstm.variables()[2].value(), {0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0});
  GRU gru(3), before(3, {.reset_after = false});
  gru.build_for({5, 2});
  before.build_for({5, 2});
  EXPECT_THAT(weights_of_layer(gru),
              ElementsAre("gru/gru_cell/kernel [2, 9]", "gru/gru_cell/recurrent_kernel [3, 9]",
                          "gru/gru_cell/bias [2, 9]"));
  EXPECT_EQ(before.variables()[2].shape(), (Shape{9}));
  SimpleRNN rnn(3, {.use_bias = false});
  rnn.build_for({5, 2});
  EXPECT_THAT(weights_of_layer(rnn),
              ElementsAre("simple_rnn/simple_rnn_cell/kernel [2, 3]",
                          "simple_rnn/simple_rnn_cell/recurrent_kernel [3, 3]"));
}

TEST(RecurrentTest, AcceptsEmptySequences) {
  LSTM no_steps(3, {.return_sequences = true});
  no_steps.build_for({0, 2});
  EXPECT_EQ(no_steps(Tensor::zeros({2, 0, 2})).shape(), (Shape{2, 0, 3}));
}

TEST(RecurrentTest, InitialStatesContinueSequence) {
  LSTM layer(3, {.return_state = true});
  layer.build_for(std::vector<Shape>{{4, 2}, {3}, {3}});
  const Tensor x = cast(spread({2, 4, 2}, 3), DType::kFloat32);
  const Tensor zeros = Tensor::zeros({2, 3});
  const std::vector<Tensor> whole = layer.apply(std::vector<Tensor>{x, zeros, zeros});
  const std::vector<Tensor> half =
      layer.apply(std::vector<Tensor>{slice(x, {0, 0, 0}, {-1, 2, -1}), zeros, zeros});
  const std::vector<Tensor> rest =
      layer.apply(std::vector<Tensor>{slice(x, {0, 2, 0}, {-1, 2, -1}), half[1], half[2]});
  expect_values(rest[0], whole[0].to_doubles(), 1e-6);
  expect_values(rest[2], whole[2].to_doubles(), 1e-6);
  EXPECT_INVALID(layer({x, zeros, zeros}), "layer 'lstm' (LSTM): expected one result, got 3");
}

TEST(RecurrentTest, DropoutMaskIsSharedByAllSteps) {
  // All kernel weights are 1, so the number of dropped inputs is visible in each step.
  SimpleRNN layer(1, {.activation = "linear",
                      .use_bias = false,
                      .kernel_initializer = "ones",
                      .recurrent_initializer = "zeros",
                      .dropout = 0.5,
                      .return_sequences = true});
  layer.build_for({6, 4});
  const std::vector<double> y = layer(Tensor::ones({8, 6, 4}), {.training = true}).to_doubles();
  for (std::size_t row = 0; row < 8; ++row)
    for (std::size_t t = 1; t < 6; ++t) EXPECT_EQ(y[row * 6 + t], y[row * 6]);
  EXPECT_NE(*std::min_element(y.begin(), y.end()), *std::max_element(y.begin(), y.end()));
}

TEST(BidirectionalTest, HasWeightsForBothDirections) {
  Bidirectional layer(GRU(2, {.return_sequences = true}));
  EXPECT_EQ(layer.build_for({3, 2}), (Shape{3, 4}));
  EXPECT_EQ(layer.variables()[0].name(), "bidirectional/forward_gru/gru_cell/kernel");
  EXPECT_EQ(layer.variables()[5].name(), "bidirectional/backward_gru/gru_cell/bias");
  for (const char* mode : {"sum", "mul", "ave"}) {
    Bidirectional merged(LSTM(2), {.merge_mode = mode});
    EXPECT_EQ(merged.build_for({3, 2}), (Shape{2})) << mode;
  }
  EXPECT_INVALID(Bidirectional bad(LSTM(2), {.merge_mode = "max"}),
                 "'concat', 'sum', 'mul' or 'ave', got 'max'");
  EXPECT_INVALID(Bidirectional bad(LSTM(2, {.return_state = true})), "returns its states");
}

TEST(RecurrentTest, ErrorsNameLayerAndShapes) {
  auto error_for = [](auto layer, const std::vector<Shape>& shapes) {
    return error_of([&] { layer.build_for(shapes); });
  };
  EXPECT_THAT(error_for(LSTM(3), {{4}}),
              HasSubstr("layer 'lstm' (LSTM): LSTM: expected examples of shape [steps, channels]"));
  EXPECT_THAT(error_for(LSTM(3), {{4, 2}, {3}}),
              HasSubstr("optionally with initial states (2 for this layer), got 2 inputs"));
  EXPECT_THAT(error_for(GRU(3), {{4, 2}, {2}}), HasSubstr("initial states of shape [3], got [2]"));
  EXPECT_INVALID(GRU bad(0), "a positive number of units");
  LSTM lstm(3);
  lstm.build_for({4, 2});
  EXPECT_INVALID(lstm(Tensor::ones({1, 4, 5})), "layer 'lstm' (LSTM): ");
}

}  // namespace tutti::testing::attention_test
