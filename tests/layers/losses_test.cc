// Loss functions against plain formulas; loss objects and their reductions.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "tests/layers/layer_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/metric_spec.h"

namespace tutti {
namespace {

using layer_tests::EqualReplicas;
using layer_tests::error_of;
using layer_tests::expect_values;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const Tensor& logits() {
  static const Tensor value = Tensor::from<float>({2, 3}, {1, 2, 3, 0, -1, 4});
  return value;
}

double minus_log_softmax(std::vector<double> row, std::size_t label) {
  double sum = 0.0;
  for (const double value : row) sum += std::exp(value);
  return std::log(sum) - row[label];
}

TEST(LossFunctions, CrossentropiesOfLogitsAndOfProbabilitiesAgree) {
  const std::vector<double> expected = {minus_log_softmax({1, 2, 3}, 0),
                                        minus_log_softmax({0, -1, 4}, 2)};
  const Tensor labels = Tensor::from<std::int64_t>({2}, {0, 2});
  const Tensor one_hot_labels = Tensor::from<float>({2, 3}, {1, 0, 0, 0, 0, 1});
  using namespace losses;
  expect_values(sparse_categorical_crossentropy(labels, logits()), expected);
  expect_values(sparse_categorical_crossentropy(reshape(labels, {2, 1}), logits()), expected);
  expect_values(sparse_categorical_crossentropy(labels, softmax(logits()), {.from_logits = false}),
                expected);
  expect_values(categorical_crossentropy(one_hot_labels, logits()), expected);
  expect_values(categorical_crossentropy(one_hot_labels, softmax(logits()), {.from_logits = false}),
                expected);
  // Smoothing by 0.3: target 0.8 for the label and 0.1 for the others.
  const double smooth = 0.8 * minus_log_softmax({1, 2, 3}, 0) +
                        0.1 * minus_log_softmax({1, 2, 3}, 1) +
                        0.1 * minus_log_softmax({1, 2, 3}, 2);
  EXPECT_NEAR(
      categorical_crossentropy(one_hot_labels, logits(), {.label_smoothing = 0.3}).to_doubles()[0],
      smooth, 1e-6);
}

TEST(LossFunctions, RegressionLossesHaveTheirFormulas) {
  const Tensor labels = Tensor::from<float>({2, 2}, {0, 1, 2, 0});
  const Tensor predictions = Tensor::from<float>({2, 2}, {0.5, 1, 0, -4});
  using namespace losses;
  expect_values(mean_squared_error(labels, predictions), {0.125, 10});
  expect_values(mean_absolute_error(labels, predictions), {0.25, 3});
  expect_values(huber(labels, predictions), {0.0625, (1.5 + 3.5) / 2});
  expect_values(
      log_cosh(labels, predictions),
      {std::log(std::cosh(0.5)) / 2, (std::log(std::cosh(2.0)) + std::log(std::cosh(4.0))) / 2});
  const Tensor signs = Tensor::from<float>({2, 2}, {0, 1, -1, 1});
  expect_values(hinge(signs, predictions), {0.75, 3});
  expect_values(squared_hinge(signs, predictions), {1.125, 13});
  const Tensor p = Tensor::from<float>({1, 2}, {0.25, 0.75}),
               q = Tensor::from<float>({1, 2}, {0.5, 0.5});
  expect_values(kl_divergence(p, q), {0.25 * std::log(0.5) + 0.75 * std::log(1.5)});
  expect_values(poisson(p, q), {0.5 - (0.25 + 0.75) / 2 * std::log(0.5)}, 1e-5);
}

TEST(LossFunctions, FitColumnsToRowsAndTakeNoRows) {
  using namespace losses;
  expect_values(mean_squared_error(Tensor::from<std::int64_t>({2}, {1, 2}),
                                   Tensor::from<float>({2, 1}, {0, 0})),
                {1, 4});
  EXPECT_EQ(mean_squared_error(Tensor::zeros({0}), Tensor::zeros({0, 1})).shape(), (Shape{0}));
  EXPECT_EQ(
      sparse_categorical_crossentropy(Tensor::zeros({0}, DType::kInt64), Tensor::zeros({0, 3}))
          .shape(),
      (Shape{0}));
  EXPECT_EQ(sparse_categorical_crossentropy(Tensor::zeros({0}, DType::kInt64),
                                            Tensor::zeros({0, 3}), {.from_logits = false})
                .shape(),
            (Shape{0}));
  EXPECT_EQ(categorical_crossentropy(Tensor::zeros({0, 3}), Tensor::zeros({0, 3})).shape(),
            (Shape{0}));
  EXPECT_EQ(binary_crossentropy(Tensor::zeros({0, 1}), Tensor::zeros({0, 1})).shape(), (Shape{0}));
  EXPECT_THAT(error_of([] { mean_squared_error(Tensor::zeros({2}), Tensor::zeros({3})); }),
              HasSubstr(": labels and predictions do not fit; expected equal shapes [batch, ...], "
                        "got labels [2] and predictions [3]"));
  EXPECT_THAT(
      error_of([] {
        sparse_categorical_crossentropy(Tensor::zeros({2, 3}), Tensor::zeros({2, 3}));
      }),
      HasSubstr("got labels [2, 3] and predictions [2, 3]; try categorical_crossentropy for "
                "one-hot labels"));
  const Tensor numbers = Tensor::zeros({8}, DType::kInt64), scores = Tensor::zeros({8, 3});
  EXPECT_THAT(error_of([&] { categorical_crossentropy(numbers, scores); }),
              HasSubstr("got labels [8] and predictions [8, 3]; try "
                        "sparse_categorical_crossentropy, or one_hot() of class numbers"));
  EXPECT_THAT(error_of([&] { categorical_hinge(expand_dims(numbers, -1), scores); }),
              HasSubstr("predictions [8, 3]; try one_hot() of class numbers"));
}

TEST(LossFunctions, ErrorsNameTheLineOfTheCaller) {
  const Tensor labels = Tensor::from<std::int64_t>({2}, {0, 7});
  const auto line_of = [&](const std::string& message) {
    const std::string file = " at losses_test.cc:";
    const std::size_t place = message.find(file);
    return place == std::string::npos ? -1 : std::stoi(message.substr(place + file.size()));
  };
  const auto function = [&] { losses::sparse_categorical_crossentropy(labels, logits()); };
  EXPECT_EQ(line_of(error_of(function)), __LINE__ - 1);
  const SparseCategoricalCrossentropy object;
  const auto object_call = [&] { object(labels, logits()); };
  EXPECT_EQ(line_of(error_of(object_call)), __LINE__ - 1);
  const Loss by_name("mse");
  const auto named_call = [&] { by_name.per_example(labels, Tensor::ones({3})); };
  EXPECT_EQ(line_of(error_of(named_call)), __LINE__ - 1);
  const auto function_of_rank = [&] { losses::categorical_hinge(labels, Tensor::ones({2})); };
  EXPECT_EQ(line_of(error_of(function_of_rank)), __LINE__ - 1);
}

TEST(LossFunctions, GradientOfTheSumIsSoftmaxMinusLabel) {
  const Tensor labels = Tensor::from<std::int64_t>({2}, {0, 2});
  GradientTape tape;
  tape.watch(logits());
  const Tensor loss = reduce_sum(losses::sparse_categorical_crossentropy(labels, logits()));
  const Tensor p = softmax(logits());
  std::vector<double> expected = p.to_doubles();
  expected[0] -= 1;
  expected[5] -= 1;
  expect_values(tape.gradient(loss, logits()).to_dense(), expected);
}

TEST(LossObjects, BinaryCrossentropyFromLogitsByReduction) {
  const Tensor labels = Tensor::from<float>({3, 1}, {1, 0, 1});
  const Tensor z = Tensor::from<float>({3, 1}, {2, -1, 0});
  const double a = std::log1p(std::exp(-2)), b = std::log1p(std::exp(-1)), c = std::log(2.0);
  using enum LossReduction;
  expect_values(BinaryCrossentropy({.from_logits = true, .reduction = kNone})(labels, z),
                {a, b, c});
  expect_values(BinaryCrossentropy({.from_logits = true, .reduction = kSum})(labels, z),
                {a + b + c});
  expect_values(BinaryCrossentropy({.from_logits = true})(labels, z), {(a + b + c) / 3});
  expect_values(
      BinaryCrossentropy({.from_logits = true, .reduction = kSumOverBatchSize})(labels, z),
      {(a + b + c) / 3});
  expect_values(BinaryCrossentropy({.from_logits = false})(labels, sigmoid(z)), {(a + b + c) / 3});
  const Tensor weights = Tensor::from<float>({3}, {1, 0, 2});
  expect_values(BinaryCrossentropy()(labels, z, weights), {(a + 2 * c) / 3});
  EXPECT_EQ(BinaryCrossentropy()(Tensor::zeros({0, 1}), Tensor::zeros({0, 1})).item(), 0.0f);
}

TEST(LossObjects, MeansAreRefusedInAStepOfSeveralReplicas) {
  const Tensor labels = Tensor::from<float>({1}, {1});
  const Tensor z = Tensor::from<float>({1}, {2});
  EqualReplicas group(2);
  ReplicaGroupScope scope(&group);
  using enum LossReduction;
  for (const LossReduction reduction : {kAuto, kSumOverBatchSize}) {
    const std::string message =
        error_of([&] { BinaryCrossentropy({.reduction = reduction})(labels, z); });
    EXPECT_THAT(message, HasSubstr(concat("reduction ", reduction)));
    EXPECT_THAT(message, HasSubstr("LossReduction::kSum or LossReduction::kNone"));
    EXPECT_THAT(message, HasSubstr("compute_average_loss(per_example, global_batch_size)"));
  }
  EXPECT_EQ(BinaryCrossentropy({.reduction = kSum})(labels, z).shape(), Shape{});
  EXPECT_EQ(BinaryCrossentropy({.reduction = kNone})(labels, z).shape(), (Shape{1}));
  ReplicaGroupScope outside(nullptr);
  EXPECT_THAT(error_of([&] { BinaryCrossentropy()(labels, z); }),
              HasSubstr("Loss 'binary_crossentropy': called in the cross-replica context"));
}

TEST(LossObjects, AreMadeByName) {
  const Tensor labels = Tensor::from<float>({2, 1}, {0, 1});
  const Tensor predictions = Tensor::from<float>({2, 1}, {1, 1});
  expect_values(Loss("mse")(labels, predictions), {0.5});
  expect_values(Loss("mean_absolute_error")(labels, predictions), {0.5});
  expect_values(Huber({.delta = 0.5})(labels, predictions), {0.375 / 2});
  EXPECT_THAT(error_of([] { Loss loss("crossentropy"); }),
              HasSubstr("no loss is named 'crossentropy'; expected one of "
                        "sparse_categorical_crossentropy, categorical_crossentropy"));
  const Loss open("binary_crossentropy");
  EXPECT_TRUE(open.prediction_kind_is_open());
  EXPECT_FALSE(BinaryCrossentropy().prediction_kind_is_open());
  const Tensor p = Tensor::from<float>({2, 1}, {0.25, 0.75});
  expect_values(open.for_predictions(PredictionKind::kProbabilities).per_example(labels, p),
                {-std::log(0.75), -std::log(0.75)}, 1e-6);
}

double softplus_of(double z) { return std::log1p(std::exp(z)); }

TEST(LossFunctions, RelativeErrorsAndAngles) {
  const Tensor labels = Tensor::from<float>({2, 2}, {1, 2, -4, 0.5});
  const Tensor predictions = Tensor::from<float>({2, 2}, {2, 1, -2, 0.25});
  using namespace losses;
  expect_values(mean_absolute_percentage_error(labels, predictions), {75, 50}, 1e-4);
  const double first = std::pow(std::log(2.0) - std::log(3.0), 2);
  const double second = std::pow(std::log(1.5) - std::log(1.25), 2);
  expect_values(mean_squared_logarithmic_error(labels, predictions), {first, second / 2}, 1e-6);
  expect_values(cosine_similarity(labels, predictions),
                {-4 / 5.0, -8.125 / std::sqrt(16.25 * 4.0625)}, 1e-6);
  expect_values(cosine_similarity(Tensor::zeros({1, 2}), Tensor::ones({1, 2})), {0});
  const Tensor classes = Tensor::from<float>({2, 3}, {0, 1, 0, 0, 0, 1});
  const Tensor scores = Tensor::from<float>({2, 3}, {0.4, 0.4, 0.2, -1, 0, 3});
  expect_values(categorical_hinge(classes, scores), {1, 0}, 1e-6);
}

TEST(LossFunctions, FocalLossesDiscountWhatIsToldWell) {
  const Tensor labels = Tensor::from<float>({2, 1}, {1, 0});
  const Tensor z = Tensor::from<float>({2, 1}, {2, 0.5});
  const double p0 = 1 / (1 + std::exp(-2.0)), p1 = 1 - 1 / (1 + std::exp(-0.5));
  const double bce0 = softplus_of(-2), bce1 = softplus_of(0.5);
  using namespace losses;
  const std::vector<double> expected = {std::pow(1 - p0, 2) * bce0, std::pow(1 - p1, 2) * bce1};
  expect_values(binary_focal_crossentropy(labels, z), expected, 1e-6);
  expect_values(binary_focal_crossentropy(labels, sigmoid(z), {.from_logits = false}), expected,
                1e-6);
  expect_values(binary_focal_crossentropy(
                    labels, z, {.gamma = 1, .alpha = 0.1, .apply_class_balancing = true}),
                {0.1 * (1 - p0) * bce0, 0.9 * (1 - p1) * bce1}, 1e-6);
  const Tensor one_hot_labels = Tensor::from<float>({2, 3}, {1, 0, 0, 0, 0, 1});
  const double ce0 = minus_log_softmax({1, 2, 3}, 0), ce1 = minus_log_softmax({0, -1, 4}, 2);
  expect_values(
      categorical_focal_crossentropy(one_hot_labels, logits()),
      {0.25 * std::pow(1 - std::exp(-ce0), 2) * ce0, 0.25 * std::pow(1 - std::exp(-ce1), 2) * ce1},
      1e-6);
}

/// Gradients of every loss by name against central differences, in float64.
TEST(LossFunctions, GradientsAreThoseOfDifferences) {
  const Tensor labels = Tensor::from<double>({2, 3}, {0.2, 0.5, 0.3, 0.7, 0.1, 0.2});
  const Tensor predictions = Tensor::from<double>({2, 3}, {0.3, 0.4, 0.35, 0.6, 0.15, 0.28});
  for (const char* name :
       {"categorical_crossentropy", "binary_crossentropy", "binary_focal_crossentropy",
        "categorical_focal_crossentropy", "mse", "mae", "mape", "msle", "cosine_similarity",
        "huber", "log_cosh", "hinge", "squared_hinge", "categorical_hinge", "kld", "poisson"}) {
    SCOPED_TRACE(name);
    const Loss loss(name);
    layer_tests::expect_gradient_of_differences(
        [&](const Tensor& p) { return reduce_sum(loss.per_example(labels, p)); }, predictions);
  }
}

TEST(LossFunctions, EveryLossTakesNoRowsAndNamesMisfits) {
  for (const char* name :
       {"categorical_crossentropy", "binary_crossentropy", "binary_focal_crossentropy",
        "categorical_focal_crossentropy", "mean_squared_error", "mean_absolute_error",
        "mean_absolute_percentage_error", "mean_squared_logarithmic_error", "cosine_similarity",
        "huber", "log_cosh", "hinge", "squared_hinge", "categorical_hinge", "kl_divergence",
        "poisson"}) {
    SCOPED_TRACE(name);
    const Loss loss(name);
    EXPECT_EQ(loss.per_example(Tensor::zeros({0, 3}), Tensor::zeros({0, 3})).shape(), (Shape{0}));
    EXPECT_THAT(
        error_of([&] {
          loss.per_example(Tensor::ones({2, 3}), Tensor::ones({2, 4}));
        }),
        ContainsRegex(concat(name, " at losses_test.cc:[0-9]+: labels and predictions do")));
  }
}

TEST(LossObjects, ClassesHaveTheNamesOfTheirFunctions) {
  const Tensor labels = Tensor::from<float>({2, 2}, {0.3, 0.7, 0.5, 0.5});
  const Tensor predictions = Tensor::from<float>({2, 2}, {0.4, 0.6, 0.1, 0.9});
  const std::vector<Loss> objects = {MeanSquaredError(),
                                     MeanAbsoluteError(),
                                     MeanAbsolutePercentageError(),
                                     MeanSquaredLogarithmicError(),
                                     CosineSimilarity(),
                                     LogCosh(),
                                     Hinge(),
                                     SquaredHinge(),
                                     CategoricalHinge(),
                                     KLDivergence(),
                                     Poisson(),
                                     Huber(),
                                     BinaryCrossentropy(),
                                     CategoricalCrossentropy(),
                                     BinaryFocalCrossentropy(),
                                     CategoricalFocalCrossentropy()};
  for (const Loss& loss : objects) {
    SCOPED_TRACE(loss.name());
    EXPECT_EQ(loss(labels, predictions).to_doubles(),
              Loss(loss.name())(labels, predictions).to_doubles());
  }
  EXPECT_EQ(SparseCategoricalCrossentropy().name(), "sparse_categorical_crossentropy");
  EXPECT_EQ(Loss("kld")(labels, predictions).item(), KLDivergence()(labels, predictions).item());
}

TEST(ClassLabels, FractionsAndNaNAreRefusedWithRowAndValue) {
  const float nan = std::nanf("");
  const struct {
    Tensor labels;
    std::vector<std::string> parts;
  } cases[] = {
      {Tensor::from<float>({2}, {nan, 1}), {"expected class numbers", "got nan in row 0"}},
      {Tensor::from<float>({2}, {1, 1.9f}), {"got 1.9", "in row 1"}},
      {Tensor::from<float>({2, 1}, {2, -0.5f}), {"got -0.5 in row 1"}},
      {Tensor::from<double>({2}, {0.9, 1}), {"got 0.9 in row 0"}},
      {cast(Tensor::from<float>({2}, {0, nan}), DType::kFloat16), {"got nan in row 1"}},
  };
  for (const auto& [labels, parts] : cases) {
    const auto refuses = [&, &labels = labels, &parts = parts](const char* who, const auto& body) {
      std::vector<std::string> all = parts;
      all.push_back(who);
      thrown::expect_error(ErrorCode::kInvalidArgument, all, body);
    };
    refuses("sparse_categorical_crossentropy",
            [&] { (void)losses::sparse_categorical_crossentropy(labels, logits()); });
    for (const char* name : {"sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy"}) {
      refuses("sparse", [&] {
        MetricSpec(name)
            .make(Loss("sparse_categorical_crossentropy"))
            ->update_state(labels, logits());
      });
    }
    MeanIoU iou(3);
    thrown::expect_error(ErrorCode::kInvalidArgument, {"mean_io_u", "whole numbers"}, [&] {
      iou.update_state(reshape(labels, {2}), Tensor::from<std::int64_t>({2}, {0, 1}));
    });
  }
  // Of steps: the row is that of the batch.
  thrown::expect_error(ErrorCode::kInvalidArgument, {"got 0.5 in row 1"}, [&] {
    (void)losses::sparse_categorical_crossentropy(
        Tensor::from<float>({2, 3}, {0, 1, 2, 0, 0.5f, 1}), Tensor::zeros({2, 3, 4}));
  });
  const Tensor whole = Tensor::from<float>({2}, {2, 0});
  expect_values(losses::sparse_categorical_crossentropy(whole, logits()),
                {minus_log_softmax({1, 2, 3}, 2), minus_log_softmax({0, -1, 4}, 0)});
}

TEST(BinaryLabels, OutsideZeroToOneAreWarnedOfOnce) {
  const Tensor z = Tensor::from<float>({2, 1}, {0.5f, -1});
  const auto warnings = thrown::warnings_of([&] {
    for (int call = 0; call < 2; ++call) {
      (void)losses::binary_crossentropy(Tensor::from<std::int64_t>({2}, {0, 9}), z);
      (void)losses::binary_crossentropy(Tensor::from<float>({2}, {0, 1}), z);
      (void)losses::binary_crossentropy(Tensor::from<float>({2}, {0.25f, 0.5f}), z);
      (void)losses::binary_focal_crossentropy(Tensor::from<float>({2}, {-1, 1}), z);
    }
  });
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], HasSubstr("binary_crossentropy: expected labels of 0 or 1"));
  for (const char* name : {"binary_accuracy", "precision", "auc"}) {
    const auto of_metric = thrown::warnings_of([&] {
      auto metric = MetricSpec(name).make(Loss("binary_crossentropy"));
      metric->update_state(Tensor::from<std::int64_t>({2}, {1, 0}), z);
      for (int call = 0; call < 2; ++call)
        metric->update_state(Tensor::from<std::int64_t>({2}, {9, 0}), z);
    });
    ASSERT_EQ(of_metric.size(), 1u) << name;
    EXPECT_THAT(of_metric[0], HasSubstr(concat(name, ": expected labels of 0 or 1")));
  }
  EXPECT_THAT(warnings[1], HasSubstr("binary_focal_crossentropy: expected labels of 0 or 1"));
}

}  // namespace
}  // namespace tutti
