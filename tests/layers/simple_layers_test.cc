// Simple layers, those that merge several inputs, and dropout.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/layers/layer_checks.h"
#include "tests/layers/layer_helpers.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/model/layers/dropout.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/merging.h"

namespace tutti {
namespace {

using namespace layer_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What every layer must do: declared shape, 0 rows, gradients of the shape of the weights.
void check_contract(Layer& layer, const Shape& example, DType dtype = DType::kFloat32) {
  const Shape output = layer.build_for(example);
  SCOPED_TRACE(layer.name());
  for (const std::int64_t rows : {3, 1, 0}) {
    const Tensor x = dtype == DType::kFloat32 ? counting(example.with_front(rows), 0.01)
                                              : Tensor::zeros(example.with_front(rows), dtype);
    for (const bool training : {false, true}) {
      GradientTape tape;
      if (is_floating(dtype)) tape.watch(x);
      const Tensor y = layer(x, {.training = training});
      EXPECT_EQ(y.shape(), output.with_front(rows));
      const std::vector<Variable> weights = layer.trainable_variables();
      const std::vector<Gradient> gradients = tape.gradient(reduce_sum(y * y), weights);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        ASSERT_FALSE(gradients[i].is_none()) << weights[i].name() << " rows " << rows;
        EXPECT_EQ(gradients[i].to_dense().shape(), weights[i].shape());
        for (const double value : gradients[i].to_dense().to_doubles())
          ASSERT_TRUE(std::isfinite(value)) << weights[i].name() << " rows " << rows;
      }
    }
  }
}

TEST(EveryLayer, KeepsItsShapePromiseAlsoForNoRows) {
  Dense dense(4), sequence(4, {.activation = "softmax", .use_bias = false});
  check_contract(dense, {5});
  check_contract(sequence, {2, 5});
  Conv2D conv(4, 3, {.activation = "relu"});
  Conv2D strided(2, {1, 3}, {.strides = 2, .padding = "same", .activation = "gelu"});
  check_contract(conv, {6, 5, 2});
  check_contract(strided, {6, 5, 2});
  MaxPooling2D max_pool;
  MaxPooling2D overlapping(3, {.strides = 2, .padding = "same"});
  AveragePooling2D average_pool({2, 1});
  check_contract(max_pool, {6, 5, 2});
  check_contract(overlapping, {6, 5, 2});
  check_contract(average_pool, {6, 5, 2});
  GlobalAveragePooling2D global_average;
  GlobalMaxPooling2D global_max;
  check_contract(global_average, {6, 5, 2});
  check_contract(global_max, {6, 5, 2});
  Flatten flatten;
  Reshape reshape({-1, 2});
  check_contract(flatten, {6, 5, 2});
  check_contract(reshape, {6, 5, 2});
  Dropout dropout(0.5);
  BatchNormalization normalization, synchronized({.synchronized = true});
  check_contract(dropout, {5});
  check_contract(normalization, {6, 5, 2});
  check_contract(synchronized, {6, 5, 2});
  LocalResponseNormalization lrn({.depth_radius = 1});
  check_contract(lrn, {3, 3, 4});
  Relu relu;
  Softmax softmax;
  LeakyRelu leaky;
  check_contract(relu, {4});
  check_contract(softmax, {4});
  check_contract(leaky, {4});
  Rescaling rescaling(1.0 / 255, {.offset = -1.0});
  check_contract(rescaling, {2, 2, 1});
  check_contract(rescaling, {2, 2, 1}, DType::kUInt8);
  Embedding embedding(7, 3), bag(7, 3);
  check_contract(embedding, {}, DType::kInt64);
  check_contract(bag, {4}, DType::kInt32);
}

TEST(DenseTest, IsActivationOfProductPlusBias) {
  const Tensor kernel = Tensor::from<float>({2, 2}, {1, -2, 3, 4});
  Dense dense(2, {.activation = "relu",
                  .kernel_initializer = initializers::values(kernel),
                  .bias_initializer = initializers::constant(0.5)});
  dense.build_for({2});
  expect_values(dense(Tensor::from<float>({2, 2}, {1, 1, 2, 0})), {4.5, 2.5, 2.5, 0});
  EXPECT_EQ(dense.output_activation(), "relu");
  EXPECT_THAT(error_of([] { Dense bad(0); }), HasSubstr("positive number of units"));
  EXPECT_THAT(error_of([] { Dense bad(1, {.activation = "rleu"}); }),
              HasSubstr("no function is named 'rleu'; expected one of linear, relu, sigmoid"));
}

TEST(DenseTest, OnSequencesEqualsEachPositionAlone) {
  Dense dense(3);
  dense.build_for({4, 2});
  const Tensor x = counting({2, 4, 2}, 0.1);
  const Tensor y = dense(x);
  EXPECT_EQ(y.shape(), (Shape{2, 4, 3}));
  const Tensor flat = dense(reshape(x, {8, 2}));
  EXPECT_EQ(y.to_doubles(), flat.to_doubles());
}

TEST(Conv2DTest, EqualsTheSumOverItsWindow) {
  Conv2D conv(1, 2,
              {.kernel_initializer =
                   initializers::values(Tensor::from<float>({2, 2, 1, 1}, {1, 2, 3, 4}))});
  EXPECT_EQ(conv.build_for({3, 3, 1}), (Shape{2, 2, 1}));
  // x = 0 .. 8: x[i][j] + 2 x[i][j+1] + 3 x[i+1][j] + 4 x[i+1][j+1].
  expect_values(conv(counting({1, 3, 3, 1})), {27, 37, 57, 67});
  EXPECT_THAT(error_of([] { Conv2D bad(1, 3, {.padding = "causal"}); }),
              HasSubstr("'valid' or 'same', got 'causal'"));
  Conv2D large(1, 5);
  EXPECT_THAT(error_of([&] {
                large.build_for({3, 3, 1});
              }),
              HasSubstr("a window of 5 does not fit into a length of 3"));
}

TEST(Pooling2DTest, TakesMaximumAndMean) {
  MaxPooling2D max_pool;
  AveragePooling2D average_pool;
  GlobalAveragePooling2D global_average;
  GlobalMaxPooling2D global_max;
  max_pool.build_for({2, 4, 1});
  average_pool.build_for({2, 4, 1});
  global_average.build_for({2, 4, 1});
  global_max.build_for({2, 4, 1});
  const Tensor x = counting({1, 2, 4, 1});
  expect_values(max_pool(x), {5, 7});
  expect_values(average_pool(x), {2.5, 4.5});
  expect_values(global_average(x), {3.5});
  expect_values(global_max(x), {7});
}

TEST(ReshapeTest, FillsTheOpenDimensionAndRefusesMisfits) {
  Reshape reshape({-1, 2});
  EXPECT_EQ(reshape.build_for({6}), (Shape{3, 2}));
  EXPECT_EQ(reshape(counting({4, 6})).shape(), (Shape{4, 3, 2}));
  Reshape misfit({4});
  EXPECT_THAT(error_of([&] { misfit.build_for({6}); }),
              HasSubstr("examples of shape [6] have 6 elements, which do not fit into [4]"));
}

/// The derivatives of `function` at `x`, computed in `dtype`.
std::vector<double> derivatives_of(const std::string& function, const std::vector<double>& x,
                                   DType dtype) {
  const Tensor points = cast(Tensor::from(Shape{static_cast<std::int64_t>(x.size())}, x), dtype);
  GradientTape tape;
  tape.watch(points);
  const Tensor y = find_activation(function)(points);
  return tape.gradient(reduce_sum(y), points).to_dense().to_doubles();
}

// TensorFlow's, of float64: tests/parity compares all functions with it.
TEST(ActivationTest, DerivativesAtCornersAreThoseOfTheFlatSideInEveryType) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    using ::testing::DoubleNear;
    EXPECT_THAT(derivatives_of("relu", {-1, 0, 1}, dtype), ElementsAre(0, 0, 1));
    EXPECT_THAT(derivatives_of("relu6", {-1, 0, 3, 6, 7}, dtype), ElementsAre(0, 0, 1, 0, 0));
    EXPECT_THAT(derivatives_of("leaky_relu", {0, 1}, dtype), ElementsAre(DoubleNear(0.2, 1e-3), 1));
    EXPECT_THAT(derivatives_of("selu", {0, 1}, dtype),
                ElementsAre(DoubleNear(1.0507, 4e-3), DoubleNear(1.0507, 4e-3)));
    EXPECT_THAT(derivatives_of("elu", {0, 1}, dtype), ElementsAre(1, 1));
    EXPECT_THAT(derivatives_of("hard_sigmoid", {-3, 0, 3}, dtype),
                ElementsAre(0, DoubleNear(1.0 / 6, 1e-3), 0));
    EXPECT_THAT(derivatives_of("hard_silu", {-3, 3}, dtype), ElementsAre(0, 1));
    EXPECT_THAT(derivatives_of("softsign", {0}, dtype), ElementsAre(1));
  }
}

