// Tests every layer: written and read back with equal results; its shapes and gradients.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/layers/every_layer.h"
#include "tests/layers/layer_checks.h"

namespace tutti::layer_description_test {

using layer_tests::DescribedLayer;
using layer_tests::every_layer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

Json written_layer(const Layer& layer) {
  return Json::parse(json_of(layer.describe()).dump());  // as stored in a file
}

TEST(LayerDescription, MakesEveryLayerAgain) {
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
  // The table is complete, so a new layer needs a line in layer_table.cc and one above.
  std::vector<std::string> readable = internal::readable_layers();
  std::erase_if(readable, [](const std::string& type) { return type == "OwnScale"; });
  EXPECT_THAT(types, UnorderedElementsAreArray(readable));
}

// An embedding takes class numbers; it is tested in simple_layers_test.cc.
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
  // Options missing from a file get their defaults.
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
