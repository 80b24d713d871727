// Tests the construction and compilation of models: Sequential and Functional, names, summaries,
// strategies, and the arguments of compile() and fit().
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "tests/model/model_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/model/functional.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti::testing::sequential_test {

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

TEST(SequentialTest, MatchesKerasNamesAndParameterCounts) {
  const Sequential model = tutorial_network();
  EXPECT_EQ(model.num_parameters(), 121930);
  EXPECT_EQ(model.output_shape(), (Shape{10}));
  EXPECT_THAT(variable_names(model),
              ElementsAre("conv2d/kernel", "conv2d/bias", "conv2d_1/kernel", "conv2d_1/bias",
                          "dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"));
  EXPECT_THAT(variable_names(tutorial_network()), ContainerEq(variable_names(model)));
}

TEST(SequentialTest, SummaryMatchesKerasTable) {
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
  // Adam has two slots for 10 weights; its step and its learning rate take 8 bytes each.
  EXPECT_THAT(normalized.summary(),
              HasSubstr("Memory per replica: weights 64 B, gradients 40 B, optimizer 96 B\n"));
}

TEST(SequentialTest, DotGraphIsChainOfLayers) {
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

TEST(SequentialTest, FirstLayerCanDeclareInputShape) {
  Sequential model(Dense(1, {.input_shape = Shape{1}}));
  model.compile({.optimizer = "sgd", .loss = "mse"});
  EXPECT_EQ(model.num_parameters(), 2);
  EXPECT_INVALID(Sequential lost(Dense(10), Relu()),
                 "the shape of the input is unknown, so the weights of Dense cannot be "
                 "created; use Sequential(Input{{784}}, ...)");
}

TEST(SequentialTest, UnknownNameErrorListsValidNames) {
  Sequential model(Input{{1}}, Dense(1));
  EXPECT_INVALID(model.compile({.optimizer = "sdg", .loss = "mse"}), "sgd");
  EXPECT_INVALID(model.compile({.optimizer = "sgd", .loss = "mze"}), "mean_squared_error, mse");
  EXPECT_INVALID(model.compile({.loss = "mse", .metrics = {"acuracy"}}),
                 "one of accuracy, sparse_categorical_accuracy", "did you mean 'accuracy'?");
}

TEST(SequentialTest, CanBeBuiltLayerByLayerAndCopiesShareModel) {
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

TEST(SequentialTest, NestedNamedModelsDoNotClash) {
  Sequential encoder("encoder", Input{{4}}, Dense(3));
  Sequential model(Input{{4}}, encoder, Dense(2));
  EXPECT_THAT(variable_names(model), ElementsAre("encoder/dense/kernel", "encoder/dense/bias",
                                                 "dense/kernel", "dense/bias"));
  EXPECT_EQ(encoder.variables()[0], model.variables()[0]);
}

TEST(SequentialTest, ErrorsNameTheLayerAndTheShapes) {
  Sequential model(Input{{4}}, Dense(3), Dense(2));
  EXPECT_INVALID(model(Tensor::ones({4})),
                 "layer 'sequential' (Sequential): Sequential: expected a batch of examples "
                 "of shape [4], got a tensor of shape [4]");
  EXPECT_INVALID(model(Tensor::ones({2, 5})),
                 "layer 'sequential' (Sequential): layer 'dense' (Dense): ");
  EXPECT_INVALID(Sequential bad(Input{{3, 3, 1}}, Conv2D(1, 5)),
                 "layer 'conv2d' (Conv2D): Conv2D: a window of 5 does not fit");
}

/// Model that adds the outputs of two branches, which Sequential cannot express.
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

TEST(ModelTest, UserClassComposesLayers) {
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

/// Model with a layer and a weight that belongs to the model itself.
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

TEST(ModelTest, SummaryListsOwnWeights) {
  const std::string text = Scaled().summary();
  // The column of names is as wide as the longest name.
  const auto row = [](const char* name, const char* shape, const char* count) {
    std::string line(40 + 24, ' ');
    line.replace(0, std::strlen(name), name).replace(40, std::strlen(shape), shape);
    return concat(line, count, '\n');
  };
  EXPECT_THAT(text, HasSubstr(row(" Layer (type)", "Output Shape", "Param #")));
  EXPECT_THAT(text, HasSubstr(row(" a_dense_layer_with_a_long_name (Dense)", "(None, 3)", "15") +
                              row(" scale (weight)", "[5]", "5") + "==="));
  EXPECT_THAT(text, HasSubstr("Total params: 20\n"));
  EXPECT_THAT(TwoPaths().summary(), Not(HasSubstr("(weight)")));
}

TEST(ModelTest, CompileInDifferentScopeNamesBothStrategies) {
  auto first = mirrored("cpu:0-1");
  auto second = central("cpu:0-2");
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
  model.compile({.loss = "mse"});  // compile() uses the scope in which the model was created
  EXPECT_TRUE(first->variable_created_in_scope(model.optimizer().iterations()));
}

TEST(ModelTest, RejectsModelCreatedOutsideScope) {
  Sequential outside(Input{{1}}, Dense(1));
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  EXPECT_ERROR(outside.compile({.loss = "mse"}), kFailedPrecondition,
               "the model was created under the strategy ");
  Sequential inside(Input{{1}}, Dense(1));
  inside.compile({.loss = "mse"});
  EXPECT_TRUE(strategy->variable_created_in_scope(inside.variables()[0]));
}

TEST(ModelTest, RejectsCustomLoopOverVariablesCreatedOutsideScope) {
  Sequential outside(Input{{1}}, Dense(1));
  auto strategy = mirrored("cpu:0-1");
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

TEST(ModelTest, RejectsMetricCreatedOutsideScope) {
  SparseCategoricalAccuracy outside;
  auto strategy = mirrored("cpu:0-1");
  auto scope = strategy->scope();
  Sequential model(Input{{1}}, Dense(2));
  EXPECT_INVALID(model.compile({.loss = "sparse_categorical_crossentropy", .metrics = {outside}}),
                 "metric 'sparse_categorical_accuracy' was created outside the scope");
}

TEST(ModelTest, UseBeforeCompileFailsWithRemedyInMessage) {
  Sequential model(Input{{1}}, Dense(1));
  EXPECT_ERROR(model.fit(Tensor::ones({1, 1}), Tensor::ones({1, 1})), kFailedPrecondition,
               "Model::fit: the model is not compiled; call model.compile({");
  EXPECT_INVALID(model.compile({.loss = MeanSquaredError({.reduction = LossReduction::kNone})}),
                 "reduction NONE");
}

std::vector<std::string> functional_names(const Model& model) {
  std::vector<std::string> names;
  for (const Variable& variable : model.variables()) names.push_back(variable.name());
  return names;
}

/// Returns a network of two convolutions with a shortcut, as in residual networks.
Functional residual_network() {
  const SymbolicTensor x = Input{{6, 6, 2}, "image"};
  const SymbolicTensor y = Conv2D(2, 3, {.padding = "same", .activation = "relu"})(x);
  const SymbolicTensor z = Conv2D(2, 3, {.padding = "same"})(y);
  const SymbolicTensor sum = Relu()(Add()({x, z}));
  return Functional({x}, {Dense(3)(GlobalAveragePooling2D()(sum))});
}

TEST(FunctionalTest, LayersAreNumberedInCreationOrder) {
  const Functional model = residual_network();
  EXPECT_THAT(functional_names(model),
              ElementsAre("conv2d/kernel", "conv2d/bias", "conv2d_1/kernel", "conv2d_1/bias",
                          "dense/kernel", "dense/bias"));
  EXPECT_THAT(functional_names(residual_network()), ContainerEq(functional_names(model)));
  EXPECT_EQ(model.input_shape(), (Shape{6, 6, 2}));
  EXPECT_EQ(model.output_shape(), (Shape{3}));
  EXPECT_EQ(model.outputs()[0].name, "dense");
  EXPECT_THAT(model.summary(), HasSubstr("Model: \"functional\""));
  EXPECT_THAT(model.summary(), HasSubstr("Param #     Connected to\n"));
  EXPECT_THAT(model.summary(), HasSubstr(" image (Input)"));
  EXPECT_THAT(model.summary(), HasSubstr("0           image, conv2d_1\n"));
  EXPECT_THAT(model.summary(), HasSubstr(" add (Add) " + std::string(40, ' ') + "(None, 6, 6, 2)"));
  EXPECT_THAT(model.to_dot(), HasSubstr("  \"image\" [shape=ellipse];\n"));
  EXPECT_THAT(model.to_dot(), HasSubstr("  \"image\" -> \"add\";\n  \"conv2d_1\" -> \"add\";\n"));
}

TEST(FunctionalTest, MatchesEquivalentTensorOps) {
  const Functional model = residual_network();
  const std::vector<Variable> w = model.variables();
  const Tensor x = random_uniform({3, 6, 6, 2}, {.seed = 1}, -1.0, 1.0);
  const Conv2dOptions same{.padding = Padding::kSame};
  const Tensor y = relu(conv2d(x, w[0], w[1], same));
  const Tensor sum = relu(x + conv2d(y, w[2], w[3], same));
  const Tensor expected = dense(global_average_pool2d(sum), w[4], w[5]);
  expect_near(model(x).to_doubles(), expected.to_doubles(), 1e-5);
  EXPECT_EQ(model(Tensor::zeros({0, 6, 6, 2})).shape(), (Shape{0, 3}));
}

TEST(FunctionalTest, IsBitIdenticalToSequential) {
  set_random_seed(5);
  const SymbolicTensor x = Input{{4}};
  const Functional graph({x}, {x | Dense(8) | Relu() | Dense(2)});
  set_random_seed(5);
  const Sequential row(Input{{4}}, Dense(8), Relu(), Dense(2));
  const Tensor batch = random_uniform({5, 4}, {.seed = 2});
  EXPECT_EQ(graph(batch).to_doubles(), row(batch).to_doubles());
  EXPECT_EQ(functional_names(graph), functional_names(row));
}

TEST(FunctionalTest, CopiesOfInputDenoteSameInput) {
  const auto x = Input{{4}, "x"};
  const auto copy = x;
  const auto y = Dense(3)(x);
  const Functional model({copy}, {Concatenate()({x, y, Dense(2)(copy)})});
  EXPECT_THAT(model.input_names(), ElementsAre("x"));
  EXPECT_EQ(model.output_shape(), (Shape{4 + 3 + 2}));
  const Tensor batch = random_uniform({5, 4}, {.seed = 2});
  EXPECT_EQ(slice(model(batch), {0, 0}, {-1, 4}).to_doubles(), batch.to_doubles());
  EXPECT_EQ(Sequential(x, Dense(2)).input_shape(), x.shape());
  const auto other = Input{{4}};  // same shape, but a different input
  EXPECT_INVALID(Functional({other}, {y}), "depends on input 'x' of shape [4]");
}

TEST(FunctionalTest, LayerCalledTwiceSharesWeights) {
  const SymbolicTensor a = Input{{3}}, b = Input{{3}};
  const Dense tower(2);
  const Functional model({a, b}, {Dot()({tower(a), tower(b)})});
  EXPECT_EQ(model.num_parameters(), 8);
  const Tensor x = random_uniform({4, 3}, {.seed = 3}), y = random_uniform({4, 3}, {.seed = 4});
  const Tensor expected = reduce_sum(tower(x) * tower(y), {.axes = {1}, .keep_dims = true});
  expect_near(model({x, y}).to_doubles(), expected.to_doubles(), 1e-6);
}

TEST(FunctionalTest, SupportsNestedModelsAndRecurrentStates) {
  const SymbolicTensor words = Input{{5, 3}}, more = Input{{4, 3}};
  const std::vector<SymbolicTensor> encoded =
      LSTM(6, {.return_state = true}).apply(std::vector<SymbolicTensor>{words});
  ASSERT_EQ(encoded.size(), 3u);
  EXPECT_EQ(encoded[1].shape(), (Shape{6}));
  const SymbolicTensor decoded = LSTM(6)({more, encoded[1], encoded[2]});
  const Sequential head("head", Input{{6}}, Dense(4, {.activation = "tanh"}), Dense(2));
  const Functional inner({words, more}, {head(decoded)}, "inner");
  const SymbolicTensor outer_words = Input{{5, 3}}, outer_more = Input{{4, 3}};
  const Functional outer({outer_more, outer_words}, {Softmax()(inner({outer_words, outer_more}))});
  EXPECT_THAT(functional_names(outer), Contains("inner/lstm_1/lstm_cell/bias"));
  EXPECT_THAT(functional_names(outer), Contains("head/dense_1/bias"));
  const Tensor x = random_uniform({2, 5, 3}, {.seed = 1}),
               y = random_uniform({2, 4, 3}, {.seed = 2});
  expect_near(outer({y, x}).to_doubles(), softmax(inner({x, y})).to_doubles(), 1e-6);
  EXPECT_EQ(outer.output_activation(), "softmax");
}

/// Returns a network with two inputs and two outputs: class probabilities and a number.
Functional two_by_two(Strategy* strategy) {
  set_random_seed(6);
  std::optional<Scope> scope;
  if (strategy) scope.emplace(strategy->scope());
  const SymbolicTensor a = Input{{4}, "left"}, b = Input{{2}, "right"};
  const SymbolicTensor h = Dense(8, {.activation = "tanh"})(Concatenate()({a, b}));
  Functional model({a, b}, {Dense(3, {.activation = "softmax", .name = "kind"})(h),
                            Dense(1, {.kernel_regularizer = "l2", .name = "size"})(h)});
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.1},
                 .losses = {"sparse_categorical_crossentropy", "mse"},
                 .loss_weights = {1.0, 0.25},
                 .output_metrics = {{"accuracy"}, {"mae"}}});
  return model;
}

TEST(FunctionalTest, ModelsWithSeveralOutputsTrainEquallyUnderEveryStrategy) {
  const Tensor a = random_uniform({50, 4}, {.seed = 7}, -1.0, 1.0);
  const Tensor b = random_uniform({50, 2}, {.seed = 8}, -1.0, 1.0);
  const Tensor kinds = argmax(slice(a, {0, 0}, {-1, 3}), 1);
  const Tensor sizes = reduce_sum(b, {.axes = {1}});
  auto run = [&](Strategy* strategy) {
    Functional model = two_by_two(strategy);
    EXPECT_THAT(model.metrics_names(),
                ElementsAre("loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae"));
    const History history =
        model.fit({a, b}, {kinds, sizes},
                  {.epochs = 4, .batch_size = 16, .verbose = kSilent, .shuffle = false});
    EXPECT_LT(history["loss"].back(), history["loss"].front());
    std::vector<double> values = weights_of(model);
    for (const std::string& name : history.names()) values.push_back(history[name].back());
    const Logs logs = model.evaluate({a, b}, {kinds, sizes}, {.batch_size = 16});
    double penalty = 0.0;
    for (const Tensor& loss : model.losses()) penalty += loss.item_double();
    EXPECT_NEAR(logs["loss"], logs["kind_loss"] + 0.25 * logs["size_loss"] + penalty, 1e-5);
    for (const auto& [name, value] : logs) values.push_back(value);
    const std::vector<Tensor> predictions = model.predict_all({a, b}, {.batch_size = 16});
    EXPECT_EQ(predictions[0].shape(), (Shape{50, 3}));
    for (const double value : predictions[1].to_doubles()) values.push_back(value);
    return values;
  };
  const std::vector<double> expected = run(nullptr);
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    expect_near(run(strategy.get()), expected, 1e-5);
  }
}