// Borders of pictures are black and biases begin at 0, so this corner is met at the first step.
TEST(ActivationTest, BlackPicturesMoveNoBiasThroughRelu) {
  for (const char* activation : {"relu", "relu6"}) {
    for (const std::int64_t filters : {1, 8}) {
      Conv2D conv(filters, 3, {.padding = "same", .activation = activation});
      conv.build_for({6, 6, 2});
      GradientTape tape;
      const Tensor y = conv(Tensor::zeros({2, 6, 6, 2}));
      const std::vector<Gradient> gradients =
          tape.gradient(reduce_sum(y), conv.trainable_variables());
      EXPECT_THAT(gradients[1].to_dense().to_doubles(), ::testing::Each(0.0)) << activation;
    }
  }
}

TEST(ActivationLayersTest, TakeKerasOptions) {
  const Tensor x = Tensor::from<float>({1, 4}, {-2, 0.25f, 1, 7});
  Relu cut({.max_value = 6.0, .negative_slope = 0.5, .threshold = 0.5});
  cut.build_for({4});
  expect_values(cut(x), {-1.25, -0.125, 1, 6});
  Relu six({.max_value = 6.0});
  six.build_for({4});
  expect_values(six(x), {0, 0.25, 1, 6});
  Elu elu({.alpha = 2.0});
  elu.build_for({4});
  expect_values(elu(x), {2 * std::expm1(-2.0), 0.25, 1, 7});
  LeakyRelu steep(1.5);
  steep.build_for({4});
  expect_values(steep(x), {-3, 0.25, 1, 7});
  check_layer([] { return Elu({.alpha = 0.5}); }, {{3}});
  check_layer([] { return Relu({.negative_slope = 0.5, .threshold = 0.1}); }, {{3}});
  EXPECT_THAT(error_of([] { LeakyRelu(-0.1); }), ::testing::HasSubstr("negative_slope"));
  EXPECT_THAT(error_of([] { Relu({.max_value = -1.0}); }), ::testing::HasSubstr("max_value"));
  EXPECT_THAT(error_of([] { Relu({.threshold = -1.0}); }), ::testing::HasSubstr("threshold"));
}

