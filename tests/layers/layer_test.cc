// Tests layers as objects (names, weights, initializers, sub-layers, sharing, errors), every layer
// of the table (description, shapes, gradients), mixed dtype policies, and recomputation.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/layers/every_layer.h"
#include "tests/layers/layer_checks.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/random.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/initializers.h"
#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/regularization.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::testing::layer_test {

std::vector<std::string> names_of(const std::vector<Variable>& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables) names.push_back(variable.name());
  return names;
}

/// User-defined block of two layers and a weight of its own, the scale.
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

/// Layer that calls its sub-layers one after another.
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

/// Layer that passes its input to two sub-layers, and has a weight as a member.
struct HighwayWithScale : LayerOf<HighwayWithScale> {
  explicit HighwayWithScale(std::int64_t units) : gate(units, "sigmoid"), body(units, "relu") {}
  Shape build(const Shape& input) override {
    scale = add_weight(initializers::constant(2.0), {}, {.name = "scale"});
    return add_layers(input, gate, body);
  }
  Tensor call(const Tensor& x, CallContext context) const override {
    const Tensor open = gate(x, context);
    return open * body(x, context) * scale + (1.0f - open) * x;
  }
  Dense gate, body;
  Weight scale;
};

TEST(LayerName, IsSnakeCaseOfType) {
  EXPECT_EQ(internal::snake_case("Conv2D"), "conv2d");
  EXPECT_EQ(internal::snake_case("MaxPooling2D"), "max_pooling2d");
  EXPECT_EQ(internal::snake_case("GlobalAveragePooling2D"), "global_average_pooling2d");
  EXPECT_EQ(internal::snake_case("BatchNormalization"), "batch_normalization");
  EXPECT_EQ(internal::snake_case("LocalResponseNormalization"), "local_response_normalization");
  EXPECT_EQ(internal::snake_case("RNNCell"), "rnn_cell");
  EXPECT_EQ(internal::plain_type_name(typeid(Dense)), "Dense");
}

TEST(LayerTest, StandaloneLayerIsNamedAfterItsType) {
  Dense dense(4);
  EXPECT_EQ(dense.build_for({3}), (Shape{4}));
  EXPECT_EQ(dense.name(), "dense");
  EXPECT_EQ(dense.type_name(), "Dense");
  EXPECT_THAT(names_of(dense.variables()), ElementsAre("dense/kernel", "dense/bias"));
  Dense named(4, {.name = "head"});
  named.build_for({3});
  EXPECT_THAT(names_of(named.variables()), ElementsAre("head/kernel", "head/bias"));
}