TEST(FunctionalTest, ValidationWithVectorsMatchesEvaluate) {
  const Tensor a = random_uniform({50, 4}, {.seed = 7}), b = random_uniform({50, 2}, {.seed = 8});
  const Tensor kinds = argmax(slice(a, {0, 0}, {-1, 3}), 1), sizes = b.sum(1);
  const Tensor va = a[Range{0, 20}], vb = b[Range{0, 20}];
  const Tensor v_kinds = kinds[Range{0, 20}], v_sizes = sizes[Range{0, 20}];
  Functional model = two_by_two(nullptr);
  const History history = model.fit(
      {a, b}, {kinds, sizes},
      {.batch_size = 8, .validation_data = {{va, vb}, {v_kinds, v_sizes}}, .verbose = kSilent});
  const Logs expected = model.evaluate({va, vb}, {v_kinds, v_sizes}, {.batch_size = 8});
  for (const auto& [name, value] : expected) EXPECT_EQ(history["val_" + name].back(), value);
  EXPECT_INVALID(model.fit({a, b}, {kinds, sizes},
                           {.validation_data = {{va, vb}, {v_kinds, v_sizes, v_sizes}}}),
                 "validation_data", "2 output(s)", "received 3");
}

TEST(FunctionalTest, OutputClassWeightsMatchSampleWeights) {
  const Tensor a = random_uniform({50, 4}, {.seed = 7}), b = random_uniform({50, 2}, {.seed = 8});
  const Tensor kinds = argmax(slice(a, {0, 0}, {-1, 3}), 1), sizes = b.sum(1);
  std::vector<float> values;
  for (const double kind : kinds.to_doubles()) values.push_back(kind == 1.0 ? 5.0f : 1.0f);
  const Tensor weights = Tensor::from({50}, values);
  const auto trained = [&](const std::vector<Tensor>& components, FitOptions options) {
    Functional model = two_by_two(nullptr);
    options.verbose = kSilent;
    model.fit(Dataset::from_tensor_slices(components).batch(10), options);
    return weights_of(model);
  };
  const auto by_class = trained({a, b, kinds, sizes}, {.output_class_weights = {{{1, 5.0}}, {}}});
  EXPECT_EQ(by_class, trained({a, b, kinds, sizes, weights, Tensor::ones({50})}, {}));
  EXPECT_NE(by_class, trained({a, b, kinds, sizes}, {}));
  EXPECT_INVALID(trained({a, b, kinds, sizes}, {.class_weight = {{1, 5.0}}}), "class_weight",
                 "2 output(s)", ".output_class_weights = {");
  EXPECT_INVALID(trained({a, b, kinds, sizes}, {.output_class_weights = {{{1, 5.0}}}}),
                 "a map for each of the 2 outputs, got 1");
}