TEST(EmbeddingTest, LooksUpRowsAndHasASparseGradient) {
  Embedding embedding(4, 2, {.embeddings_initializer = initializers::values(counting({4, 2}))});
  embedding.build_for({3});
  const Tensor indices = Tensor::from<std::int64_t>({1, 3}, {3, 0, 3});
  GradientTape tape;
  const Tensor y = embedding(indices);
  expect_values(y, {6, 7, 0, 1, 6, 7});
  const Gradient gradient = tape.gradient(reduce_sum(y), embedding.variables()[0]);
  ASSERT_TRUE(gradient.is_slices());
  expect_values(gradient.to_dense(), {1, 1, 0, 0, 0, 0, 2, 2});
  EXPECT_THAT(error_of([&] {
                embedding(Tensor::from<std::int64_t>({1, 3}, {0, 4, 1}));
              }),
              HasSubstr("layer 'embedding' (Embedding): "));
}

/// A model whose output has the weights of its input.
class TiedEmbedding : public Layer {
 protected:
  Shape build(const Shape& input) override {
    add_layer(embedding_, input);
    return input;
  }
  Tensor call(const Tensor& input, CallContext context) const override {
    return embedding_.logits(embedding_(input, context));
  }

 private:
  Embedding embedding_{3, 2, {.embeddings_initializer = initializers::values(counting({3, 2}))}};
};

TEST(EmbeddingTest, GivesLogitsOfItsOwnRows) {
  TiedEmbedding tied;
  tied.build_for({2});
  const Variable table = tied.variables().at(0);
  const Tensor indices = Tensor::from<std::int64_t>({1, 2}, {2, 0});
  GradientTape tape;
  const Tensor logits = tied(indices);
  EXPECT_EQ(logits.shape(), (Shape{1, 2, 3}));
  // Rows 0 1, 2 3, 4 5.
  expect_values(logits, {5, 23, 41, 1, 3, 5});
  // Each row gets the sum of the rows looked up, and those get the sum of all rows: 4 6 + 6 9.
  const Gradient gradient = tape.gradient(reduce_sum(logits), table);
  expect_values(gradient.to_dense(), {4 + 6, 6 + 9, 4, 6, 4 + 6, 6 + 9});
  EXPECT_THAT(error_of([&] {
                Embedding wide(3, 4);
                wide.build_for({2});
                wide.logits(Tensor::zeros({1, 2}));
              }),
              HasSubstr("features"));
}

