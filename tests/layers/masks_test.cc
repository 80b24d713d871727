// Masks: who makes them, where they go, where they end.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/layer.h"

#include <cmath>

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"

namespace tutti {
namespace {

using namespace layer_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two sequences of three steps; the second has one step only.
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
  EXPECT_THAT(error_of([&] { built(BatchNormalization())(x, {.training = true}); }),
              HasSubstr("LayerNormalization"));
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

TEST(MaskTest, StatesStayWhereAStepDoesNotCount) {
  const MaskScope masks;
  const LSTM layer = built(LSTM(2, {.return_sequences = true, .return_state = true}));
  const Tensor x = built(Masking())(gappy());
  const std::vector<Tensor> masked = layer.apply({{x}});
  const std::vector<Tensor> single = layer.apply({{Tensor::from<float>({1, 1, 1}, {4})}});
  const std::vector<double> all = masked[0].to_doubles(), last = single[1].to_doubles();
  for (std::size_t step = 0; step < 3; ++step)
    for (std::size_t i = 0; i < 2; ++i) EXPECT_FLOAT_EQ(all[6 + 2 * step + i], last[i]) << step;
  EXPECT_FLOAT_EQ(masked[2].to_doubles()[2], single[2].to_doubles()[0]) << "the cell's state";
}

TEST(MaskTest, ResultsOfStepsThatDoNotCountAreZeroWhereAsked) {
  const MaskScope masks;
  const Tensor x = built(Masking())(gappy());
  RecurrentOptions options{.return_sequences = true, .zero_output_for_mask = true};
  const LSTM layer = built(LSTM(1, options));
  const std::vector<double> zeroed = layer(x).to_doubles();
  for (std::size_t step = 0; step < 6; ++step) EXPECT_EQ(zeroed[step] == 0.0, step >= 4) << step;
  options.return_sequences = false;
  const std::vector<double> last = built(GRU(1, options))(x).to_doubles();
  EXPECT_NE(last[0], 0.0);
  EXPECT_EQ(last[1], 0.0) << "Keras's rule: the last step is one that does not count";
}

TEST(MaskTest, BidirectionalSequencesAreZeroWhereAStepDoesNotCount) {
  const MaskScope masks;
  const Bidirectional layer =
      built(Bidirectional(LSTM(1, {.kernel_initializer = initializers::constant(0.5),
                                   .recurrent_initializer = initializers::constant(0.5),
                                   .return_sequences = true,
                                   .unit_forget_bias = false})));
  const std::vector<double> y = layer(built(Masking())(gappy())).to_doubles();
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(y[i] == 0.0, i >= 8) << i;
  // Without sequences: the states after the steps that count.
  const Bidirectional last = built(Bidirectional(GRU(1)));
  EXPECT_THAT(last(built(Masking())(gappy())).to_doubles(), ::testing::Each(::testing::Ne(0.0)));
}

TEST(MaskTest, AveragePoolingTakesTheStepsThatCount) {
  const MaskScope masks;
  const GlobalAveragePooling1D pool = built(GlobalAveragePooling1D());
  expect_values(pool(built(Masking())(gappy())), {2, 4});
  expect_values(pool(gappy()), {2, 4.0 / 3});
  expect_values(pool(built(Masking())(Tensor::zeros({1, 3, 1}))), {0});
  check_layer([] { return GlobalAveragePooling1D(); }, {{3, 2}});
  check_layer([] { return GlobalMaxPooling1D(); }, {{3, 2}});
  check_layer([] { return Masking(); }, {{3, 2}});
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
  EXPECT_THAT(error_of([&] { loss.per_example(Tensor::zeros({2}), x); }),
              HasSubstr("[batch, steps, ...]"));
}

TEST(MaskTest, RefusesMasksThatDoNotFit) {
  const MaskScope masks;
  const Tensor x = gappy();
  EXPECT_THAT(error_of([&] { MaskScope::set_mask(x, Tensor::ones({2, 3})); }), HasSubstr("bool"));
  EXPECT_THAT(error_of([&] {
                MaskScope::set_mask(x, Tensor::ones({2, 4}, DType::kBool));
              }),
              HasSubstr("[2, 3, 1]"));
}

}  // namespace
}  // namespace tutti