TEST(FunctionalTest, SampleWeightsApplyToAllOutputsOrToEachOutput) {
  const Tensor a = random_uniform({10, 4}, {.seed = 7}), b = random_uniform({10, 2}, {.seed = 8});
  const Tensor kinds = Tensor::zeros({10}, DType::kInt64), sizes = Tensor::ones({10});
  const Tensor none = Tensor::zeros({10}), all = Tensor::ones({10});
  Functional model = two_by_two(nullptr);
  auto losses = [&](std::vector<Tensor> components) {
    const Logs logs = model.evaluate(Dataset::from_tensor_slices(std::move(components)).batch(5));
    return std::pair(logs["kind_loss"], logs["size_loss"]);
  };
  const auto plain = losses({a, b, kinds, sizes});
  EXPECT_EQ(losses({a, b, kinds, sizes, none}), (std::pair(0.0, 0.0)));
  EXPECT_EQ(losses({a, b, kinds, sizes, all, none}), (std::pair(plain.first, 0.0)));
  EXPECT_EQ(losses({a, b, kinds, sizes, none, all}), (std::pair(0.0, plain.second)));
  EXPECT_INVALID(losses({a}), "expects 2 input(s), but it received 1");
}

TEST(FunctionalTest, WeightedMetricsOfEachOutputUseItsWeights) {
  const Tensor x = random_uniform({8, 2}, {.seed = 3}, -1.0, 1.0);
  const Tensor y = random_uniform({8, 1}, {.seed = 4}), z = random_uniform({8, 1}, {.seed = 5});
  const Tensor first = random_uniform({8}, {.seed = 6}), second = random_uniform({8}, {.seed = 7});
  const SymbolicTensor input = Input{{2}};
  Functional model({input}, {Dense(1, {.name = "a"})(input), Dense(1, {.name = "b"})(input)});
  model.compile({.losses = {"mse", "mse"},
                 .output_metrics = {{"mae"}, {}},
                 .output_weighted_metrics = {{"mae"}, {"mae", "mse"}}});
  EXPECT_THAT(model.metrics_names(),
              ElementsAre("loss", "a_loss", "b_loss", "a_mae", "a_weighted_mae", "b_mae", "b_mse"));
  const Logs logs = model.evaluate(Dataset::from_tensor_slices({x, y, z, first, second}).batch(3));
  const std::vector<Tensor> predictions = model.predict_all({x});
  const auto mean = [](const Tensor& prediction, const Tensor& label, const Tensor* weight,
                       double power) {
    double sum = 0.0, total = 0.0;
    for (std::size_t i = 0; i < 8; ++i) {
      const double w = weight ? weight->to_doubles()[i] : 1.0;
      sum += w * std::pow(std::abs(prediction.to_doubles()[i] - label.to_doubles()[i]), power);
      total += w;
    }
    return sum / total;
  };
  EXPECT_NEAR(logs["a_mae"], mean(predictions[0], y, nullptr, 1), 1e-6);
  EXPECT_NEAR(logs["a_weighted_mae"], mean(predictions[0], y, &first, 1), 1e-6);
  EXPECT_NEAR(logs["b_mae"], mean(predictions[1], z, &second, 1), 1e-6);
  EXPECT_NEAR(logs["b_mse"], mean(predictions[1], z, &second, 2), 1e-6);
  EXPECT_INVALID(model.compile({.output_weighted_metrics = {{"mae"}}}),
                 "one list of metrics for each of the 2 outputs, got 1");
}

