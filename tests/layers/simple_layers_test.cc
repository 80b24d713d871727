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

TEST(DenseTest, ErrorsNameTheArgument) {
  Dense relu(2, {.activation = "relu"});
  relu.build_for({3});
  EXPECT_EQ(relu.output_activation(), "relu");
  EXPECT_ERROR(Dense bad(0), kInvalidArgument, "positive number of units");
  EXPECT_ERROR(Dense bad(1, {.activation = "rleu"}), kInvalidArgument,
               "no function is named 'rleu'; expected one of linear, relu, sigmoid");
}

TEST(Conv2DTest, ErrorsNameTheArgument) {
  EXPECT_ERROR(Conv2D bad(1, 3, {.padding = "causal"}), kInvalidArgument,
               "'valid' or 'same', got 'causal'");
  EXPECT_ERROR(Conv2D(1, 5).build_for({3, 3, 1}), kInvalidArgument,
               "a window of 5 does not fit into a length of 3");
}

TEST(ReshapeTest, FillsTheOpenDimensionAndRefusesMisfits) {
  Reshape reshape({-1, 2});
  EXPECT_EQ(reshape.build_for({6}), (Shape{3, 2}));
  EXPECT_EQ(reshape(counting({4, 6})).shape(), (Shape{4, 3, 2}));
  Reshape misfit({4});
  EXPECT_ERROR(misfit.build_for({6}), kInvalidArgument,
               "examples of shape [6] have 6 elements, which do not fit into [4]");
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

TEST(ActivationLayersTest, RefuseOptionsBelowZero) {
  EXPECT_ERROR(LeakyRelu(-0.1), kInvalidArgument, "negative_slope");
  EXPECT_ERROR(Relu({.max_value = -1.0}), kInvalidArgument, "max_value");
  EXPECT_ERROR(Relu({.threshold = -1.0}), kInvalidArgument, "threshold");
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
  for (const std::int64_t rows : {3, 1, 0}) {
    EXPECT_EQ(embedding(Tensor::zeros({rows, 3}, DType::kInt32)).shape(), (Shape{rows, 3, 2}));
  }
  Embedding of_scalars(7, 3);
  EXPECT_EQ(of_scalars.build_for(Shape{}), (Shape{3}));
  EXPECT_EQ(of_scalars(Tensor::zeros({2}, DType::kInt64)).shape(), (Shape{2, 3}));
  EXPECT_ERROR(embedding(Tensor::from<std::int64_t>({1, 3}, {0, 4, 1})), kInvalidArgument,
               "layer 'embedding' (Embedding): ");
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
  EXPECT_ERROR(positions(Tensor::zeros({1, 4, 2})), kInvalidArgument,
               "PositionEmbedding: expected at most 3 steps, got 4");
  EXPECT_ERROR(PositionEmbedding bad(0), kInvalidArgument, "sequence_length");
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

TEST(MergingTest, BroadcastsElements) {
  const Tensor a = Tensor::from<float>({1, 3}, {1, 2, 3});
  const Tensor b = Tensor::from<float>({1, 3}, {4, -2, 0.5});
  const Tensor c = Tensor::from<float>({1, 1}, {2});
  using V = std::vector<double>;
  EXPECT_EQ(merged(Add(), {a, b, c}), (V{7, 2, 5.5}));
  EXPECT_EQ(merged(Multiply(), {a, b, c}), (V{8, -8, 3}));
  EXPECT_EQ(merged(Maximum(), {a, b, c}), (V{4, 2, 3}));
  EXPECT_EQ(merged(Minimum(), {a, b, c}), (V{1, -2, 0.5}));
  EXPECT_EQ(merged(Concatenate(), {a, b, c}), (V{1, 2, 3, 4, -2, 0.5, 2}));
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
  EXPECT_ERROR(dense({Tensor::ones({1, 3}), Tensor::ones({1, 3})}), kInvalidArgument,
               "layer 'dense' (Dense): expected one input, got 2");
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
  EXPECT_ERROR(Dropout bad(1.0), kInvalidArgument, "[0, 1), got 1");
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
