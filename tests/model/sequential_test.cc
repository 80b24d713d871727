// Making models: forms of Sequential, composition, names, summary, strategies.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/model/model_helpers.h"

namespace tutti {
namespace {
using model_tests::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> variable_names(const Model& model) {
  std::vector<std::string> names;
  for (const Variable& variable : model.variables()) names.push_back(variable.name());
  return names;
}

Sequential tutorial_network() {
  return Sequential(Input{{28, 28, 1}}, Conv2D(32, 3, {.activation = "relu"}), MaxPooling2D(2),
                    Conv2D(64, 3, {.activation = "relu"}), MaxPooling2D(2), Flatten(),
                    Dense(64, {.activation = "relu"}), Dense(10));
}

TEST(SequentialTest, HasKerasNamesAndParameterCounts) {
  const Sequential model = tutorial_network();
  EXPECT_EQ(model.num_parameters(), 121930);
  EXPECT_EQ(model.output_shape(), (Shape{10}));
  EXPECT_THAT(variable_names(model),
              ElementsAre("conv2d/kernel", "conv2d/bias", "conv2d_1/kernel", "conv2d_1/bias",
                          "dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"));
  EXPECT_THAT(variable_names(tutorial_network()), ::testing::ContainerEq(variable_names(model)));
}

TEST(SequentialTest, SummaryIsKerasTable) {
  const std::string expected =
      R"(Model: "sequential"
____________________________________________________________________
 Layer (type)                   Output Shape            Param #
====================================================================
 conv2d (Conv2D)                (None, 26, 26, 32)      320
 max_pooling2d (MaxPooling2D)   (None, 13, 13, 32)      0
 conv2d_1 (Conv2D)              (None, 11, 11, 64)      18,496
 max_pooling2d_1 (MaxPooling2D) (None, 5, 5, 64)        0
 flatten (Flatten)              (None, 1600)            0
 dense (Dense)                  (None, 64)              102,464
 dense_1 (Dense)                (None, 10)              650
====================================================================
Total params: 121,930
Trainable params: 121,930
Non-trainable params: 0
Memory per replica: weights 476.29 KB, gradients 476.29 KB
____________________________________________________________________
)";
  EXPECT_EQ(tutorial_network().summary(), expected);
  Sequential normalized(Input{{3}}, BatchNormalization(), Dense(1));
  EXPECT_THAT(normalized.summary(), HasSubstr("Total params: 16\nTrainable params: 10\n"
                                              "Non-trainable params: 6\n"));
  normalized.compile({.optimizer = "adam", .loss = "mse"});
  // Two slots of 10 weights; the step and the learning rate take 8 bytes each.
  EXPECT_THAT(normalized.summary(),
              HasSubstr("Memory per replica: weights 64 B, gradients 40 B, optimizer 96 B\n"));
}

TEST(SequentialTest, DotIsAChainOfLayers) {
  Sequential model(Input{{4}}, Dense(3), Relu(), Dense(2, {.name = "head"}));
  EXPECT_EQ(model.to_dot(), R"(digraph "sequential" {
  rankdir=TB;
  node [shape=record, fontname=Helvetica];
  "dense" [label="dense (Dense)|[3]|15 parameters"];
  "relu" [label="relu (Relu)|[3]|0 parameters"];
  "head" [label="head (Dense)|[2]|8 parameters"];
  "dense" -> "relu";
  "relu" -> "head";
}
)");
}

TEST(SequentialTest, FirstLayerMayDeclareTheInput) {
  Sequential model(Dense(1, {.input_shape = Shape{1}}));
  model.compile({.optimizer = "sgd", .loss = "mse"});
  EXPECT_EQ(model.num_parameters(), 2);
  EXPECT_ERROR(Sequential lost(Dense(10), Relu()), kInvalidArgument,
               "the shape of the input is not known, so the weights of Dense cannot be "
               "made; try Sequential(Input{{784}}, ...)");
}