TEST(LayerTest, SublayersAreNumberedAndPrefixedPerParent) {
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

TEST(LayerTest, LayerAddedTwiceIsSharedAndCountedOnce) {
  auto shared = std::make_shared<Dense>(4);
  Chain net({shared, shared});
  net.build_for({4});
  EXPECT_EQ(net.num_parameters(), 20);
  EXPECT_EQ(net.sublayers().size(), 1u);
  Chain misfit({std::make_shared<Dense>(*shared)});
  EXPECT_INVALID(misfit.build_for({7}), "expected examples of shape [4], got [7]");
}

TEST(LayerTest, CopiesMadeBeforeBuildShareWeights) {
  Dense original(2);
  const Dense copy = original;
  original.build_for({3});
  const Tensor x = counting({2, 3});
  EXPECT_EQ(copy(x).to_doubles(), original(x).to_doubles());
  EXPECT_EQ(copy.variables()[0], original.variables()[0]);
}

TEST(LayerTest, WeightMemberIsSharedWithEarlierCopies) {
  HighwayWithScale original(3);
  const HighwayWithScale copy = original;
  EXPECT_EQ(original.shapes_for(std::vector<Shape>{{3}})[0], (Shape{3}));
  original.build_for({3});
  EXPECT_THAT(names_of(original.variables()),
              ElementsAre("highway_with_scale/scale", "highway_with_scale/dense/kernel",
                          "highway_with_scale/dense/bias", "highway_with_scale/dense_1/kernel",
                          "highway_with_scale/dense_1/bias"));
  EXPECT_EQ(*copy.scale, original.variables()[0]);
  EXPECT_EQ(copy.scale->name(), "highway_with_scale/scale");
  const Tensor x = counting({2, 3});
  const Tensor open = copy.gate(x);
  const Tensor expected = open * copy.body(x) * 2.0f + (1.0f - open) * x;
  EXPECT_EQ(copy(x).to_doubles(), expected.to_doubles());
}

TEST(LayerTest, ErrorsNameTheLayer) {
  ScaledPair pair;
  EXPECT_ERROR(pair(counting({1, 5})), kFailedPrecondition,
               "layer of type ScaledPair: called before its weights were created");
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

/// Layer that adds a loss at each call and counts its calls.
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

TEST(LayerTest, LossesAreAddedPerCallAndMetricsPerLayer) {
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

TEST(InitializerTest, DistributionsSupportRowwiseGeneration) {
  const RandomKey key{9, kInitializerPurpose, 2};
  for (const char* name : {"zeros", "ones", "glorot_uniform", "glorot_normal", "he_uniform",
                           "he_normal", "lecun_uniform", "lecun_normal", "uniform", "normal",
                           "truncated_normal", "identity", "variance_scaling"}) {
    SCOPED_TRACE(name);
    const Variable::Initializer initializer = Initializer(name).for_shape({10, 4});
    const auto generator = generator_of(initializer, key);
    ASSERT_TRUE(generator.has_value());
    expect_same_bits(generator->rows(3, 5), initializer({Device{}, key}).detached_rows(3, 5));
  }
  EXPECT_FALSE(generator_of(Initializer("orthogonal").for_shape({10, 4}), key).has_value());
}

TEST(InitializerTest, ValuesDependOnTheKey) {
  const auto make = Initializer("he_normal").for_shape({8});
  const InitializerContext first{{}, {.seed = 1, .a = 1}}, second{{}, {.seed = 1, .a = 2}};
  EXPECT_EQ(make(first).to_doubles(), make(first).to_doubles());
  EXPECT_NE(make(first).to_doubles(), make(second).to_doubles());
}

TEST(InitializerTest, ErrorsListChoicesAndShapes) {
  EXPECT_INVALID(Initializer initializer("glorot"),
                 "no initializer is named 'glorot'; expected one of zeros, ones, "
                 "glorot_uniform");
  EXPECT_INVALID(initializers::values(Tensor::ones({3})).for_shape({2})(InitializerContext{}),
                 "expected values of shape [2], got [3]");
}

TEST(InitializerTest, DrawsFloat32NumbersForEveryType) {
  const InitializerContext context{{}, {.seed = 4, .purpose = kInitializerPurpose, .a = 1}};
  const Tensor f64 = Initializer("glorot_uniform").for_shape({3, 2}, DType::kFloat64)(context);
  EXPECT_EQ(f64.dtype(), DType::kFloat64);
  EXPECT_EQ(f64.to_doubles(),
            Initializer("glorot_uniform").for_shape({3, 2})(context).to_doubles());
  EXPECT_EQ(Initializer("orthogonal").for_shape({2, 3, 4})(context).shape(), (Shape{2, 3, 4}));
  EXPECT_INVALID(Initializer("orthogonal").for_shape({3})(context), "rank >= 2, got shape [3]");
}

// tests/parity tests more constraints.
TEST(ConstraintTest, EnforcesNormsAndSigns) {
  // The columns of w have norms 5, 0.5 and 0.
  const Tensor w = Tensor::from<float>({2, 3}, {3, 0.3, 0, -4, -0.4, 0});
  expect_values(Constraint("non_neg")(w), {3, 0.3, 0, 0, 0, 0});
  expect_values(constraints::max_norm({.max_value = 2.0})(w), {1.2, 0.3, 0, -1.6, -0.4, 0});
  expect_values(Constraint("unit_norm")(w), {0.6, 0.6, 0, -0.8, -0.8, 0});
  EXPECT_TRUE(Constraint("").empty());
  EXPECT_INVALID(Constraint constraint("maxnorm"),
                 "expected one of max_norm, non_neg, unit_norm, min_max_norm");
}

Json written_layer(const Layer& layer) {
  // converts the description to text and back, as if it were saved to a file
  return Json::parse(json_of(layer.describe()).dump());
}

TEST(LayerDescription, RecreatesEveryLayer) {
  std::set<std::string> types;
  for (const DescribedLayer& described : every_layer()) {
    const auto& [layer, copy, inputs] = described;
    types.insert(layer->type_name());
    SCOPED_TRACE(layer->type_name());
    layer->build_for(inputs);
    const auto again = value_of<std::shared_ptr<Layer>>(written_layer(*layer));
    EXPECT_EQ(again->type_name(), layer->type_name());
    again->build_for(inputs);
    EXPECT_EQ(written_layer(*again).dump(), written_layer(*layer).dump());

    const std::vector<Variable> from = layer->variables();
    std::vector<Variable> to = again->variables();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(to[i].name(), from[i].name());
      to[i].assign(from[i].value());
    }
    const std::vector<Tensor> x = rows_for(described, 2);
    const std::vector<Tensor> expected = layer->apply(x), actual = again->apply(x);
    const std::vector<Tensor> shared = copy->apply(x);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i].to_doubles(), expected[i].to_doubles());
      EXPECT_EQ(shared.at(i).to_doubles(), expected[i].to_doubles());
    }
  }
  // every_layer() must contain all layers: a new layer needs an entry there and in layer_table.cc.
  std::vector<std::string> readable = internal::readable_layers();
  std::erase_if(readable, [](const std::string& type) { return type == "OwnScale"; });
  EXPECT_THAT(types, UnorderedElementsAreArray(readable));
}