TEST(PositionEmbeddingTest, AddsARowForEachStep) {
  PositionEmbedding positions(3,
                              {.embeddings_initializer = initializers::values(counting({3, 2}))});
  positions.build_for({3, 2});
  expect_values(positions(Tensor::full({1, 2, 2}, 10.0)), {10, 11, 12, 13});
  check_layer([] { return PositionEmbedding(4); }, {{3, 2}});
  EXPECT_THAT(error_of([&] {
                positions(Tensor::zeros({1, 4, 2}));
              }),
              HasSubstr("PositionEmbedding: expected at most 3 steps, got 4"));
  EXPECT_THAT(error_of([] { PositionEmbedding bad(0); }), HasSubstr("sequence_length"));
}

TEST(RescalingTest, MakesFloatsOfBytes) {
  Rescaling rescaling(1.0 / 255, {.offset = -0.5});
  rescaling.build_for({2});
  const Tensor y = rescaling(Tensor::from<std::uint8_t>({1, 2}, {0, 255}));
  EXPECT_EQ(y.dtype(), DType::kFloat32);
  expect_values(y, {-0.5, 0.5});
}

template <class L>
std::vector<double> merged(L layer, const std::vector<Tensor>& inputs) {
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape().without_axis(0));
  layer.build_for(shapes);
  return layer(inputs).to_doubles();
}

TEST(MergingTest, ComputesElementByElement) {
  const Tensor a = Tensor::from<float>({1, 3}, {1, 2, 3});
  const Tensor b = Tensor::from<float>({1, 3}, {4, -2, 0.5});
  const Tensor c = Tensor::from<float>({1, 1}, {2});
  using V = std::vector<double>;
  EXPECT_EQ(merged(Add(), {a, b, c}), (V{7, 2, 5.5}));
  EXPECT_EQ(merged(Subtract(), {a, b}), (V{-3, 4, 2.5}));
  EXPECT_EQ(merged(Multiply(), {a, b, c}), (V{8, -8, 3}));
  EXPECT_EQ(merged(Average(), {a, b}), (V{2.5, 0, 1.75}));
  EXPECT_EQ(merged(Maximum(), {a, b, c}), (V{4, 2, 3}));
  EXPECT_EQ(merged(Minimum(), {a, b, c}), (V{1, -2, 0.5}));
  EXPECT_EQ(merged(Concatenate(), {a, b, c}), (V{1, 2, 3, 4, -2, 0.5, 2}));
}

TEST(MergingTest, KeepsPromisesAndGradients) {
  check_layer([] { return Add(); }, {{2, 3}, {2, 3}, {1, 3}});
  check_layer([] { return Subtract(); }, {{3}, {3}});
  check_layer([] { return Multiply(); }, {{2, 3}, {2, 1}});
  check_layer([] { return Average(); }, {{3}, {3}, {3}});
  check_layer([] { return Maximum(); }, {{3}, {3}});
  check_layer([] { return Minimum(); }, {{3}, {3}});
  check_layer([] { return Concatenate(); }, {{2, 3}, {2, 1}});
  check_layer([] { return Concatenate({.axis = 1}); }, {{2, 3}, {1, 3}});
  check_layer([] { return Dot(); }, {{3}, {3}});
  check_layer([] { return Dot({.axes = {2, 1}}); }, {{2, 3}, {3, 4}});
  check_layer([] { return Dot({.axes = {1, 1}, .normalize = true}); }, {{2, 3}, {2}});
}

TEST(DotTest, SumsProductsAlongItsAxes) {
  const Tensor a = layer_tests::counting({2, 2, 3});
  const Tensor b = layer_tests::counting({2, 4, 2}, 0.5);
  Dot dot({.axes = {1, 2}});
  const std::vector<Shape> shapes = {{2, 3}, {4, 2}};
  EXPECT_EQ(dot.build_for(shapes), (std::vector<Shape>{{3, 4}}));
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  std::vector<double> expected;
  for (std::size_t row = 0; row < 2; ++row)
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < 4; ++j)
        expected.push_back(x[row * 6 + i] * y[row * 8 + j * 2] +
                           x[row * 6 + 3 + i] * y[row * 8 + j * 2 + 1]);
  expect_values(dot({a, b}), expected);
  Dot cosine({.normalize = true});
  cosine.build_for(std::vector<Shape>{{2}, {2}});
  expect_values(cosine({Tensor::from<float>({1, 2}, {3, 4}), Tensor::from<float>({1, 2}, {4, 3})}),
                {24.0 / 25});
}

