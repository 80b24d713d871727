// Tests layers as objects: names, weights, initializers, sub-layers, sharing, errors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/layers/layer_checks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/model/layers/initializers.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/regularization.h"

namespace tutti::layer_test {
using namespace layer_tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<Variable>& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables) names.push_back(variable.name());
  return names;
}

/// User-defined block: two layers and a scale of its own.
class ScaledPair : public Layer {
 public:
  ScaledPair() : first_(3, {.activation = "relu"}), second_(2) {}

 protected:
  Shape build(const Shape& input) override {
    add_weight(initializers::constant(2.0), {}, {.name = "scale"});
    return add_layer(second_, add_layer(first_, input));
  }
  Tensor call(const Tensor& input, CallContext context) const override {
    return second_(first_(input, context), context) * weight(0).value();
  }

 private:
  Dense first_;
  Dense second_;
};

/// Sequence of layers.
class Chain : public Layer {
 public:
  explicit Chain(std::vector<std::shared_ptr<Layer>> layers) : layers_(std::move(layers)) {}

 protected:
  Shape build(const Shape& input) override {
    Shape shape = input;
    for (auto& layer : layers_) shape = add_layer(*layer, shape);
    return shape;
  }
  Tensor call(const Tensor& input, CallContext context) const override {
    Tensor x = input;
    for (const auto& layer : layers_) x = (*layer)(x, context);
    return x;
  }

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
};

TEST(LayerName, IsTheSnakeCaseOfTheType) {
  EXPECT_EQ(internal::snake_case("Conv2D"), "conv2d");
  EXPECT_EQ(internal::snake_case("MaxPooling2D"), "max_pooling2d");
  EXPECT_EQ(internal::snake_case("GlobalAveragePooling2D"), "global_average_pooling2d");
  EXPECT_EQ(internal::snake_case("BatchNormalization"), "batch_normalization");
  EXPECT_EQ(internal::snake_case("LocalResponseNormalization"), "local_response_normalization");
  EXPECT_EQ(internal::snake_case("RNNCell"), "rnn_cell");
  EXPECT_EQ(internal::plain_type_name(typeid(Dense)), "Dense");
}

TEST(LayerTest, AloneIsNamedByItsType) {
  Dense dense(4);
  EXPECT_EQ(dense.build_for({3}), (Shape{4}));
  EXPECT_EQ(dense.name(), "dense");
  EXPECT_EQ(dense.type_name(), "Dense");
  EXPECT_THAT(names_of(dense.variables()), ElementsAre("dense/kernel", "dense/bias"));
  Dense named(4, {.name = "head"});
  named.build_for({3});
  EXPECT_THAT(names_of(named.variables()), ElementsAre("head/kernel", "head/bias"));
}

TEST(LayerTest, SublayersAreNumberedPerParentAndCarryItsName) {
  for (int build = 0; build < 2; ++build) {
    ScaledPair pair;
    EXPECT_EQ(pair.build_for({5}), (Shape{2}));
    EXPECT_THAT(
        names_of(pair.variables()),
        ElementsAre("scaled_pair/scale", "scaled_pair/dense/kernel", "scaled_pair/dense/bias",
                    "scaled_pair/dense_1/kernel", "scaled_pair/dense_1/bias"));
    EXPECT_EQ(pair.num_parameters(), 1 + 5 * 3 + 3 + 3 * 2 + 2);
  }
}

TEST(LayerTest, ALayerAddedTwiceIsSharedAndCountedOnce) {
  auto shared = std::make_shared<Dense>(4);
  Chain net({shared, shared});
  net.build_for({4});
  EXPECT_EQ(net.num_parameters(), 20);
  EXPECT_EQ(net.sublayers().size(), 1u);
  Chain misfit({std::make_shared<Dense>(*shared)});
  EXPECT_INVALID(misfit.build_for({7}), "expected examples of shape [4], got [7]");
}

