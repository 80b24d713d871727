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
  EXPECT_ERROR(loss.per_example(Tensor::zeros({2}), x), kInvalidArgument, "[batch, steps, ...]");
}

TEST(MaskTest, RefusesMasksThatDoNotFit) {
  const MaskScope masks;
  const Tensor x = gappy();
  EXPECT_ERROR(MaskScope::set_mask(x, Tensor::ones({2, 3})), kInvalidArgument, "bool");
  EXPECT_ERROR(MaskScope::set_mask(x, Tensor::ones({2, 4}, DType::kBool)), kInvalidArgument,
               "[2, 3, 1]");
}

}  // namespace
}  // namespace tutti