TEST(FunctionalTest, GraphErrorsAreRaisedAtConstruction) {
  const SymbolicTensor x = Input{{4}}, image = Input{{4, 4, 1}, "image"};
  EXPECT_INVALID(Conv2D(1, 3)(x),
                 "layer 'conv2d' (Conv2D): Conv2D: expected examples of shape [height, ");
  EXPECT_INVALID(Add()({x, image}), "equal rank, got [4], [4, 4, 1]");
  EXPECT_INVALID(LSTM(2, {.return_state = true})(Reshape({2, 2})(x)), "expected one result, got 3");
  EXPECT_INVALID(Functional model({x}, {Flatten()(image)}),
                 "an output depends on input 'image' of shape [4, 4, 1], which was not passed");
  EXPECT_INVALID(Functional model({x, x}, {Relu()(x)}), "input 1 is given twice");
  EXPECT_INVALID(Functional model({Relu()(x)}, {x}), "input 0 is a result of layer");
}

TEST(FunctionalTest, CallAndCompileErrorsStateExpectedItems) {
  Functional model = two_by_two(nullptr);
  EXPECT_INVALID(model(Tensor::ones({1, 4})),
                 "layer 'functional' (Functional): expected 2 inputs (left, right), got 1");
  EXPECT_INVALID(model({Tensor::ones({1, 4}), Tensor::ones({2})}),
                 "input 'right': expected a batch of examples of shape [2]");
  EXPECT_INVALID(model({Tensor::ones({1, 4}), Tensor::ones({1, 2})}), "expected one result, got 2");
  EXPECT_INVALID(model.compile({.loss = "mse"}),
                 "one loss for each of the 2 outputs, got 1; use .losses");
  EXPECT_INVALID(model.compile({.metrics = {"mae"}, .losses = {"mse", "mse"}}),
                 "expected .output_metrics");
  EXPECT_INVALID(model.compile({.losses = {"mse", "mse"}, .loss_weights = {1.0}}),
                 "one loss weight for each of the 2 losses, got 1");
}