// Skips Embedding, whose inputs are integers; simple_layers_test.cc tests it.
TEST(EveryLayer, OutputHasInferredShapeEvenForEmptyBatch) {
  for (const auto& [layer, copy, inputs] : every_layer()) {
    SCOPED_TRACE(concat(layer->type_name(), " of ", join(inputs)));
    if (layer->type_name() != "Embedding") check_shapes(*layer, inputs);
  }
}

TEST(EveryLayer, GradientsMatchFiniteDifferences) {
  const ExactLayers exact;
  for (const auto& [layer, copy, inputs] : every_layer()) {
    SCOPED_TRACE(concat(layer->type_name(), " of ", join(inputs)));
    if (layer->type_name() != "Embedding") check_gradients(*layer, inputs);
  }
}

TEST(LayerDescription, PreservesEveryOption) {
  const Json call = Dense(3, {.activation = "relu",
                              .bias_initializer = initializers::truncated_normal(0.0, 0.25),
                              .kernel_regularizer = "l2",
                              .kernel_constraint = "unit_norm"})
                        .describe()
                        .call;
  EXPECT_EQ(call.dump(), R"(["Dense",3,{"activation":"relu","use_bias":true,"kernel_initializer":)"
                         R"(["glorot_uniform"],"bias_initializer":["truncated_normal",0.0,0.25],)"
                         R"("kernel_regularizer":["l2",0.01],"bias_regularizer":null,)"
                         R"("kernel_constraint":["unit_norm",[0]],"bias_constraint":null}])");
  // Options that are missing from a file take their default values.
  const auto layer = Layer::of_description({.call = Json::parse(R"(["Dense", 3, {}])")});
  EXPECT_EQ(layer->describe().call.dump(), Dense(3).describe().call.dump());
}

