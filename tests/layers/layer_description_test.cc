// Every layer: written, read and made again with the same results; its shapes and its gradients.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/layers/layer_checks.h"
#include "tutti/model/layers/layers.h"

namespace tutti::layer_description_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

struct DescribedLayer {
  std::shared_ptr<Layer> layer, copy;  // the copy shares what build_for() makes
  std::vector<Shape> inputs;
};

template <class L>
DescribedLayer layer_case(L layer, std::vector<Shape> inputs) {
  return {std::make_shared<L>(layer), std::make_shared<L>(layer), std::move(inputs)};
}

/// Every layer, with options other than the defaults.
std::vector<DescribedLayer> every_layer() {
  const Shape image{6, 6, 2}, steps{4, 3};
  return {
      layer_case(Dense(3, {.activation = "relu",
                           .use_bias = false,
                           .kernel_initializer = initializers::random_normal(0.5, 0.1),
                           .kernel_regularizer = regularizers::l1_l2(0.1, 0.2),
                           .kernel_constraint = constraints::max_norm({.axis = {0, 1}}),
                           .name = "d"}),
                 {{4}}),
      layer_case(Embedding(5, 2, {.mask_zero = true}), {{3}}),
      layer_case(PositionEmbedding(6, {.embeddings_initializer = "normal"}), {steps}),
      layer_case(Masking(1.5), {steps}),
      layer_case(Conv2D(4, {3, 1}, {.strides = {2, 1}, .padding = "same", .groups = 2}), {image}),
      layer_case(DepthwiseConv2D(3, {.depth_multiplier = 2, .activation = "tanh"}), {image}),
      layer_case(SeparableConv2D(3, 3, {.dilation_rate = 2}), {image}),
      layer_case(Conv2DTranspose(3, 3, {.strides = 2, .padding = "same"}), {image}),
      layer_case(Conv1D(4, 2, {.padding = "causal", .dilation_rate = 2, .groups = 2}), {{5, 2}}),
      layer_case(Conv1D(3, 3, {.strides = 2, .padding = "same", .use_bias = false}), {steps}),
      layer_case(MaxPooling2D({2, 3}, {.strides = 1, .padding = "same"}), {image}),
      layer_case(AveragePooling2D(2), {image}),
      layer_case(MaxPooling1D(2, {.strides = 1}), {steps}),
      layer_case(AveragePooling1D(3, {.strides = 1, .padding = "same"}), {steps}),
      layer_case(GlobalAveragePooling2D(), {image}),
      layer_case(GlobalMaxPooling2D(), {image}),
      layer_case(GlobalAveragePooling1D(), {steps}),
      layer_case(GlobalMaxPooling1D(), {steps}),
      layer_case(BatchNormalization({.momentum = 0.5, .epsilon = 0.25, .center = false}), {image}),
      layer_case(LayerNormalization({.axes = {1, 2}, .epsilon = 0.5}), {steps}),
      layer_case(LayerNormalization({.axes = {1}, .scale = false}), {steps}),
      layer_case(GroupNormalization(2, {.epsilon = 0.5}), {image}),
      layer_case(RMSNormalization({.axes = {1, 2}, .epsilon = 0.5}), {steps}),
      layer_case(UnitNormalization({.axes = {1}}), {steps}),
      layer_case(LocalResponseNormalization({.depth_radius = 1, .alpha = 0.5}), {image}),
      layer_case(Dropout(0.25), {steps}),
      layer_case(GaussianNoise(0.5), {steps}),
      layer_case(GaussianDropout(0.25), {steps}),
      layer_case(SpatialDropout1D(0.25), {steps}),
      layer_case(SpatialDropout2D(0.25), {image}),
      layer_case(GaussianNoise(0.0), {steps}),
      layer_case(GaussianDropout(0.0), {steps}),
      layer_case(SpatialDropout2D(0.0), {image}),
      layer_case(Activation("gelu"), {steps}),
      layer_case(Relu({.max_value = 0.5, .negative_slope = 0.1, .threshold = 0.2}), {steps}),
      layer_case(Sigmoid(), {steps}),
      layer_case(Tanh(), {steps}),
      layer_case(Elu({.alpha = 0.5}), {steps}),
      layer_case(Gelu(), {steps}),
      layer_case(Softmax(), {steps}),
      layer_case(LeakyRelu(0.2), {steps}),
      layer_case(PReLU({.alpha_initializer = initializers::constant(0.3), .shared_axes = {1}}),
                 {steps}),
      layer_case(Flatten(), {steps}),
      layer_case(Reshape({2, -1}), {steps}),
      layer_case(Permute({2, 1}), {steps}),
      layer_case(RepeatVector(3), {{4}}),
      layer_case(ZeroPadding2D({1, 2, 0, 3}), {image}),
      layer_case(Cropping2D({1, 0, 2, 1}), {image}),
      layer_case(ZeroPadding1D({2, 1}), {steps}),
      layer_case(UpSampling2D({2, 3}, {.interpolation = "bilinear"}), {image}),
      layer_case(Add(), {steps, steps, {1, 3}}),
      layer_case(Subtract(), {steps, steps}),
      layer_case(Multiply(), {steps, {4, 1}}),
      layer_case(Average(), {steps, steps}),
      layer_case(Maximum(), {steps, steps}),
      layer_case(Minimum(), {steps, steps}),
      layer_case(Concatenate({.axis = 1}), {steps, steps}),
      layer_case(Dot({.axes = {2, 2}, .normalize = true}), {steps, steps}),
      layer_case(Dot({.axes = {1, 1}}), {{2, 3}, {2}}),
      layer_case(SimpleRNN(2, {.activation = "relu", .go_backwards = true}), {steps}),
      layer_case(SimpleRNN(2, {.use_bias = false, .return_sequences = true}), {steps}),
      layer_case(LSTM(2, {.return_sequences = true, .unit_forget_bias = false}), {steps}),
      layer_case(LSTM(2, {.return_sequences = true, .return_state = true}), {steps}),
      layer_case(LSTM(2, {.dropout = 0.5, .recurrent_dropout = 0.5, .go_backwards = true}),
                 {steps, {2}, {2}}),
      layer_case(GRU(2, {.use_bias = false, .reset_after = false}), {steps}),
      layer_case(GRU(2, {.return_state = true, .reset_after = false}), {steps, {2}}),
      layer_case(Bidirectional(GRU(2, {.return_sequences = true}), {.merge_mode = "sum"}), {steps}),
      layer_case(TimeDistributed(Dense(2, "tanh")), {steps}),
      layer_case(TimeDistributed(Conv2D(2, 2)), {{2, 3, 3, 1}}),
      layer_case(MultiHeadAttention(2, 3, {.output_dim = 5, .use_causal_mask = true}),
                 {steps, steps}),
      layer_case(MultiHeadAttention(1, 2, {.value_dim = 3, .output_dim = 2}),
                 {{2, 4}, {3, 5}, {3, 2}}),
      layer_case(MultiHeadAttention(2, 2, {.dropout = 0.5, .use_bias = false}), {steps}),
      layer_case(MultiHeadAttention(4, 2, {.num_key_value_heads = 2, .rotary_max_wavelength = 50}),
                 {steps}),
      layer_case(RotaryEmbedding({.max_wavelength = 50}), {{4, 2, 6}}),
      layer_case(SwiGLU(5, {.output_dim = 2, .use_bias = true}), {steps}),
      layer_case(TransformerBlock(2, 4, 5, {.rotary_max_wavelength = 50}), {steps}),
      layer_case(TransformerBlock(2, 4, 5,
                                  {.num_key_value_heads = 1,
                                   .rotary_max_wavelength = std::nullopt,
                                   .use_causal_mask = false,
                                   .dropout = 0.25,
                                   .epsilon = 0.5,
                                   .use_bias = true}),
                 {steps}),
      layer_case(Rescaling(2.0, {.offset = -1.0}), {image}),
      layer_case(RandomFlip({.mode = "vertical"}), {image}),
      layer_case(RandomBrightness(0.25, {.value_range = {0.0, 1.0}}), {image}),
      layer_case(RandomContrast(0.5), {image}),
      layer_case(CenterCrop({3, 4}), {image}),
  };
}

