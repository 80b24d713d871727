// Tests simple layers, merging layers, normalizations, convolutions, dropout, sequences, and random
// image augmentation.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "tests/layers/layer_checks.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/model/layers/convolution.h"
#include "tutti/model/layers/dropout.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/merging.h"
#include "tutti/model/layers/normalizations.h"
#include "tutti/model/layers/preprocessing.h"

namespace tutti::testing::simple_layers_test {

TEST(DenseTest, ErrorsNameTheArgument) {
  Dense relu(2, {.activation = "relu"});
  relu.build_for({3});
  EXPECT_EQ(relu.output_activation(), "relu");
  EXPECT_INVALID(Dense bad(0), "positive number of units");
  EXPECT_INVALID(Dense bad(1, {.activation = "rleu"}),
                 "no function is named 'rleu'; expected one of linear, relu, sigmoid");
}

TEST(Conv2DTest, ErrorsNameTheArgument) {
  EXPECT_INVALID(Conv2D bad(1, 3, {.padding = "causal"}), "'valid' or 'same', got 'causal'");
  EXPECT_INVALID(Conv2D(1, 5).build_for({3, 3, 1}),
                 "a window of 5 does not fit into a length of 3");
}

TEST(ReshapeTest, InfersOpenDimensionAndRejectsMismatch) {
  Reshape reshape({-1, 2});
  EXPECT_EQ(reshape.build_for({6}), (Shape{3, 2}));
  EXPECT_EQ(reshape(counting({4, 6})).shape(), (Shape{4, 3, 2}));
  Reshape misfit({4});
  EXPECT_INVALID(misfit.build_for({6}),
                 "examples of shape [6] have 6 elements, which cannot be reshaped to [4]");
}

/// Returns the derivatives of activation `function` at `x`, computed in `dtype`.
std::vector<double> derivatives_of(const std::string& function, const std::vector<double>& x,
                                   DType dtype) {
  const Tensor points = cast(Tensor::from(Shape{static_cast<std::int64_t>(x.size())}, x), dtype);
  GradientTape tape;
  tape.watch(points);
  const Tensor y = find_activation(function)(points);
  return tape.gradient(reduce_sum(y), points).to_dense().to_doubles();
}

// Expected values from TensorFlow in float64; tests/parity compares all functions with TensorFlow.
TEST(ActivationTest, DerivativeAtKinkIsSmallerSlope) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(to_string(dtype));
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

// This case occurs in the first training step: images have black borders, and biases start at 0.
TEST(ActivationTest, BlackImagesGiveNoBiasGradientThroughRelu) {
  for (const char* activation : {"relu", "relu6"}) {
    for (const std::int64_t filters : {1, 8}) {
      Conv2D conv(filters, 3, {.padding = "same", .activation = activation});
      conv.build_for({6, 6, 2});
      GradientTape tape;
      const Tensor y = conv(Tensor::zeros({2, 6, 6, 2}));
      const std::vector<Gradient> gradients =
          tape.gradient(reduce_sum(y), conv.trainable_variables());
      EXPECT_THAT(gradients[1].to_dense().to_doubles(), Each(0.0)) << activation;
    }
  }
}

TEST(ActivationLayersTest, RejectNegativeOptions) {
  EXPECT_INVALID(LeakyRelu(-0.1), "negative_slope");
  EXPECT_INVALID(Relu({.max_value = -1.0}), "max_value");
  EXPECT_INVALID(Relu({.threshold = -1.0}), "threshold");
}

TEST(EmbeddingTest, LooksUpRowsAndHasSparseGradient) {
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
  EXPECT_INVALID(embedding(Tensor::from<std::int64_t>({1, 3}, {0, 4, 1})),
                 "layer 'embedding' (Embedding): ");
}

/// Layer that uses one table of weights for its input and its output.
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

TEST(EmbeddingTest, TiedTableProducesLogits) {
  TiedEmbedding tied;
  tied.build_for({2});
  const Variable table = tied.variables().at(0);
  const Tensor indices = Tensor::from<std::int64_t>({1, 2}, {2, 0});
  GradientTape tape;
  const Tensor logits = tied(indices);
  EXPECT_EQ(logits.shape(), (Shape{1, 2, 3}));
  // The rows of the table are [0, 1], [2, 3] and [4, 5].
  expect_values(logits, {5, 23, 41, 1, 3, 5});
  // The gradient of each table row is the sum of all looked-up rows, [4, 6]. For a row that was
  // looked up, the sum of all table rows, [6, 9], is added.
  const Gradient gradient = tape.gradient(reduce_sum(logits), table);
  expect_values(gradient.to_dense(), {4 + 6, 6 + 9, 4, 6, 4 + 6, 6 + 9});
  EXPECT_THAT(error_of([&] {
                Embedding wide(3, 4);
                wide.build_for({2});
                wide.logits(Tensor::zeros({1, 2}));
              }),
              HasSubstr("features"));
}

TEST(PositionEmbeddingTest, AddsOneRowPerStep) {
  PositionEmbedding positions(3,
                              {.embeddings_initializer = initializers::values(counting({3, 2}))});
  positions.build_for({3, 2});
  expect_values(positions(Tensor::full({1, 2, 2}, 10.0)), {10, 11, 12, 13});
  EXPECT_INVALID(positions(Tensor::zeros({1, 4, 2})),
                 "PositionEmbedding: expected at most 3 steps, got 4");
  EXPECT_INVALID(PositionEmbedding bad(0), "sequence_length");
}

TEST(RescalingTest, ConvertsBytesToFloats) {
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
  EXPECT_THAT(
      error_for(Concatenate(), {{2, 3}, {3, 3}}),
      HasSubstr("expected examples of equal shape except along axis 2, got [2, 3], [3, 3]"));
  EXPECT_THAT(error_for(Concatenate({.axis = 0}), {{2}, {2}}), HasSubstr("axis 0 is the batch"));
  EXPECT_THAT(error_for(Dot(), {{3}, {4}}), HasSubstr("got [3] and [4]"));
  Dense dense(2);
  dense.build_for({3});
  EXPECT_INVALID(dense({Tensor::ones({1, 3}), Tensor::ones({1, 3})}),
                 "layer 'dense' (Dense): expected one input, got 2");
}

std::vector<double> dropped(const Dropout& layer, const RandomContext& context, const Tensor& x) {
  RandomContextScope scope(context);
  return layer(x, {.training = true}).to_doubles();
}

TEST(DropoutTest, DropsAtConfiguredRateAndPreservesMean) {
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
  // The tolerance is five standard deviations of a binomial distribution.
  EXPECT_NEAR(zeros, 25'000, 5 * std::sqrt(100'000 * 0.25 * 0.75));
}