TEST(LayerDescription, PreservesPolicyNameAndInputShape) {
  Dense half(2, {.name = "half", .input_shape = Shape{4}});
  half.set_dtype_policy("mixed_bfloat16");
  const auto again = value_of<std::shared_ptr<Layer>>(written_layer(half));
  EXPECT_EQ(again->dtype_policy().name, "mixed_bfloat16");
  EXPECT_EQ(again->name(), "half");
  EXPECT_EQ(again->given_input_shape(), Shape{4});
  EXPECT_EQ(dtype_policy().name, "float32");
}

class OwnScale : public LayerOf<OwnScale> {
 public:
  explicit OwnScale(double factor, LayerOptions options = {})
      : LayerOf(std::move(options)), factor_(factor) {
    made_with(factor);
  }

 protected:
  Shape build(const Shape& input) override { return input; }
  Tensor call(const Tensor& input, CallContext) const override { return input * factor_; }

 private:
  double factor_;
};

class SilentLayer : public Layer {
 protected:
  Shape build(const Shape& input) override { return input; }
  Tensor call(const Tensor& input, CallContext) const override { return input; }
};

TEST(LayerDescription, CustomLayersCanBeRegistered) {
  const Json json = written_layer(OwnScale(2.5));
  const std::string unknown = error_of([&] { (void)value_of<std::shared_ptr<Layer>>(json); });
  EXPECT_THAT(unknown, HasSubstr("there is no layer 'OwnScale'"));
  EXPECT_THAT(unknown, HasSubstr("call register_layer<"));
  register_layer<OwnScale, double>();
  const auto again = value_of<std::shared_ptr<Layer>>(json);
  again->build_for(Shape{1});
  EXPECT_THAT((*again)(Tensor::ones({1, 1})).to_doubles(), ElementsAre(2.5));
  EXPECT_THAT(error_of([] { register_layer<OwnScale, double>(); }),
              HasSubstr("'OwnScale' is already registered"));
  EXPECT_ERROR((void)SilentLayer().describe(), kUnimplemented,
               "'silent_layer' (SilentLayer): the layer does not record its constructor arguments; "
               "call made_with(arguments)");
}

TEST(LayerDescription, ErrorsNameUnknownLayersAndOptions) {
  const auto error_of_call = [](const char* call) {
    return error_of([&] { (void)Layer::of_description({.call = Json::parse(call)}); });
  };
  EXPECT_THAT(error_of_call(R"(["Dens", 3, {}])"), HasSubstr("did you mean 'Dense'?"));
  EXPECT_THAT(error_of_call(R"(["Dense", 3, {"activatoin": "relu"}])"),
              HasSubstr("layer 'Dense': argument 2: there is no option 'activatoin'; expected one "
                        "of activation, use_bias"));
  EXPECT_THAT(error_of_call(R"(["Dense", 3, {"activatoin": "relu"}])"),
              HasSubstr("did you mean 'activation'?"));
  EXPECT_THAT(error_of_call(R"(["Dense", 3, {"use_bias": 1}])"), HasSubstr("'use_bias'"));
  EXPECT_THAT(error_of_call(R"(["Dense", 3])"), HasSubstr("expected 2 arguments, got 1"));
  EXPECT_THAT(error_of_call(R"(["Dense", 3.5, {}])"), HasSubstr("argument 1"));
  EXPECT_THAT(error_of_call(R"(["Dense", -3, {}])"), HasSubstr("positive"));
  const Dense own(1, {.kernel_regularizer = Regularizer([](const Tensor& w) { return w; })});
  EXPECT_ERROR((void)own.describe(), kUnimplemented, "custom function");
}

Tensor inputs_of(const Shape& example) {
  std::vector<std::int64_t> dims = {3};
  for (const std::int64_t dim : example) dims.push_back(dim);
  return random_uniform(Shape{std::span<const std::int64_t>(dims)}, {.seed = 5}, -1.0, 1.0);
}