Tensor column(std::int64_t rows = 4) { return Tensor::ones({rows, 1}); }

Sequential one_input() {
  Sequential model(Input{{1}}, Dense(1));
  model.compile({.loss = "mse"});
  return model;
}

Functional two_inputs(int outputs = 1) {
  SymbolicTensor a = Input{{1}}, b = Input{{1}};
  const SymbolicTensor sum = Add()({a, b});
  std::vector<SymbolicTensor> results = {Dense(1)(sum)};
  CompileOptions options{.losses = {"mse"}};
  if (outputs == 2) {
    results.push_back(Dense(1)(sum));
    options.losses.push_back("mse");
  }
  Functional model({a, b}, results);
  model.compile(options);
  return model;
}

/// Model that takes two inputs, and declares them if `declared` is true.
class Siamese : public Model {
 public:
  explicit Siamese(bool declared) {
    if (declared) set_built({Shape{1}, Shape{1}}, {Shape{1}});
    add_layer(dense_, {1});
  }

 protected:
  Tensor call(const Tensor& x, CallContext context) const override { return dense_(x, context); }
  std::vector<Tensor> call_all(std::span<const Tensor> x, CallContext context) const override {
    return {dense_(x[0], context) - dense_(x[1], context)};
  }

 private:
  Dense dense_{1};
};