TEST(DropoutTest, IsIdentityOutsideTrainingAndAtRateZero) {
  Dropout layer(0.5), none(0.0);
  layer.build_for({4});
  none.build_for({4});
  const Tensor x = counting({2, 4});
  EXPECT_EQ(layer(x).to_doubles(), x.to_doubles());
  EXPECT_EQ(none(x, {.training = true}).to_doubles(), x.to_doubles());
  EXPECT_INVALID(Dropout bad(1.0), "[0, 1), got 1");
}

TEST(DropoutTest, MaskDependsOnlyOnRandomKey) {
  set_random_seed(0);
  Dropout layer(0.5), other(0.5);
  layer.build_for({64});
  other.build_for({64});
  const Tensor x = Tensor::ones({4, 64});
  const RandomContext context{.seed = 1, .step = 2, .replica = 3};
  const std::vector<double> mask = dropped(layer, context, x);
  EXPECT_EQ(dropped(layer, context, x), mask) << "a repeated step must draw the same mask";
  EXPECT_NE(dropped(layer, {.seed = 9, .step = 2, .replica = 3}, x), mask);
  EXPECT_NE(dropped(layer, {.seed = 1, .step = 9, .replica = 3}, x), mask);
  EXPECT_NE(dropped(layer, {.seed = 1, .step = 2, .replica = 9}, x), mask);
  EXPECT_NE(dropped(other, context, x), mask);
  std::vector<double> elsewhere;
  Executor::system().start("other", [&] { elsewhere = dropped(layer, context, x); })->join();
  EXPECT_EQ(elsewhere, mask) << "the mask must not depend on the thread";
  RandomContextScope scope(context);
  EXPECT_EQ(layer(x, {.training = true}).to_doubles(), mask);
  EXPECT_NE(layer(x, {.training = true}).to_doubles(), mask)
      << "the second call in a step must draw another mask";
}