/// Result of a layer for a batch, and the gradients of a weighted mean of that result.
struct Step {
  Tensor y;
  std::vector<Gradient> gradients;
};
Step step_of(Layer& layer, const Shape& example) {
  layer.build_for(example);
  GradientTape tape;
  Step step;
  step.y = layer(inputs_of(example), {.training = true});
  const Tensor factors = random_uniform(step.y.shape(), {.seed = 6}, 0.5, 1.5);
  const Tensor loss = reduce_mean(factors * cast(step.y, DType::kFloat32));
  const std::vector<Variable> weights = layer.trainable_variables();
  step.gradients = tape.gradient(loss, weights);
  return step;
}

/// Runs a layer under float32 and under `policy`; expects results that agree within the precision
/// of the type.
template <class Make>
void check_layer(const char* policy, const Shape& example, const Make& make) {
  const double epsilon = std::string(policy) == "mixed_float16" ? 0x1p-9 : 0x1p-6;
  set_random_seed(3);
  auto exact_layer = make();
  const Step exact = step_of(exact_layer, example);
  set_random_seed(3);
  const PolicyScope scope(policy);
  auto layer = make();
  SCOPED_TRACE(concat(policy, " ", layer.type_name()));
  const Step step = step_of(layer, example);
  EXPECT_EQ(step.y.dtype(), DTypePolicy(policy).compute);
  for (const Variable& weight : layer.variables()) EXPECT_EQ(weight.dtype(), DType::kFloat32);
  const auto close = [&](const Tensor& actual, const Tensor& expected) {
    double largest = 0;
    for (const double value : expected.to_doubles()) largest = std::max(largest, std::abs(value));
    expect_tensor(cast(actual, DType::kFloat64) / std::max(largest, 1e-6), expected.shape(),
                  (cast(expected, DType::kFloat64) / std::max(largest, 1e-6)).to_doubles(),
                  16 * epsilon);
  };
  close(step.y, exact.y);
  const std::vector<Variable> weights = layer.trainable_variables();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    SCOPED_TRACE(weights[i].name());
    ASSERT_TRUE(step.gradients[i].is_dense());
    EXPECT_EQ(step.gradients[i].dense().dtype(), DType::kFloat32);
    close(step.gradients[i].dense(), exact.gradients[i].dense());
  }
}

TEST(MixedPolicy, LayersComputeIn16BitsAndKeepFloat32Weights) {
  for (const char* policy : {"mixed_bfloat16", "mixed_float16"}) {
    check_layer(policy, {6}, [] { return Dense(4, {.activation = "relu"}); });
    check_layer(policy, {6, 6, 3}, [] { return Conv2D(4, 3, {.activation = "tanh"}); });
    check_layer(policy, {6, 6, 3}, [] { return SeparableConv2D(4, 3); });
    check_layer(policy, {4, 4, 3}, [] { return Conv2DTranspose(2, 3); });
    check_layer(policy, {8, 3}, [] { return Conv1D(4, 3); });
    check_layer(policy, {5, 6}, [] { return BatchNormalization(); });
    check_layer(policy, {5, 6}, [] { return LayerNormalization(); });
    check_layer(policy, {5, 6}, [] { return GroupNormalization(2); });
    check_layer(policy, {4, 3}, [] { return LSTM(4); });
    check_layer(policy, {4, 3}, [] { return GRU(4); });
    check_layer(policy, {6, 6, 2}, [] { return MaxPooling2D(); });
    check_layer(policy, {6}, [] { return PReLU(); });
    check_layer(policy, {5, 6}, [] {
      return MultiHeadAttention(2, 4, {.use_bias = false, .use_causal_mask = true});
    });
  }
}