TEST(MergingTest, ErrorsNameLayerAndShapes) {
  auto error_for = [](auto layer, const std::vector<Shape>& shapes) {
    return error_of([&] { layer.build_for(shapes); });
  };
  EXPECT_THAT(error_for(Add(), {{3}}),
              HasSubstr("layer 'add' (Add): Add: expected at least 2 inputs, got 1"));
  EXPECT_THAT(error_for(Add(), {{3}, {2, 3}}), HasSubstr("equal rank, got [3], [2, 3]"));
  EXPECT_THAT(error_for(Multiply(), {{3}, {4}}), HasSubstr("layer 'multiply' (Multiply): "));
  EXPECT_THAT(error_for(Subtract(), {{3}, {3}, {3}}), HasSubstr("expected two inputs, got 3"));
  EXPECT_THAT(error_for(Concatenate(), {{2, 3}, {3, 3}}),
              HasSubstr("expected equal examples but for axis 2, got [2, 3], [3, 3]"));
  EXPECT_THAT(error_for(Concatenate({.axis = 0}), {{2}, {2}}), HasSubstr("the batch is 0"));
  EXPECT_THAT(error_for(Dot(), {{3}, {4}}), HasSubstr("got [3] and [4]"));
  Dense dense(2);
  dense.build_for({3});
  EXPECT_THAT(error_of([&] {
                dense({Tensor::ones({1, 3}), Tensor::ones({1, 3})});
              }),
              HasSubstr("layer 'dense' (Dense): expected one input, got 2"));
}

std::vector<double> dropped(const Dropout& layer, const RandomContext& context, const Tensor& x) {
  RandomContextScope scope(context);
  return layer(x, {.training = true}).to_doubles();
}

TEST(DropoutTest, DropsAtItsRateAndKeepsTheMean) {
  Dropout layer(0.25);
  layer.build_for({1000});
  const Tensor x = Tensor::ones({100, 1000});
  const std::vector<double> y = dropped(layer, {.seed = 3, .step = 1}, x);
  double zeros = 0.0;
  for (const double value : y) {
    if (value == 0.0) {
      ++zeros;
    } else {
      ASSERT_FLOAT_EQ(value, 1.0 / 0.75);
    }
  }
  // Five standard deviations of a binomial.
  EXPECT_NEAR(zeros, 25'000, 5 * std::sqrt(100'000 * 0.25 * 0.75));
}

TEST(DropoutTest, OutsideTrainingAndAtRateZeroIsTheIdentity) {
  Dropout layer(0.5), none(0.0);
  layer.build_for({4});
  none.build_for({4});
  const Tensor x = layer_tests::counting({2, 4});
  EXPECT_EQ(layer(x).to_doubles(), x.to_doubles());
  EXPECT_EQ(none(x, {.training = true}).to_doubles(), x.to_doubles());
  EXPECT_THAT(error_of([] { Dropout bad(1.0); }), ::testing::HasSubstr("[0, 1), got 1"));
}

TEST(DropoutTest, MaskDependsOnSeedStepReplicaLayerAndCallAlone) {
  set_random_seed(0);
  Dropout layer(0.5), other(0.5);
  layer.build_for({64});
  other.build_for({64});
  const Tensor x = Tensor::ones({4, 64});
  const RandomContext context{.seed = 1, .step = 2, .replica = 3};
  const std::vector<double> mask = dropped(layer, context, x);
  EXPECT_EQ(dropped(layer, context, x), mask) << "a replayed step draws the same";
  EXPECT_NE(dropped(layer, {.seed = 9, .step = 2, .replica = 3}, x), mask);
  EXPECT_NE(dropped(layer, {.seed = 1, .step = 9, .replica = 3}, x), mask);
  EXPECT_NE(dropped(layer, {.seed = 1, .step = 2, .replica = 9}, x), mask);
  EXPECT_NE(dropped(other, context, x), mask);
  std::vector<double> elsewhere;
  Executor::system().start("other", [&] { elsewhere = dropped(layer, context, x); })->join();
  EXPECT_EQ(elsewhere, mask) << "the thread does not matter";
  RandomContextScope scope(context);
  EXPECT_EQ(layer(x, {.training = true}).to_doubles(), mask);
  EXPECT_NE(layer(x, {.training = true}).to_doubles(), mask) << "the second call of a step";
}

TEST(DropoutTest, GradientHasTheMaskOfTheForwardPass) {
  Dropout layer(0.5);
  layer.build_for({32});
  const Tensor x = Tensor::ones({2, 32});
  GradientTape tape;
  tape.watch(x);
  const Tensor y = layer(x, {.training = true});
  EXPECT_EQ(tape.gradient(reduce_sum(y), x).to_dense().to_doubles(), y.to_doubles());
}

}  // namespace
}  // namespace tutti