using Tensors = std::vector<Tensor>;

/// Returns the errors that fit() and evaluate() throw for the given tensors and for a dataset of
/// them.
std::vector<std::string> errors_of(Model& model, const Tensors& x, const Tensors& y) {
  Tensors all = x;
  all.insert(all.end(), y.begin(), y.end());
  const Dataset data = Dataset::from_tensor_slices(all).batch(2);
  return {error_of([&] { model.fit(x, y, {.verbose = kSilent}); }),
          error_of([&] { model.evaluate(x, y); }),
          error_of([&] { model.fit(data, {.verbose = kSilent}); }),
          error_of([&] { model.evaluate(data); })};
}

/// Compiles Dense(3, activation) twice with each loss; returns the warnings.
std::vector<std::string> compile_warnings(const std::string& activation,
                                          const std::vector<Loss>& losses) {
  return warnings_of([&] {
    for (const Loss& loss : losses) {
      for (int call = 0; call < 2; ++call) {
        Sequential model(Input{{4}}, Dense(3, {.activation = activation}));
        model.compile({.loss = loss});
      }
    }
  });
}

TEST(ModelArguments, NumberOfInputsIsCheckedInFitAndEvaluate) {
  Sequential one = one_input();
  // The test passes three inputs, because a dataset of two inputs and labels could also mean one
  // input, labels and weights.
  for (const std::string& error : errors_of(one, {column(), column(), column()}, {column()}))
    EXPECT_THAT(error, AllOf(HasSubstr("'sequential' expects 1 input(s)"), HasSubstr("received")));
  EXPECT_INVALID(one.fit(Tensors{column(), column()}, {column()}, {}),
                 "Model::fit: the model 'sequential' expects 1 input(s), but it received 2");
  EXPECT_INVALID(one.evaluate(Tensors{column(), column()}, {column()}),
                 "Model::evaluate: the model 'sequential' expects 1 input(s), but it "
                 "received 2");
  Functional two = two_inputs();
  for (const std::string& error : errors_of(two, {column()}, {column()}))
    EXPECT_THAT(error, AllOf(HasSubstr("'functional' expects 2 input(s)"), HasSubstr("received")));
  EXPECT_INVALID(two.fit(Tensors{column(), column(), column()}, {column()}, {}),
                 "expects 2 input(s), but it received 3");
  EXPECT_INVALID(two.fit(column(), column(), {}), "expects 2 input(s), but it received 1");
  EXPECT_INVALID(two.fit(Tensors{column(), column()}, {column()},
                         {.validation_data = {column(), column()}, .verbose = kSilent}),
                 "validation_data: the model 'functional' expects 2 input(s), but it "
                 "received 1");
}

TEST(ModelArguments, NumberOfLabelsAndWeightsIsChecked) {
  Sequential one = one_input();
  EXPECT_INVALID(one.fit(Tensors{column()}, Tensors{column(), column()}, {}),
                 "has 1 output(s), so it expects one label tensor for each, but it received 2",
                 ".sample_weight");
  EXPECT_INVALID(one.evaluate(Tensors{column()}, Tensors{column(), column()}), "has 1 output(s)");
  Functional four = two_inputs(2);
  const auto with_components = [&](std::size_t count) {
    return Dataset::from_tensor_slices(Tensors(count, column())).batch(2);
  };
  for (const std::size_t count : {4u, 5u, 6u})
    four.fit(with_components(count), {.verbose = kSilent});
  for (const std::size_t count : {2u, 3u, 7u}) {
    EXPECT_INVALID(four.fit(with_components(count), {.verbose = kSilent}),
                   "expects 2 input(s), then 2 label(s) (and 1 or 2 weight(s))",
                   concat("batches of ", count, " component(s)"));
  }
  EXPECT_INVALID(one.evaluate(with_components(1)), "without labels; add the labels");
}