TEST(DropoutTest, GradientUsesForwardMask) {
  Dropout layer(0.5);
  layer.build_for({32});
  const Tensor x = Tensor::ones({2, 32});
  GradientTape tape;
  tape.watch(x);
  const Tensor y = layer(x, {.training = true});
  EXPECT_EQ(tape.gradient(reduce_sum(y), x).to_dense().to_doubles(), y.to_doubles());
}

TEST(ConvVariants, WeightsMatchKerasNamesAndShapes) {
  Conv2D grouped(6, 3, {.padding = "same", .dilation_rate = 2, .groups = 2});
  EXPECT_EQ(grouped.build_for({7, 7, 4}), (Shape{7, 7, 6}));
  EXPECT_THAT(weights_of_layer(grouped),
              ElementsAre("conv2d/kernel [3, 3, 2, 6]", "conv2d/bias [6]"));
  DepthwiseConv2D depthwise(2, {.strides = 2, .depth_multiplier = 2});
  EXPECT_EQ(depthwise.build_for({5, 6, 3}), (Shape{2, 3, 6}));
  EXPECT_THAT(weights_of_layer(depthwise),
              ElementsAre("depthwise_conv2d/kernel [2, 2, 3, 2]", "depthwise_conv2d/bias [6]"));
  SeparableConv2D separable(4, 2, {.strides = 2, .depth_multiplier = 2});
  EXPECT_EQ(separable.build_for({5, 6, 3}), (Shape{2, 3, 4}));
  EXPECT_THAT(
      weights_of_layer(separable),
      ElementsAre("separable_conv2d/depthwise_kernel [2, 2, 3, 2]",
                  "separable_conv2d/pointwise_kernel [1, 1, 6, 4]", "separable_conv2d/bias [4]"));
  for (const bool same : {false, true}) {
    Conv2DTranspose transpose(3, 3, {.strides = 2, .padding = same ? "same" : "valid"});
    EXPECT_EQ(transpose.build_for({3, 4, 2}), (same ? Shape{6, 8, 3} : Shape{7, 9, 3}));
    EXPECT_EQ(transpose.variables()[0].shape(), (Shape{3, 3, 3, 2}));
  }
}

TEST(ConvVariants, ErrorsNameLayerAndShapes) {
  auto error_for = [](auto layer, const Shape& shape) {
    return error_of([&] { layer.build_for(shape); });
  };
  EXPECT_THAT(error_for(DepthwiseConv2D(3), {4}),
              HasSubstr("layer 'depthwise_conv2d' (DepthwiseConv2D): DepthwiseConv2D: expected "
                        "examples of shape [height, width, channels], got [4]"));
  EXPECT_THAT(error_for(SeparableConv2D(2, 3), {2, 2, 1}),
              HasSubstr("SeparableConv2D: a window of 3 does not fit into a length of 2"));
  EXPECT_THAT(error_for(Conv2DTranspose(2, 3), {4, 4}), HasSubstr("got [4, 4]"));
  EXPECT_THAT(
      error_for(Conv2D(4, 1, {.groups = 2}), {3, 3, 3}),
      HasSubstr("expected a number of groups that divides the 3 channels of the input, got 2"));
  EXPECT_INVALID(Conv2D bad(3, 1, {.groups = 2}),
                 "a number of groups that divides the 3 filters, got 2");
  EXPECT_INVALID(Conv2DTranspose bad(0, 1), "a positive number of filters");
}

// Returns two columns with means 2 and 40, and with biased variances 1 and 400.
Tensor two_columns() { return Tensor::from<float>({2, 2}, {1, 20, 3, 60}); }

TEST(BatchNormalizationTest, VariablesMatchKerasNamesAndOrder) {
  BatchNormalization layer;
  layer.build_for({2});
  std::vector<std::string> names;
  for (const Variable& variable : layer.variables()) names.push_back(variable.name());
  EXPECT_THAT(
      names, ElementsAre("batch_normalization/gamma", "batch_normalization/beta",
                         "batch_normalization/moving_mean", "batch_normalization/moving_variance"));
  EXPECT_EQ(layer.trainable_variables().size(), 2u);
  EXPECT_EQ(layer.num_parameters(), 8);
  BatchNormalization plain({.center = false, .scale = false});
  plain.build_for({2});
  EXPECT_EQ(plain.num_parameters(), 4);
  expect_values(plain(two_columns()), {1, 20, 3, 60}, 0.05);
}