Json written_layer(const Layer& layer) {
  return Json::parse(json_of(layer.describe()).dump());  // as a file has it
}

TEST(LayerDescription, MakesEveryLayerAgain) {
  std::set<std::string> types;
  for (const auto& [layer, copy, inputs] : every_layer()) {
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
    std::vector<Tensor> x;
    for (const Shape& shape : inputs) {
      x.push_back(random_uniform(shape.with_front(2), {.seed = 3 + x.size()}, -1.0, 1.0));
      if (layer->type_name() == "Embedding") x.back() = cast(abs(x.back()) * 4, DType::kInt64);
    }
    const std::vector<Tensor> expected = layer->apply(x), actual = again->apply(x);
    const std::vector<Tensor> shared = copy->apply(x);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i].to_doubles(), expected[i].to_doubles());
      EXPECT_EQ(shared.at(i).to_doubles(), expected[i].to_doubles());
    }
  }
  // None is left out, so a new layer needs a line in layer_table.cc and one above.
  std::vector<std::string> readable = internal::readable_layers();
  std::erase_if(readable, [](const std::string& type) { return type == "OwnScale"; });
  EXPECT_THAT(types, UnorderedElementsAreArray(readable));
}

// An embedding takes class numbers; its tests are in simple_layers_test.cc.
TEST(EveryLayer, KeepsItsShapePromiseAlsoForNoRows) {
  for (const auto& [layer, copy, inputs] : every_layer()) {
    SCOPED_TRACE(concat(layer->type_name(), " of ", join(inputs)));
    if (layer->type_name() != "Embedding") layer_tests::check_shapes(*layer, inputs);
  }
}