TEST(SequentialTest, UnknownNameErrorListsValidNames) {
  Sequential model(Input{{1}}, Dense(1));
  EXPECT_ERROR(model.compile({.optimizer = "sdg", .loss = "mse"}), kInvalidArgument, "sgd");
  EXPECT_ERROR(model.compile({.optimizer = "sgd", .loss = "mze"}), kInvalidArgument,
               "mean_squared_error, mse");
  EXPECT_ERROR(model.compile({.loss = "mse", .metrics = {"acuracy"}}), kInvalidArgument,
               "one of accuracy, sparse_categorical_accuracy", "did you mean 'accuracy'?");
}

TEST(SequentialTest, GrowsLayerByLayerAndCopiesAreTheSameModel) {
  Sequential model(Input{{4}});
  for (int i = 0; i < 3; ++i) model.add(Dense(5));
  const Sequential copy = model;
  model.add(Softmax());
  EXPECT_EQ(copy.output_shape(), (Shape{5}));
  EXPECT_EQ(copy.layers().size(), 4u);
  EXPECT_EQ(copy.output_activation(), "softmax");
  const Tensor x = Tensor::ones({2, 4});
  EXPECT_EQ(copy(x).to_doubles(), model(x).to_doubles());
}

TEST(SequentialTest, NamedModelsNestWithoutClashes) {
  Sequential encoder("encoder", Input{{4}}, Dense(3));
  Sequential model(Input{{4}}, encoder, Dense(2));
  EXPECT_THAT(variable_names(model), ElementsAre("encoder/dense/kernel", "encoder/dense/bias",
                                                 "dense/kernel", "dense/bias"));
  EXPECT_EQ(encoder.variables()[0], model.variables()[0]);
}

TEST(SequentialTest, ErrorsNameTheLayerAndTheShapes) {
  Sequential model(Input{{4}}, Dense(3), Dense(2));
  EXPECT_ERROR(model(Tensor::ones({4})), kInvalidArgument,
               "layer 'sequential' (Sequential): Sequential: expected a batch of examples "
               "of shape [4], got a tensor of shape [4]");
  EXPECT_ERROR(model(Tensor::ones({2, 5})), kInvalidArgument,
               "layer 'sequential' (Sequential): layer 'dense' (Dense): ");
  EXPECT_ERROR(Sequential bad(Input{{3, 3, 1}}, Conv2D(1, 5)), kInvalidArgument,
               "layer 'conv2d' (Conv2D): Conv2D: a window of 5 does not fit");
}

/// Two branches that are added: what Sequential cannot say.
class TwoPaths : public Model {
 public:
  TwoPaths() : left_(3), right_(3, {.activation = "tanh"}), top_(2) {
    const Shape middle = add_layer(left_, {4});
    add_layer(right_, {4});
    add_layer(top_, middle);
  }

 protected:
  Tensor call(const Tensor& x, CallContext context) const override {
    return top_(left_(x, context) + right_(x, context), context);
  }

 private:
  Dense left_, right_, top_;
};

TEST(ModelTest, AUserClassComposesLayers) {
  TwoPaths model;
  EXPECT_EQ(model.name(), "two_paths");
  EXPECT_EQ(model.num_parameters(), 15 + 15 + 8);
  EXPECT_THAT(variable_names(model), ElementsAre("dense/kernel", "dense/bias", "dense_1/kernel",
                                                 "dense_1/bias", "dense_2/kernel", "dense_2/bias"));
  EXPECT_EQ(model(Tensor::ones({5, 4})).shape(), (Shape{5, 2}));
  model.compile({.optimizer = "adam", .loss = "mse"});
  const History history = model.fit(Tensor::ones({8, 4}), Tensor::zeros({8, 2}),
                                    {.epochs = 20, .verbose = Verbosity::kSilent});
  EXPECT_LT(history["loss"].back(), history["loss"].front());
  EXPECT_THAT(model.summary(), HasSubstr("Model: \"two_paths\""));
}

/// A layer, and a weight of the model itself.
class Scaled : public Model {
 public:
  Scaled() : dense_(3, {.name = "a_dense_layer_with_a_long_name"}) {
    add_layer(dense_, {4});
    add_weight(initializers::ones(), {5}, {.name = "scale"});
  }

 protected:
  Tensor call(const Tensor& x, CallContext context) const override { return dense_(x, context); }