TEST(BatchNormalizationTest, EmptyBatchChangesNothing) {
  for (const bool synchronized : {false, true}) {
    BatchNormalization layer({.synchronized = synchronized});
    layer.build_for({4, 2});
    EXPECT_EQ(layer(Tensor::zeros({0, 4, 2}), {.training = true}).shape(), (Shape{0, 4, 2}));
    expect_values(layer.variables()[2], {0, 0}, 0.0);
    expect_values(layer.variables()[3], {1, 1}, 0.0);
  }
}

TEST(BatchNormalizationTest, FrozenLayerRunsInInferenceMode) {
  BatchNormalization layer;
  layer.build_for({2});
  layer.freeze();
  EXPECT_EQ(layer(two_columns(), {.training = true}).to_doubles(),
            layer(two_columns()).to_doubles());
  expect_values(layer.variables()[2], {0, 0}, 0.0);
}

TEST(BatchNormalizationTest, SynchronizedLayerUsesGlobalStatisticsAndOneAllReduce) {
  BatchNormalization layer({.momentum = 0.0, .synchronized = true});
  layer.build_for({2});
  EqualReplicas group(3);
  ReplicaGroupScope scope(&group);
  const Tensor y = layer(two_columns(), {.training = true});
  EXPECT_EQ(group.num_all_reduces, 1);
  // Three replicas that get identical rows compute the same statistics as one.
  expect_values(layer.variables()[2], {2, 40}, 1e-5);
  expect_values(layer.variables()[3], {1, 400}, 1e-3);
  const double a = 1 / std::sqrt(1 + 1e-3), b = 20 / std::sqrt(400 + 1e-3);
  expect_values(y, {-a, -b, a, b}, 1e-5);
}

TEST(LayerNormalizationTest, WeightsHaveTheShapeOfItsAxes) {
  LayerNormalization both({.axes = {1, 2}}), first({.axes = {1}, .center = false});
  both.build_for({4, 5});
  first.build_for({4, 5});
  EXPECT_THAT(weights_of_layer(both),
              ElementsAre("layer_normalization/gamma [4, 5]", "layer_normalization/beta [4, 5]"));
  EXPECT_THAT(weights_of_layer(first), ElementsAre("layer_normalization/gamma [4]"));
  Variable gamma = first.variables()[0];
  gamma.assign(Tensor::from<float>({4}, {1, 2, 3, 4}));
  LayerNormalization last;
  last.build_for({5, 4});
  last.variables()[0].assign(gamma.value());
  const Tensor x = spread({3, 4, 5}, 1);
  expect_values(first(x), transpose(last(transpose(x, {0, 2, 1})), {0, 2, 1}).to_doubles(), 1e-5);
}

TEST(GroupNormalizationTest, GroupCountMinusOneMeansOneGroupPerChannel) {
  const Tensor x = spread({2, 3, 2, 6}, 2);
  GroupNormalization each(-1), six(6), misfit(4);
  each.build_for({3, 2, 6});
  six.build_for({3, 2, 6});
  EXPECT_EQ(each(x).to_doubles(), six(x).to_doubles());
  EXPECT_INVALID(misfit.build_for({3, 2, 6}),
                 "layer 'group_normalization' (GroupNormalization): GroupNormalization: expected "
                 "a number of groups that divides the 6 channels of the input, got 4");
}

TEST(UnitNormalizationTest, ProducesUnitVectors) {
  UnitNormalization columns({.axes = {1}});
  columns.build_for({2, 2});
  expect_values(columns(Tensor::from<float>({1, 2, 2}, {3, 1, 4, 0})), {0.6, 1, 0.8, 0});
  UnitNormalization beyond({.axes = {3}});
  EXPECT_INVALID(beyond.build_for({2, 2}), "expected axes from 1 to 2 (axis 0 is the batch)");
}

TEST(ResizingTest, ErrorsNameTheArgument) {
  EXPECT_INVALID(Cropping2D(1).build_for({2, 2, 1}),
                 "layer 'cropping2d' (Cropping2D): Cropping2D: nothing is left");
  EXPECT_INVALID(UpSampling2D bad(2, {.interpolation = "cubic"}),
                 "'nearest' or 'bilinear', got 'cubic'");
  EXPECT_INVALID(ZeroPadding2D().build_for({4}), "expected examples of shape");
  EXPECT_INVALID(Permute bad({1, 1}), "a permutation of the axes 1 to 2");
  EXPECT_INVALID(Permute({2, 1}).build_for({2}),
                 "layer 'permute' (Permute): Permute: expected examples of rank 2, got [2]");
}