TEST(EveryLayer, HasTheGradientsOfDifferences) {
  const layer_tests::ExactLayers exact;
  for (const auto& [layer, copy, inputs] : every_layer()) {
    SCOPED_TRACE(concat(layer->type_name(), " of ", join(inputs)));
    if (layer->type_name() != "Embedding") layer_tests::check_gradients(*layer, inputs);
  }
}

TEST(LayerDescription, HoldsEveryOption) {
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
  // Options that a file lacks have their defaults.
  const auto layer = Layer::of_description({.call = Json::parse(R"(["Dense", 3, {}])")});
  EXPECT_EQ(layer->describe().call.dump(), Dense(3).describe().call.dump());
}

TEST(LayerDescription, KeepsTypesAndNames) {
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

TEST(LayerDescription, OwnLayersAreRegistered) {
  const Json json = written_layer(OwnScale(2.5));
  const std::string unknown =
      layer_tests::error_of([&] { (void)value_of<std::shared_ptr<Layer>>(json); });
  EXPECT_THAT(unknown, HasSubstr("there is no layer 'OwnScale'"));
  EXPECT_THAT(unknown, HasSubstr("try register_layer<"));
  register_layer<OwnScale, double>();
  const auto again = value_of<std::shared_ptr<Layer>>(json);
  again->build_for(Shape{1});
  EXPECT_THAT((*again)(Tensor::ones({1, 1})).to_doubles(), ElementsAre(2.5));
  EXPECT_THAT(layer_tests::error_of([] { register_layer<OwnScale, double>(); }),
              HasSubstr("'OwnScale' already"));
  EXPECT_ERROR((void)SilentLayer().describe(), kUnimplemented,
               "'silent_layer' (SilentLayer): it does not say how it is made; try "
               "made_with(arguments)");
}

TEST(LayerDescription, ErrorsSayWhatDoesNotFit) {
  const auto error_of_call = [](const char* call) {
    return layer_tests::error_of([&] { (void)Layer::of_description({.call = Json::parse(call)}); });
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
  EXPECT_ERROR((void)own.describe(), kUnimplemented, "of your own");
}

}  // namespace tutti::layer_description_test
