// Tests masks: which layers make and consume them, and recurrent layers that use them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/layer.h"

#include <algorithm>

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/recurrent.h"

namespace tutti::masks_test {
using namespace layer_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns two sequences of three steps; the second has only one valid step.
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

TEST(MaskTest, MaskingAndEmbeddingMakeMasks) {
  const MaskScope masks;
  const Tensor x = built(Masking())(gappy());
  EXPECT_THAT(mask_values(x), ElementsAre(1, 1, 1, 1, 0, 0));
  const Tensor nines = built(Masking(9.0))(Tensor::from<float>({1, 3, 1}, {1, 9, 0}));
  EXPECT_THAT(mask_values(nines), ElementsAre(1, 0, 1));
  expect_values(nines, {1, 0, 0});
  const Tensor words = Tensor::from<std::int64_t>({1, 3}, {2, 0, 1});
  EXPECT_THAT(mask_values(built(Embedding(3, 2, {.mask_zero = true}), {{3}})(words)),
              ElementsAre(1, 0, 1));
  EXPECT_THAT(mask_values(built(Embedding(3, 2), {{3}})(words)), ::testing::IsEmpty());
}

TEST(MaskTest, LayersThatWorkOnEachStepKeepIt) {
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
  EXPECT_THAT(mask_values(built(LSTM(2))(x)), ::testing::IsEmpty());
  EXPECT_THAT(mask_values(built(Flatten())(x)), ::testing::IsEmpty());
  EXPECT_ERROR(built(BatchNormalization())(x, {.training = true}), kUnimplemented,
               "LayerNormalization");
}

TEST(MaskTest, EndsWithItsScope) {
  {
    const MaskScope masks;
    EXPECT_FALSE(MaskScope::has_masks());
    built(Masking())(gappy());
    EXPECT_TRUE(MaskScope::has_masks());
  }
  EXPECT_FALSE(MaskScope::has_masks());
  const Tensor x = built(Masking())(gappy());
  EXPECT_FALSE(MaskScope::mask_of(x).defined()) << "a call of one layer remembers nothing";
}

TEST(MaskTest, MergedInputsCountWhereAnyCounts) {
  const MaskScope masks;
  const Tensor x = built(Masking())(gappy());
  const Tensor y = built(Masking(2.0))(gappy());
  const Tensor plain = counting({2, 3, 1});
  const std::vector<Shape> two = {{3, 1}, {3, 1}};
  EXPECT_THAT(mask_values(built(Add(), two)({x, y})), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(mask_values(built(Average(), two)({x, x})), ElementsAre(1, 1, 1, 1, 0, 0));
  EXPECT_THAT(mask_values(built(Add(), two)({x, plain})), ::testing::IsEmpty());
  EXPECT_THAT(mask_values(built(Concatenate(), two)({x, x})), ElementsAre(1, 1, 1, 1, 0, 0));
  EXPECT_THAT(mask_values(built(Concatenate({.axis = 1}), two)({x, plain})),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1));
  EXPECT_THAT(mask_values(built(Multiply(), two)({x, x})), ::testing::IsEmpty());
}

TEST(MaskTest, AveragePoolingOfNoStepIsZero) {
  const MaskScope masks;
  const Tensor none = built(Masking())(Tensor::zeros({1, 3, 1}));
  expect_values(built(GlobalAveragePooling1D())(none), {0});
}

TEST(MaskTest, LossesTakeTheMeanOverTheStepsThatCount) {
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

TEST(MaskTest, RefusesMasksThatDoNotFit) {
  const MaskScope masks;
  const Tensor x = gappy();
  EXPECT_INVALID(MaskScope::set_mask(x, Tensor::ones({2, 3})), "bool");
  EXPECT_INVALID(MaskScope::set_mask(x, Tensor::ones({2, 4}, DType::kBool)), "[2, 3, 1]");
}

TEST(RecurrentTest, HasKerasWeights) {
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

TEST(RecurrentTest, TakesSequencesWithoutSteps) {
  LSTM no_steps(3, {.return_sequences = true});
  no_steps.build_for({0, 2});
  EXPECT_EQ(no_steps(Tensor::zeros({2, 0, 2})).shape(), (Shape{2, 0, 3}));
}

TEST(RecurrentTest, FirstStatesContinueASequence) {
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
  EXPECT_INVALID(layer({x, zeros, zeros}),
                 "layer 'lstm' (LSTM): has 3 results, but one was asked for");
}

TEST(RecurrentTest, DropoutMasksServeAllSteps) {
  // With a kernel of ones, dropped inputs are missing ones in every step alike.
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

TEST(BidirectionalTest, HasTheWeightsOfBothDirections) {
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
              HasSubstr("alone or with 2 first states, got 2 inputs"));
  EXPECT_THAT(error_for(GRU(3), {{4, 2}, {2}}), HasSubstr("first states of shape [3], got [2]"));
  EXPECT_INVALID(GRU bad(0), "a positive number of units");
  LSTM lstm(3);
  lstm.build_for({4, 2});
  EXPECT_INVALID(lstm(Tensor::ones({1, 4, 5})), "layer 'lstm' (LSTM): ");
}

}  // namespace tutti::masks_test