TEST(Conv1DTest, MatchesWindowSums) {
  const Tensor kernel = Tensor::from<float>({2, 1, 1}, {1, 10});
  auto values = [&](const char* padding) {
    Conv1D conv(1, 2, {.padding = padding, .kernel_initializer = initializers::values(kernel)});
    conv.build_for({4, 1});
    return conv(Tensor::from<float>({1, 4, 1}, {1, 2, 3, 4})).to_doubles();
  };
  EXPECT_THAT(values("valid"), ElementsAre(21, 32, 43));
  EXPECT_THAT(values("same"), ElementsAre(21, 32, 43, 4));
  EXPECT_THAT(values("causal"), ElementsAre(10, 21, 32, 43));
  Conv1D conv(3, 2);
  conv.build_for({4, 5});
  EXPECT_THAT(weights_of_layer(conv), ElementsAre("conv1d/kernel [2, 5, 3]", "conv1d/bias [3]"));
  EXPECT_INVALID(Conv1D(1, 2).build_for({4}),
                 "layer 'conv1d' (Conv1D): Conv1D: expected examples of shape [steps, "
                 "channels], got [4]");
}

TEST(PReLUTest, HasOneSlopePerElementExceptAlongSharedAxes) {
  PReLU layer;
  layer.build_for({2});
  EXPECT_THAT(weights_of_layer(layer), ElementsAre("p_re_lu/alpha [2]"));
  PReLU shared({.shared_axes = {1, 2}});
  shared.build_for({4, 4, 3});
  EXPECT_EQ(shared.variables()[0].shape(), (Shape{1, 1, 3}));
}

TEST(NoiseTest, AddsNoiseOnlyInTraining) {
  const Tensor x = Tensor::ones({64, 5, 4, 8});
  auto moments = [&](Layer& layer) {
    layer.build_for({5, 4, 8});
    EXPECT_EQ(layer(x).to_doubles(), x.to_doubles());
    double mean = 0.0, squares = 0.0;
    const std::vector<double> y = layer(x, {.training = true}).to_doubles();
    for (const double value : y) {
      mean += value / static_cast<double>(y.size());
      squares += (value - 1) * (value - 1) / static_cast<double>(y.size());
    }
    return std::pair(mean, squares);
  };
  GaussianNoise noise(0.5);
  GaussianDropout gaussian(0.2);
  const auto [mean, variance] = moments(noise);
  EXPECT_NEAR(mean, 1.0, 0.03);
  EXPECT_NEAR(variance, 0.25, 0.02);
  const auto [other_mean, other_variance] = moments(gaussian);
  EXPECT_NEAR(other_mean, 1.0, 0.03);
  EXPECT_NEAR(other_variance, 0.25, 0.02);
  EXPECT_INVALID(GaussianDropout bad(1.0), "a rate in [0, 1), got 1");
}

TEST(SpatialDropoutTest, DropsWholeChannels) {
  SpatialDropout2D layer(0.4);
  layer.build_for({3, 2, 8});
  const std::vector<double> y = layer(Tensor::ones({50, 3, 2, 8}), {.training = true}).to_doubles();
  int dropped = 0;
  for (std::size_t row = 0; row < 50; ++row) {
    for (std::size_t channel = 0; channel < 8; ++channel) {
      const double first = y[row * 48 + channel];
      dropped += first == 0.0 ? 1 : 0;
      EXPECT_NEAR(first, first == 0.0 ? 0.0 : 1 / 0.6, 1e-6);
      for (std::size_t place = 1; place < 6; ++place)
        EXPECT_EQ(y[row * 48 + place * 8 + channel], first);
    }
  }
  EXPECT_NEAR(dropped / 400.0, 0.4, 0.1);
}

TEST(TimeDistributedTest, WeightsMatchKeras) {
  TimeDistributed layer(Dense(2));
  layer.build_for({3, 4});
  EXPECT_THAT(weights_of_layer(layer), ElementsAre("time_distributed/dense/kernel [4, 2]",
                                                   "time_distributed/dense/bias [2]"));
}