TEST(ModelArguments, PredictRejectsWrongNumberOfInputs) {
  Sequential one = one_input();
  Functional two = two_inputs();
  EXPECT_INVALID(one.predict_all(Tensors{column(), column()}),
                 "Model::predict: the model 'sequential' expects 1 input(s), but it received "
                 "2");
  EXPECT_INVALID(two.predict(column()),
                 "Model::predict: the model 'functional' expects 2 input(s), but it received "
                 "1");
  EXPECT_INVALID(two.predict(Dataset::from_tensor_slices({column()}).batch(2)),
                 "expects 2 input(s), but it received 1 component(s)");
  const Dataset with_labels = Dataset::from_tensor_slices(Tensors(3, column())).batch(2);
  EXPECT_EQ(two.predict(with_labels).shape(), (Shape{4, 1}))
      << "predict() ignores labels, as in Keras";
}

TEST(ModelArguments, SubclassWithSeveralInputsMustDeclareThem) {
  Siamese open(false), declared(true);
  for (Siamese* model : {&open, &declared}) model->compile({.loss = "mse"});
  EXPECT_INVALID(open.fit(Tensors{column(), column()}, {column()}, {}),
                 "'siamese' expects 1 input(s), but it received 2",
                 "set_built({shapes of inputs}, {shapes of outputs})");
  declared.fit(Tensors{column(), column()}, {column()}, {.verbose = kSilent});
  EXPECT_EQ(declared.predict_all({column(), column()})[0].to_doubles(),
            std::vector<double>(4, 0.0));
}

TEST(CompileWarnings, WarnsOnceAboutLogitsProbabilitiesMismatch) {
  EXPECT_THAT(compile_warnings("softmax", {SparseCategoricalCrossentropy()}),
              ElementsAre(AllOf(HasSubstr("the output 'sequential' has the activation softmax, but "
                                          "its loss sparse_categorical_crossentropy takes logits"),
                                HasSubstr(".from_logits = false"))));
  EXPECT_THAT(compile_warnings("sigmoid", {BinaryCrossentropy(), BinaryFocalCrossentropy()}),
              ElementsAre(HasSubstr("binary_crossentropy takes logits"),
                          HasSubstr("binary_focal_crossentropy takes logits")));
  EXPECT_THAT(compile_warnings("", {CategoricalCrossentropy({.from_logits = false})}),
              ElementsAre(AllOf(HasSubstr("has the activation linear, but its loss "
                                          "categorical_crossentropy takes probabilities"),
                                HasSubstr(".from_logits = true"))));
}

TEST(CompileWarnings, MatchingOrUnknownLossesDoNotWarn) {
  const Loss own("binary_crossentropy", [](const Tensor& labels, const Tensor& predictions) {
    return losses::mean_squared_error(labels, predictions);
  });
  EXPECT_THAT(compile_warnings("softmax", {"sparse_categorical_crossentropy", "mse", own,
                                           CategoricalCrossentropy({.from_logits = false})}),
              IsEmpty());
  EXPECT_THAT(compile_warnings("", {"binary_crossentropy", CategoricalCrossentropy(), "mse", own}),
              IsEmpty());
  EXPECT_THAT(compile_warnings("relu", {BinaryCrossentropy({.from_logits = false})}), IsEmpty());
  EXPECT_THAT(warnings_of([] {
                Siamese model(true);  // a model whose output activation is unknown
                model.compile({.loss = BinaryCrossentropy({.from_logits = false})});
              }),
              IsEmpty());
}

/// User-defined model whose call() ends with the activation `top`.
class OwnCall : public Model {
 public:
  explicit OwnCall(const char* top) : dense_(3, {.activation = top}) {
    set_built(Shape{2}, add_layer(dense_, {2}));
  }

 protected:
  Tensor call(const Tensor& x, CallContext context) const override { return dense_(x, context); }

 private:
  Dense dense_;
};

TEST(FitWarnings, WarnsOnceWhenLogitsLossReceivesProbabilities) {
  const Tensor x = random_uniform({16, 2}, {.seed = 4}, -1.0, 1.0);
  const Tensor y = Tensor::zeros({16}, DType::kInt64);
  const auto warnings_with = [&](const char* top, const Loss& loss) {
    return warnings_of([&] {
      OwnCall model(top);
      model.compile({.loss = loss});
      model.fit(x, y, {.epochs = 2, .batch_size = 8, .verbose = kSilent});
    });
  };
  EXPECT_THAT(warnings_with("softmax", "sparse_categorical_crossentropy"),
              ElementsAre(AllOf(HasSubstr("'own_call' are probabilities (every row adds up to 1)"),
                                HasSubstr(".from_logits = false"))));
  for (const char* logits : {"", "relu", "sigmoid", "log_softmax"})
    EXPECT_THAT(warnings_with(logits, "sparse_categorical_crossentropy"), IsEmpty());
  EXPECT_THAT(warnings_with("softmax", SparseCategoricalCrossentropy({.from_logits = false})),
              IsEmpty());
}