TEST(LayerTest, CopiesShareWeightsEvenWhenCopiedBefore) {
  Dense original(2);
  const Dense copy = original;
  original.build_for({3});
  const Tensor x = counting({2, 3});
  EXPECT_EQ(copy(x).to_doubles(), original(x).to_doubles());
  EXPECT_EQ(copy.variables()[0], original.variables()[0]);
}

TEST(LayerTest, ErrorsNameTheLayer) {
  ScaledPair pair;
  EXPECT_ERROR(pair(counting({1, 5})), kFailedPrecondition,
               "layer of type ScaledPair: called before it has weights");
  pair.build_for({5});
  const std::string message = error_of([&] { pair(counting({2, 4})); });
  EXPECT_THAT(message, HasSubstr("layer 'scaled_pair' (ScaledPair): layer 'dense' (Dense): "));
  EXPECT_THAT(message, HasSubstr("[2, 4]"));
  EXPECT_THAT(message, HasSubstr("expected inputs [batch, ..., 5]"));
  Chain flat({std::make_shared<Conv2D>(1, 3)});
  EXPECT_INVALID(flat.build_for({784}),
                 "layer 'conv2d' (Conv2D): Conv2D: expected examples of shape [height, "
                 "width, channels], got [784]");
  Chain doubled({std::make_shared<Dense>(1, DenseOptions{.name = "a"}),
                 std::make_shared<Dense>(1, DenseOptions{.name = "a"})});
  EXPECT_INVALID(doubled.build_for({2}), "the name 'a' is taken");
}

TEST(LayerTest, FrozenLayersHaveNoTrainableVariables) {
  auto base = std::make_shared<Dense>(3);
  Chain net({base, std::make_shared<Dense>(2)});
  net.build_for({4});
  EXPECT_EQ(net.trainable_variables().size(), 4u);
  base->freeze();
  EXPECT_THAT(names_of(net.trainable_variables()),
              ElementsAre("chain/dense_1/kernel", "chain/dense_1/bias"));
  EXPECT_EQ(net.num_trainable_parameters(), 3 * 2 + 2);
  EXPECT_EQ(net.num_parameters(), 4 * 3 + 3 + 8);
  base->unfreeze();
  EXPECT_EQ(net.trainable_variables().size(), 4u);
}

TEST(LayerTest, RegularizersGiveOneLossPerWeight) {
  Dense dense(1, {.kernel_initializer = initializers::values(Tensor::from<float>({2, 1}, {3, -4})),
                  .bias_initializer = "ones",
                  .kernel_regularizer = regularizers::l1_l2(0.1, 0.01),
                  .bias_regularizer = "l2"});
  dense.build_for({2});
  GradientTape tape;
  const std::vector<Tensor> losses = dense.losses();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_NEAR(losses[0].item(), 0.1 * 7 + 0.01 * 25, 1e-6);
  EXPECT_NEAR(losses[1].item(), 0.01, 1e-8);
  expect_values(tape.gradient(losses[0], dense.variables()[0]).to_dense(),
                {0.1 + 0.02 * 3, -0.1 - 0.02 * 4});
  EXPECT_INVALID(Regularizer regularizer("l3"), "l1, l2, l1_l2");
}

/// Adds a loss per call and counts its calls.
class Probe : public Layer {
 protected:
  Shape build(const Shape& input) override {
    calls_ = std::make_shared<Sum>("calls");
    add_metric(calls_);
    return input;
  }
  Tensor call(const Tensor& input, CallContext context) const override {
    calls_->update_state(1.0f);
    add_loss(context, reduce_sum(input));
    return input;
  }

 private:
  std::shared_ptr<Sum> calls_;
};

TEST(LayerTest, AddedLossesBelongToOneCallAndMetricsToTheLayer) {
  Chain net({std::make_shared<Probe>(), std::make_shared<Probe>()});
  net.build_for({2});
  std::vector<Tensor> added;
  net(counting({2, 2}), {.training = true, .added_losses = &added});
  ASSERT_EQ(added.size(), 2u);
  EXPECT_EQ(added[1].item(), 6.0f);
  net(counting({2, 2}));
  ASSERT_EQ(net.metrics().size(), 2u);
  EXPECT_EQ(net.metrics()[0]->name(), "calls");
  EXPECT_EQ(net.metrics()[0]->result().item(), 2.0f);
}