TEST(LambdaTest, InfersOutputShape) {
  const auto cube = [](const Tensor& x) { return square(x) * 3.0; };
  Lambda shaped(cube);
  check_shapes(shaped, {{4, 2}});
  {
    const ExactLayers exact;
    Lambda differentiated(cube);
    check_gradients(differentiated, {{4, 2}});
  }
  Lambda sum([](const Tensor& x) { return reduce_sum(x, {.axes = {2}}); });
  EXPECT_EQ(sum.build_for({2, 3}), (Shape{2}));
  expect_values(sum(counting({1, 2, 3})), {3, 12});
  Lambda scalar([](const Tensor& x) { return reduce_sum(x); });
  EXPECT_INVALID(scalar.build_for({2}),
                 "layer 'lambda' (Lambda): Lambda: expected a result [batch, ...]");
}

Tensor in_training(const Layer& layer, const Tensor& x, std::uint64_t step = 1,
                   std::uint32_t replica = 0) {
  const RandomContextScope scope({.seed = 3, .step = step, .replica = replica});
  return layer(x, {.training = true});
}

TEST(ImageAugmentation, TrainingGradientsMatchFiniteDifferences) {
  const ExactLayers exact;
  RandomFlip exact_flip;
  RandomContrast exact_contrast(0.5, {.value_range = {-9.0, 9.0}});
  RandomBrightness exact_brightness(0.5, {.value_range = {-9.0, 9.0}});
  for (Layer* layer :
       std::initializer_list<Layer*>{&exact_flip, &exact_contrast, &exact_brightness}) {
    layer->build_for({3, 4, 2});
    // All calls use the same random numbers, so finite differences compare values of the same
    // function.
    expect_gradient_of_differences(
        [&](const Tensor& x) {
          const Tensor y = in_training(*layer, x);
          return reduce_sum(y * spread(y.shape(), 5)) + reduce_sum(square(y));
        },
        spread({2, 3, 4, 2}, 9), 2e-6);
  }
}

TEST(ImageAugmentation, IsIdentityOutsideTraining) {
  set_random_seed(4);
  const Tensor x = counting({8, 3, 2, 1});
  RandomFlip flip;
  RandomBrightness brightness(1.0);
  RandomContrast contrast(1.0);
  for (Layer* layer : std::initializer_list<Layer*>{&flip, &brightness, &contrast}) {
    layer->build_for({3, 2, 1});
    EXPECT_EQ((*layer)(x).to_doubles(), x.to_doubles());
    EXPECT_NE(in_training(*layer, x).to_doubles(), x.to_doubles());
  }
}

TEST(ImageAugmentation, ComputesInFloat32UnderMixedPolicies) {
  const Tensor x = spread({6, 3, 4, 2}, 9) * 100.0 + 120.0;
  const auto results = [&](const char* policy) {
    set_random_seed(4);
    set_dtype_policy(policy);
    RandomFlip flip;
    RandomContrast contrast(0.5);
    RandomBrightness brightness(0.2);
    set_dtype_policy("float32");
    std::vector<Tensor> tensors;
    for (Layer* layer : std::initializer_list<Layer*>{&flip, &contrast, &brightness}) {
      layer->build_for({3, 4, 2});
      tensors.push_back(in_training(*layer, x));
    }
    return tensors;
  };
  const auto exact = results("float32"), half = results("mixed_float16");
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(half[i].dtype(), DType::kFloat16);
    // values up to 255, rounded to float16's 11 significant bits
    expect_values(half[i], exact[i].to_doubles(), 0.3);
  }
}

TEST(RandomFlipLayer, FlipsHalfOfImagesPerAxis) {
  std::vector<float> pixels;
  for (int i = 0; i < 4000; ++i) pixels.insert(pixels.end(), {0.f, 1.f, 2.f, 3.f});
  const Tensor x = Tensor::from({4000, 2, 2, 1}, pixels);
  const auto corners = [&](const char* mode) {
    RandomFlip flip({.mode = mode});
    flip.build_for({2, 2, 1});
    const std::vector<double> y = in_training(flip, x).to_doubles();
    std::vector<int> counts(4, 0);
    for (std::size_t i = 0; i < y.size(); i += 4) {
      ++counts[static_cast<std::size_t>(y[i])];
      EXPECT_EQ(y[i] + y[i + 3], 3.0);
      EXPECT_EQ(y[i + 1] + y[i + 2], 3.0);
    }
    return counts;
  };
  const double half = 5 * std::sqrt(1000.0), quarter = 5 * std::sqrt(750.0);
  for (const int count : corners("horizontal_and_vertical")) EXPECT_NEAR(count, 1000, quarter);
  const auto horizontal = corners("horizontal"), vertical = corners("vertical");
  EXPECT_NEAR(horizontal[1], 2000, half);
  EXPECT_EQ(horizontal[0] + horizontal[1], 4000);
  EXPECT_NEAR(vertical[2], 2000, half);
  EXPECT_EQ(vertical[0] + vertical[2], 4000);
}