TEST(MixedPolicy, NormalizationStatisticsUseFloat32) {
  const PolicyScope scope("mixed_float16");
  BatchNormalization layer;
  layer.build_for(Shape{1});
  // The squares exceed the range of float16.
  const Tensor x = Tensor::from<float>({2, 1}, {1000.0f, 3000.0f});
  const Tensor y = layer(x, {.training = true});
  expect_tensor(y, {2, 1}, {-1, 1});
  expect_tensor(layer.variables()[3].value(), {1}, {0.99 + 0.01 * 1e6}, 1e-6);
}

TEST(MixedPolicy, UnitNormalizationDoesNotUnderflow) {
  const PolicyScope scope("mixed_float16");
  UnitNormalization layer;
  layer.build_for(Shape{2});
  // The squares underflow to 0 in float16.
  expect_tensor(layer(Tensor::from<float>({1, 2}, {3e-5f, 4e-5f})), {1, 2}, {0.6, 0.8}, 2e-3);
}

TEST(MixedPolicy, EmbeddingsAreReadIn16Bits) {
  const PolicyScope scope("mixed_bfloat16");
  Embedding layer(5, 3);
  layer.build_for(Shape{2});
  GradientTape tape;
  const Tensor y = layer(Tensor::from<std::int64_t>({1, 2}, {4, 4}));
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  const std::vector<Variable> weights = layer.variables();
  const Gradient gradient = tape.gradient(reduce_sum(y), weights)[0];
  const Tensor dense = gradient.is_dense() ? gradient.dense() : gradient.slices().to_dense();
  EXPECT_EQ(dense.dtype(), DType::kFloat32);
  EXPECT_EQ(reduce_sum(dense).item(), 6.0f);
}

class LeftOperand : public LayerOf<LeftOperand> {
 public:
  LeftOperand() = default;

 protected:
  Shape build(const Shape& input) override {
    add_weight("ones", input, {.name = "weight"});
    add_weight("ones", input, {.name = "counter", .trainable = false, .autocast = false});
    return input;
  }
  Tensor call(const Tensor& input, CallContext) const override {
    EXPECT_EQ(weight(1).value().dtype(), DType::kFloat32);
    return weight(0) + input;
  }
};

TEST(MixedPolicy, AutocastVariableAsLeftOperandHasAGradient) {
  const PolicyScope scope("mixed_float16");
  LeftOperand layer;
  layer.build_for(Shape{2});
  GradientTape tape;
  const Tensor y = layer(Tensor::ones({3, 2}));
  EXPECT_EQ(y.dtype(), DType::kFloat16);
  const std::vector<Variable> weights = layer.trainable_variables();
  ASSERT_EQ(weights.size(), 1u);
  const Gradient gradient = tape.gradient(reduce_sum(y), weights)[0];
  ASSERT_TRUE(gradient.is_dense());
  expect_tensor(gradient.dense(), {2}, {3, 3});
  EXPECT_EQ(gradient.dense().dtype(), DType::kFloat32);
}

TEST(MixedPolicy, AutocastScopesNest) {
  const Variable weight(Tensor::ones({1}));
  {
    const AutocastScope outer(DType::kBFloat16);
    EXPECT_EQ(weight.value().dtype(), DType::kBFloat16);
    const AutocastScope inner(std::nullopt);
    EXPECT_EQ(weight.value().dtype(), DType::kFloat32);
  }
  EXPECT_EQ(weight.value().dtype(), DType::kFloat32);
}

TEST(MixedPolicy, LayerPolicyOverridesGlobalPolicy) {
  const PolicyScope scope("mixed_float16");
  Dense head(2);
  head.set_dtype_policy("float32");
  head.build_for(Shape{3});
  EXPECT_EQ(head(Tensor::ones({1, 3}, DType::kFloat16)).dtype(), DType::kFloat32);
  EXPECT_EQ(head.dtype_policy().name, "float32");
  EXPECT_ERROR(head.set_dtype_policy("float64"), kFailedPrecondition, "before the layer is added");
}