 private:
  Dense dense_;
};

TEST(ModelTest, TheSummaryListsTheModelsOwnWeights) {
  const std::string text = Scaled().summary();
  // The column of names is as wide as the longest.
  const auto row = [](const char* name, const char* shape, const char* count) {
    std::string line(40 + 24, ' ');
    line.replace(0, std::strlen(name), name).replace(40, std::strlen(shape), shape);
    return concat(line, count, '\n');
  };
  EXPECT_THAT(text, HasSubstr(row(" Layer (type)", "Output Shape", "Param #")));
  EXPECT_THAT(text, HasSubstr(row(" a_dense_layer_with_a_long_name (Dense)", "(None, 3)", "15") +
                              row(" scale (weight)", "[5]", "5") + "==="));
  EXPECT_THAT(text, HasSubstr("Total params: 20\n"));
  EXPECT_THAT(TwoPaths().summary(), ::testing::Not(HasSubstr("(weight)")));
}

TEST(ModelTest, CompileInsideAnotherScopeNamesBothStrategies) {
  auto first = model_tests::mirrored("cpu:0-1");
  auto second = model_tests::central("cpu:0-2");
  auto make = [&] {
    auto scope = first->scope();
    return Sequential(Input{{1}}, Dense(1));
  };
  Sequential model = make();
  {
    auto scope = second->scope();
    const std::string message = error_of([&] { model.compile({.loss = "mse"}); });
    EXPECT_THAT(message, HasSubstr("mirrored (2 replicas)"));
    EXPECT_THAT(message, HasSubstr("central_storage (3 replicas)"));
  }
  model.compile({.loss = "mse"});  // outside: in the model's own scope
  EXPECT_TRUE(first->variable_created_in_scope(model.optimizer().iterations()));
}

TEST(ModelTest, ModelFromOutsideTheScopeIsRefused) {
  Sequential outside(Input{{1}}, Dense(1));
  auto strategy = model_tests::mirrored("cpu:0-1");
  auto scope = strategy->scope();
  EXPECT_ERROR(outside.compile({.loss = "mse"}), kFailedPrecondition,
               "the model was made under the strategy ");
  Sequential inside(Input{{1}}, Dense(1));
  inside.compile({.loss = "mse"});
  EXPECT_TRUE(strategy->variable_created_in_scope(inside.variables()[0]));
}

TEST(ModelTest, CustomLoopOverVariablesFromOutsideIsRefused) {
  Sequential outside(Input{{1}}, Dense(1));
  auto strategy = model_tests::mirrored("cpu:0-1");
  auto scope = strategy->scope();
  const std::string message = error_of([&] {
    Sgd optimizer(outside.trainable_variables());
    strategy->run([&] {
      GradientTape tape;
      const Tensor x = Tensor::ones({2, 1}, DType::kFloat32, ReplicaContext::current().device());
      optimizer.minimize(tape, reduce_sum(outside(x)));
    });
  });
  EXPECT_THAT(message, HasSubstr("dense/"));
  EXPECT_THAT(message, HasSubstr("scope"));
}

TEST(ModelTest, MetricFromOutsideTheScopeIsRefused) {
  SparseCategoricalAccuracy outside;
  auto strategy = model_tests::mirrored("cpu:0-1");
  auto scope = strategy->scope();
  Sequential model(Input{{1}}, Dense(2));
  EXPECT_ERROR(model.compile({.loss = "sparse_categorical_crossentropy", .metrics = {outside}}),
               kInvalidArgument, "metric 'sparse_categorical_accuracy' was made outside the scope");
}

TEST(ModelTest, UseBeforeCompileSaysHow) {
  Sequential model(Input{{1}}, Dense(1));
  EXPECT_ERROR(model.fit(Tensor::ones({1, 1}), Tensor::ones({1, 1})), kFailedPrecondition,
               "Model::fit: the model is not compiled; try model.compile({");
  EXPECT_ERROR(model.compile({.loss = MeanSquaredError({.reduction = LossReduction::kNone})}),
               kInvalidArgument, "reduction NONE");
}

}  // namespace
}  // namespace tutti