TEST(ImageAugmentation, DependsOnStepAndReplica) {
  RandomBrightness layer(0.5);
  layer.build_for({1, 1, 1});
  const Tensor x = Tensor::full({6, 1, 1, 1}, 128.0);
  const auto first = in_training(layer, x).to_doubles();
  // each image has its own random number
  EXPECT_EQ(std::set<double>(first.begin(), first.end()).size(), 6u);
  EXPECT_EQ(in_training(layer, x).to_doubles(), first);
  EXPECT_NE(in_training(layer, x, 2).to_doubles(), first);
  EXPECT_NE(in_training(layer, x, 1, 1).to_doubles(), first);
}

TEST(RandomBrightnessLayer, AddsOffsetWithinRangeToEachImage) {
  RandomBrightness layer(0.2, {.value_range = {0.0, 1.0}});
  layer.build_for({1, 2, 1});
  std::vector<float> pixels;
  for (int i = 0; i < 1000; ++i) pixels.insert(pixels.end(), {0.5f, 0.9f});
  const auto y = in_training(layer, Tensor::from({1000, 1, 2, 1}, pixels)).to_doubles();
  double lowest = 1, highest = 0;
  for (std::size_t i = 0; i < y.size(); i += 2) {
    lowest = std::min(lowest, y[i]);
    highest = std::max(highest, y[i]);
    EXPECT_NEAR(y[i + 1], std::min(y[i] + 0.4, 1.0), 1e-6);
  }
  EXPECT_NEAR(lowest, 0.3, 0.01);
  EXPECT_NEAR(highest, 0.7, 0.01);
}

TEST(RandomContrastLayer, ScalesAroundChannelMean) {
  RandomContrast layer(0.5);
  layer.build_for({1, 2, 2});
  // the channels have means 100 and 52; their pixels differ from these by 20 and 2
  std::vector<float> pixels;
  for (int i = 0; i < 1000; ++i) pixels.insert(pixels.end(), {80.f, 50.f, 120.f, 54.f});
  const auto y = in_training(layer, Tensor::from({1000, 1, 2, 2}, pixels)).to_doubles();
  double lowest = 9, highest = 0;
  for (std::size_t i = 0; i < y.size(); i += 4) {
    const double factor = (y[i + 2] - 100) / 20;
    lowest = std::min(lowest, factor);
    highest = std::max(highest, factor);
    EXPECT_NEAR(y[i], 100 - 20 * factor, 1e-3);
    EXPECT_NEAR(y[i + 1], 52 - 2 * factor, 1e-3);
    EXPECT_NEAR(y[i + 3], 52 + 2 * factor, 1e-3);
  }
  EXPECT_NEAR(lowest, 0.5, 0.01);
  EXPECT_NEAR(highest, 1.5, 0.01);
}

TEST(CenterCropLayer, CropsCenterOfFloatsAndBytes) {
  CenterCrop crop({1, 2});
  crop.build_for({3, 4, 1});
  expect_values(crop(counting({1, 3, 4, 1})), {5, 6});
  RandomFlip flip;
  flip.build_for({2, 2, 1});
  const Tensor bytes = Tensor::full({1, 2, 2, 1}, 200, DType::kUInt8);
  EXPECT_EQ(in_training(flip, bytes).dtype(), DType::kFloat32);
  expect_values(in_training(flip, bytes), {200, 200, 200, 200});
}

TEST(ImageAugmentation, RejectsInvalidOptions) {
  EXPECT_INVALID(RandomFlip bad({.mode = "sideways"}), "got 'sideways'");
  EXPECT_INVALID(RandomBrightness bad(1.5), "a factor in [0, 1]");
  EXPECT_INVALID(RandomContrast bad(-0.5), "a factor in [0, 1]");
  EXPECT_INVALID(RandomContrast bad(0.5, {.value_range = {1.0, 0.0}}), "value_range");
  EXPECT_INVALID(CenterCrop({5, 5}).build_for({4, 6, 3}), "at least 5 x 5 pixels, got 4 x 6");
  EXPECT_INVALID(RandomFlip().build_for({784}), "[height, width");
}

}  // namespace tutti::testing::simple_layers_test