TEST(MixedPolicy, LossesOfFloat16PredictionsAreFloat32) {
  const Loss loss("mse");
  const Tensor value =
      loss.per_example(Tensor::zeros({2, 1}), Tensor::full({2, 1}, 300, DType::kFloat16));
  EXPECT_EQ(value.dtype(), DType::kFloat32);
  expect_tensor(value, {2}, {90000, 90000});  // too large for float16
}

TEST(DTypePolicyTest, WeightsAndOutputsUsePolicyType) {
  const PolicyScope policy("float64");
  Dense dense(2);
  dense.build_for({3});
  for (const Variable& weight : dense.variables()) EXPECT_EQ(weight.dtype(), DType::kFloat64);
  const Tensor y = dense(Tensor::ones({4, 3}));  // the float32 input is cast
  EXPECT_EQ(y.dtype(), DType::kFloat64);
}

TEST(DTypePolicyTest, LayerKeepsPolicySetAtConstructionAndUnknownPolicyFails) {
  Dense single(2);
  const PolicyScope policy("float64");
  single.build_for({3});
  EXPECT_EQ(single.variables()[0].dtype(), DType::kFloat32);
  EXPECT_EQ(single(Tensor::ones({1, 3}, DType::kFloat64)).dtype(), DType::kFloat32);
  EXPECT_INVALID(DTypePolicy("float128"),
                 "no policy is named 'float128'; expected one of float32, float64");
}

TEST(DeviceScopeLayers, WeightsAndOutputsAreOnScopeDevice) {
  constexpr Device kFirst{DeviceType::kCpu, 0}, kSecond{DeviceType::kCpu, 1};
  Dense dense(3, {.activation = "relu"});
  BatchNormalization normalization;
  {
    const DeviceScope scope("/device:CPU:1");
    dense.build_for({4});
    normalization.build_for({3});
  }
  for (const Layer* layer :
       {static_cast<const Layer*>(&dense), static_cast<const Layer*>(&normalization)}) {
    for (const Variable& variable : layer->variables()) {
      EXPECT_THAT(variable.storage().devices(), ElementsAre(kSecond)) << variable.name();
    }
  }
  const Tensor x = random_uniform({5, 4}, {.seed = 1});
  EXPECT_EQ(x.device(), kFirst);
  EXPECT_INVALID(dense(x), "dense", "several devices", "cpu:0", "cpu:1");
  GradientTape tape;
  tape.watch(x);
  Tensor y;
  {
    const DeviceScope scope(kSecond);
    y = normalization(dense(x), {.training = true});
  }
  EXPECT_EQ(y.device(), kSecond);
  EXPECT_EQ(tape.gradient(square(y), x).dense().device(), kFirst);
}

/// Residual block with everything that recomputation must not repeat: random numbers, moving
/// statistics, and an added loss.
class Block final : public LayerOf<Block> {
 public:
  explicit Block(std::string name) : LayerOf<Block>(std::move(name)) {}
  Dense& dense() { return dense_; }

 protected:
  Shape build(const Shape& input) override {
    add_layer(norm_, input);
    add_layer(dense_, input);
    add_layer(dropout_, input);
    add_layer(out_, input);
    return input;
  }
  Tensor call(const Tensor& x, CallContext context) const override {
    const Tensor hidden = dropout_(dense_(norm_(x, context), context), context);
    add_loss(context, reduce_sum(square(hidden)) * 0.01f);
    return x + dropout_(out_(hidden, context), context);
  }

 private:
  BatchNormalization norm_;
  Dense dense_{12, {.activation = "tanh"}};
  Dropout dropout_{0.5};
  Dense out_{12};
};

struct Result {
  std::string weights;  // includes the moving statistics
  std::vector<std::vector<double>> gradients;
  std::vector<double> losses;
  bool operator==(const Result&) const = default;
};