TEST(FitWarnings, WarnsAboutFreezingOrUnfreezingWithoutCompile) {
  Dense first(1, {.name = "first"}), second(1, {.name = "second"});
  Sequential model(Input{{1}}, first, second);
  const auto warnings_of_fit = [&] {
    return warnings_of([&] {
      for (int call = 0; call < 2; ++call)
        model.fit(column(), column(), {.epochs = 2, .verbose = kSilent});
    });
  };
  first.freeze();
  model.compile({.loss = "mse"});
  EXPECT_THAT(warnings_of_fit(), IsEmpty());
  first.unfreeze();
  EXPECT_THAT(warnings_of_fit(),
              ElementsAre(AllOf(HasSubstr("'first/kernel' is trainable but is not trained"),
                                HasSubstr("compile()"))));
  model.compile({.loss = "mse"});
  EXPECT_THAT(warnings_of_fit(), IsEmpty());
  second.freeze();
  EXPECT_THAT(warnings_of_fit(),
              ElementsAre(HasSubstr("'second/kernel' is frozen but is trained")));
}

/// Returns a model with one weight, trained for `epochs` epochs of 8 batches.
Sequential fitted_line(const OptimizerSpec& optimizer, int epochs = 1) {
  set_random_seed(7);
  Sequential model(Input{{1}}, Dense(1, {.use_bias = false}));
  model.compile({.optimizer = optimizer, .loss = "mse"});
  const Tensor x = alternating(64);
  model.fit(x, x, {.epochs = epochs, .batch_size = 8, .verbose = kSilent, .shuffle = false});
  return model;
}

TEST(OptimizerOptionsTest, FitEndsWithMovingAverageWeights) {
  Sequential model =
      fitted_line(SgdOptions{.learning_rate = 0.1, .ema = EmaOptions{.momentum = 0.9}});
  const std::vector<Variable> state = model.optimizer().state_variables();
  ASSERT_TRUE(state.back().name().ends_with("/average"));
  EXPECT_EQ(weights_of(model), state.back().value().to_doubles());
  EXPECT_NE(weights_of(model), weights_of(fitted_line(SgdOptions{.learning_rate = 0.1})));
}

TEST(OptimizerOptionsTest, FitWithAccumulationCountsUpdatesNotBatches) {
  Sequential model = fitted_line(SgdOptions{.gradient_accumulation_steps = 4});
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 2);
}

TEST(OptimizerOptionsTest, LossScalingDoesNotChangeWeights) {
  const OptimizerSpec plain = SgdOptions{.learning_rate = 0.1};
  EXPECT_EQ(weights_of(fitted_line(with_dynamic_loss_scale(plain, {.growth_steps = 3}))),
            weights_of(fitted_line(plain)));
}

/// Trains for two epochs of three batches, the last of which has 44 rows, and evaluates. Returns
/// the losses, the accuracy and the weights.
std::vector<double> fitted_with_shares(Strategy& strategy) {
  set_random_seed(4);
  auto scope = strategy.scope();
  Sequential model(Input{{4}}, Dense(6, {.activation = "tanh", .kernel_regularizer = "l2"}),
                   Dense(3));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.5},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  const Dataset data = three_classes(300).batch(128);
  const History history = model.fit(data, {.epochs = 2, .verbose = Verbosity::kSilent});
  std::vector<double> values = history.at("loss");
  const Logs logs = model.evaluate(data, {.verbose = Verbosity::kSilent});
  values.push_back(logs.at("loss"));
  values.push_back(logs.at("accuracy"));
  for (const double weight : weights_of(model)) values.push_back(weight);
  return values;
}

TEST(UnequalReplicaWeights, FitMatchesUnsplitBatch) {
  OneDeviceStrategy one("cpu:0");
  const std::vector<double> expected = fitted_with_shares(one);
  for (const std::vector<double>& weights :
       {std::vector<double>{3, 1}, std::vector<double>{1, 9}}) {
    MirroredStrategy mirrored({.devices = "cpu:0-1", .replica_weights = weights});
    expect_near(fitted_with_shares(mirrored), expected, 2e-5);
    CentralStorageStrategy central({{.devices = "cpu:0-1", .replica_weights = weights}, {}});
    expect_near(fitted_with_shares(central), expected, 2e-5);
  }
}

}  // namespace tutti::testing::sequential_test
