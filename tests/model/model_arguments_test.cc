// Tests arguments of compile and fit: refusals, options of optimizers, shares of unequal devices.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/model/model_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/model/functional.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti::model_arguments_test {

using namespace model_tests;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using thrown::error_of;
using thrown::warnings_of;

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

/// Takes two inputs, and declares so if `declared`.
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

/// Returns the errors of fit and evaluate for tensors, and for a dataset of the same tensors.
std::vector<std::string> errors_of(Model& model, const Tensors& x, const Tensors& y) {
  Tensors all = x;
  all.insert(all.end(), y.begin(), y.end());
  const Dataset data = Dataset::from_tensor_slices(all).batch(2);
  return {error_of([&] { model.fit(x, y, {.verbose = kSilent}); }),
          error_of([&] { model.evaluate(x, y); }),
          error_of([&] { model.fit(data, {.verbose = kSilent}); }),
          error_of([&] { model.evaluate(data); })};
}

/// Compiles Dense(3, activation) with each loss and returns the warnings.
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
  // In a dataset of three components, the second could be labels and the third weights.
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
                 "has 1 output(s), so it expects as many labels, but it received 2",
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
  EXPECT_INVALID(one.evaluate(with_components(1)), "where are the labels?");
}

TEST(ModelArguments, NumberOfInputsIsCheckedInPredict) {
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
  EXPECT_EQ(two.predict(with_labels).shape(), (Shape{4, 1})) << "labels are left out, as in Keras";
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

TEST(CompileWarnings, ALossOnTheOtherOfLogitsAndProbabilitiesIsNamedOnce) {
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

TEST(CompileWarnings, WhatFitsOrIsNotKnownIsNotWarnedOf) {
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
                Siamese model(true);  // its result is unknown
                model.compile({.loss = BinaryCrossentropy({.from_logits = false})});
              }),
              IsEmpty());
}

/// Ends with `top` in its own call().
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

TEST(FitWarnings, ProbabilitiesOfAnOwnCallUnderALossOnLogitsAreNamedOnce) {
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

TEST(FitWarnings, FreezingAndUnfreezingWithoutCompileAreNamed) {
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

/// Returns a model with one weight and no bias, trained on 8 batches of 8 rows.
Sequential fitted_line(const OptimizerSpec& optimizer, int epochs = 1) {
  set_random_seed(7);
  Sequential model(Input{{1}}, Dense(1, {.use_bias = false}));
  model.compile({.optimizer = optimizer, .loss = "mse"});
  const Tensor x = alternating(64);
  model.fit(x, x, {.epochs = epochs, .batch_size = 8, .verbose = kSilent, .shuffle = false});
  return model;
}

TEST(OptimizerOptionsTest, FitEndsWithTheMovingAverage) {
  Sequential model =
      fitted_line(SgdOptions{.learning_rate = 0.1, .ema = EmaOptions{.momentum = 0.9}});
  const std::vector<Variable> state = model.optimizer().state_variables();
  ASSERT_TRUE(state.back().name().ends_with("/average"));
  EXPECT_EQ(weights_of(model), state.back().value().to_doubles());
  EXPECT_NE(weights_of(model), weights_of(fitted_line(SgdOptions{.learning_rate = 0.1})));
}

TEST(OptimizerOptionsTest, AccumulationInFitCountsUpdates) {
  Sequential model = fitted_line(SgdOptions{.gradient_accumulation_steps = 4});
  EXPECT_EQ(model.optimizer().iterations().value().item_int(), 2);
}

TEST(OptimizerOptionsTest, LossScalingChangesNoBits) {
  const OptimizerSpec plain = SgdOptions{.learning_rate = 0.1};
  EXPECT_EQ(weights_of(fitted_line(with_dynamic_loss_scale(plain, {.growth_steps = 3}))),
            weights_of(fitted_line(plain)));
}

/// Trains two epochs of three batches, the last of 44 rows, and evaluates; returns losses, then
/// weights.
std::vector<double> fitted_with_shares(Strategy& strategy) {
  set_random_seed(4);
  auto scope = strategy.scope();
  Sequential model(Input{{4}}, Dense(6, {.activation = "tanh", .kernel_regularizer = "l2"}),
                   Dense(3));
  model.compile({.optimizer = SgdOptions{.learning_rate = 0.5},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"}});
  const Dataset data = model_tests::three_classes(300).batch(128);
  const History history = model.fit(data, {.epochs = 2, .verbose = Verbosity::kSilent});
  std::vector<double> values = history.at("loss");
  const Logs logs = model.evaluate(data, {.verbose = Verbosity::kSilent});
  values.push_back(logs.at("loss"));
  values.push_back(logs.at("accuracy"));
  for (const double weight : model_tests::weights_of(model)) values.push_back(weight);
  return values;
}

TEST(UnequalSharesInFit, MatchesTheUnsplitBatch) {
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

}  // namespace tutti::model_arguments_test