/// Trains three blocks. One of them contains a layer that is recomputed separately.
Result trained(bool is_remat) {
  set_random_seed(3);
  std::vector<Block> blocks = {Block("a"), Block("b"), Block("c")};
  Result result;
  std::vector<Variable> variables;
  for (Block& block : blocks) {
    block.build_for(Shape{12});
    block.set_remat(is_remat);
    for (const Variable& each : block.variables()) variables.push_back(each);
  }
  blocks[1].dense().set_remat(is_remat);
  EXPECT_EQ(blocks[0].is_remat(), is_remat);
  std::vector<Variable> trainable;
  for (const Variable& each : variables) {
    if (each.trainable()) trainable.push_back(each);
  }
  const Tensor x = random_normal({6, 12}, RandomKey{3, kUserPurpose, 1, 0, 0});
  for (int step = 0; step < 2; ++step) {
    const RandomContextScope random({3, static_cast<std::uint64_t>(step), 0});
    std::vector<Tensor> added;
    GradientTape tape;
    Tensor y = x;
    for (const Block& block : blocks) y = block(y, {.training = true, .added_losses = &added});
    // this block is called twice
    Tensor loss = reduce_sum(square(blocks[0](y, {.training = true}) - 1.0f));
    EXPECT_EQ(added.size(), 3U);
    for (const Tensor& each : added) loss = loss + each;
    for (const Gradient& gradient : tape.gradient(loss, trainable)) {
      result.gradients.push_back(gradient.dense().to_doubles());
    }
    result.losses.push_back(loss.item_double());
  }
  result.weights = hash_variables(variables);
  return result;
}

TEST(Remat, MatchesStoredActivationsBitwise) {
  const Result kept = trained(false), again = trained(true);
  EXPECT_EQ(again.losses, kept.losses);
  EXPECT_EQ(again.weights, kept.weights) << "moving statistics must be updated once";
  EXPECT_EQ(again.gradients, kept.gradients);
}

TEST(Remat, PropagatesMasks) {
  const auto gradient_with = [](bool is_remat) {
    set_random_seed(5);
    Masking masking;
    LSTM lstm(4, {.return_sequences = true}), last(3);
    masking.build_for(Shape{5, 2});
    lstm.build_for(Shape{5, 2});
    last.build_for(Shape{5, 4});
    lstm.set_remat(is_remat);
    const Tensor x = Tensor::from<float>({1, 5, 2}, {1, 2, 3, 4, 5, 6, 0, 0, 0, 0});
    const MaskScope masks;
    GradientTape tape;
    const Tensor y = last(lstm(masking(x)));
    std::vector<double> all = y.to_doubles();
    for (const Gradient& each : tape.gradient(reduce_sum(square(y)), lstm.trainable_variables())) {
      for (const double value : each.dense().to_doubles()) all.push_back(value);
    }
    return all;
  };
  EXPECT_EQ(gradient_with(true), gradient_with(false));
}

TEST(Remat, SixteenBitLayersRecomputeInTheirType) {
  const auto gradients_with = [](bool is_remat) {
    set_random_seed(5);
    Dense dense =
        is_remat ? remat(Dense(6, {.activation = "relu"})) : Dense(6, {.activation = "relu"});
    dense.set_dtype_policy(DTypePolicy("mixed_bfloat16"));
    dense.build_for(Shape{7});
    const Tensor x = random_normal({3, 7}, RandomKey{3, kUserPurpose, 1, 0, 0});
    GradientTape tape;
    const Tensor y = dense(x);
    EXPECT_EQ(y.dtype(), DType::kBFloat16);
    const Tensor loss = reduce_sum(square(cast(y, DType::kFloat32)));
    return tape.gradient(loss, dense.trainable_variables()[0]).dense().to_doubles();
  };
  EXPECT_EQ(gradients_with(true), gradients_with(false));
}

}  // namespace tutti::testing::layer_test