TEST(LayerTest, EqualSeedsGiveEqualWeights) {
  auto weights = [] {
    set_random_seed(5);
    ScaledPair pair;
    pair.build_for({5});
    return pair.variables()[1].value().to_doubles();
  };
  EXPECT_EQ(weights(), weights());
  set_random_seed(0);
}

TEST(InitializerTest, DistributionsCanBeMadeByRows) {
  const RandomKey key{9, kInitializerPurpose, 2};
  for (const char* name : {"zeros", "ones", "glorot_uniform", "glorot_normal", "he_uniform",
                           "he_normal", "lecun_uniform", "lecun_normal", "uniform", "normal",
                           "truncated_normal", "identity", "variance_scaling"}) {
    SCOPED_TRACE(name);
    const Variable::Initializer initializer = Initializer(name).for_shape({10, 4});
    const auto generator = generator_of(initializer, key);
    ASSERT_TRUE(generator.has_value());
    testing::expect_same_bits(generator->rows(3, 5),
                              initializer({Device{}, key}).detached_rows(3, 5));
  }
  EXPECT_FALSE(generator_of(Initializer("orthogonal").for_shape({10, 4}), key).has_value());
}

TEST(InitializerTest, ValuesDependOnTheKey) {
  const auto make = Initializer("he_normal").for_shape({8});
  const InitializerContext first{{}, {.seed = 1, .a = 1}}, second{{}, {.seed = 1, .a = 2}};
  EXPECT_EQ(make(first).to_doubles(), make(first).to_doubles());
  EXPECT_NE(make(first).to_doubles(), make(second).to_doubles());
}

TEST(InitializerTest, ErrorsNameTheChoiceAndTheShapes) {
  EXPECT_INVALID(Initializer initializer("glorot"),
                 "no initializer is named 'glorot'; expected one of zeros, ones, "
                 "glorot_uniform");
  EXPECT_INVALID(initializers::values(Tensor::ones({3})).for_shape({2})(InitializerContext{}),
                 "expected values of shape [2], got [3]");
}

TEST(InitializerTest, DrawsInFloat32ForEveryType) {
  const InitializerContext context{{}, {.seed = 4, .purpose = kInitializerPurpose, .a = 1}};
  const Tensor f64 = Initializer("glorot_uniform").for_shape({3, 2}, DType::kFloat64)(context);
  EXPECT_EQ(f64.dtype(), DType::kFloat64);
  EXPECT_EQ(f64.to_doubles(),
            Initializer("glorot_uniform").for_shape({3, 2})(context).to_doubles());
  EXPECT_EQ(Initializer("orthogonal").for_shape({2, 3, 4})(context).shape(), (Shape{2, 3, 4}));
  EXPECT_INVALID(Initializer("orthogonal").for_shape({3})(context),
                 "rank 2 or more, got shape [3]");
}

// For more, see tests/parity.
TEST(ConstraintTest, BringNormsAndSignsBack) {
  // The columns have norms 5, 0.5 and 0.
  const Tensor w = Tensor::from<float>({2, 3}, {3, 0.3, 0, -4, -0.4, 0});
  expect_values(Constraint("non_neg")(w), {3, 0.3, 0, 0, 0, 0});
  expect_values(constraints::max_norm({.max_value = 2.0})(w), {1.2, 0.3, 0, -1.6, -0.4, 0});
  expect_values(Constraint("unit_norm")(w), {0.6, 0.6, 0, -0.8, -0.8, 0});
  EXPECT_TRUE(Constraint("").empty());
  EXPECT_INVALID(Constraint constraint("maxnorm"),
                 "expected one of max_norm, non_neg, unit_norm, min_max_norm");
}

}  // namespace tutti::layer_test
