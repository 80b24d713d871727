// Tests losses and metrics on one replica: values, weights, exact counts, unmasked steps, names,
// errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/losses.h"

#include "model/layers/labels_and_weights.h"
#include "tests/layers/layer_checks.h"
#include "tests/support/warnings.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/metric_spec.h"

namespace tutti::testing::losses_test {

const Tensor& logits() {
  static const Tensor value = Tensor::from<float>({2, 3}, {1, 2, 3, 0, -1, 4});
  return value;
}

/// Follows Keras's squeeze_or_expand_to_same_rank(). If the ranks stayed different, `labels -
/// predictions` would be broadcast to [2, 2].
TEST(CustomLoss, ReceivesLabelsWithRankOfPredictions) {
  const auto squared = [](const Tensor& labels, const Tensor& predictions) {
    EXPECT_EQ(labels.shape(), predictions.shape());
    return reduce_mean(square(labels - predictions), {.axes = {-1}});
  };
  const Tensor row = Tensor::from<float>({2}, {1, 5}), column = Tensor::from<float>({2, 1}, {0, 3});
  expect_values(Loss("squared", squared).per_example(row, column), {1, 4});
  MeanPredictionMetric metric("squared", squared, MetricDirection::kDown);
  metric.update_state(row, column);
  EXPECT_EQ(metric.result().item(), 2.5f);
}

TEST(LossFunctions, AlignLabelRankAndAcceptEmptyBatches) {
  using namespace losses;
  expect_values(mean_squared_error(Tensor::from<std::int64_t>({2}, {1, 2}),
                                   Tensor::from<float>({2, 1}, {0, 0})),
                {1, 4});
  const Tensor classes = Tensor::from<std::int64_t>({2}, {0, 2});
  expect_values(sparse_categorical_crossentropy(reshape(classes, {2, 1}), logits()),
                sparse_categorical_crossentropy(classes, logits()).to_doubles());
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
  EXPECT_INVALID(mean_squared_error(Tensor::zeros({2}), Tensor::zeros({3})),
                 ": labels and predictions do not match; expected equal shapes [batch, ...], "
                 "got labels [2] and predictions [3]");
  EXPECT_INVALID(sparse_categorical_crossentropy(Tensor::zeros({2, 3}), Tensor::zeros({2, 3})),
                 "got labels [2, 3] and predictions [2, 3]; use categorical_crossentropy for "
                 "one-hot labels");
  const Tensor numbers = Tensor::zeros({8}, DType::kInt64), scores = Tensor::zeros({8, 3});
  EXPECT_INVALID(categorical_crossentropy(numbers, scores),
                 "got labels [8] and predictions [8, 3]; use "
                 "sparse_categorical_crossentropy, or one_hot() of class numbers");
  EXPECT_INVALID(categorical_hinge(expand_dims(numbers, -1), scores),
                 "predictions [8, 3]; use one_hot() of class numbers");
}

TEST(LossFunctions, ErrorsNameCallerLine) {
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

TEST(LossObjects, ApplyConfiguredReduction) {
  const Tensor labels = Tensor::from<float>({3, 1}, {1, 0, 1});
  const Tensor z = Tensor::from<float>({3, 1}, {2, -1, 0});
  const double a = std::log1p(std::exp(-2)), b = std::log1p(std::exp(-1)), c = std::log(2.0);
  using enum LossReduction;
  expect_values(BinaryCrossentropy({.from_logits = true, .reduction = kNone})(labels, z),
                {a, b, c});
  expect_values(BinaryCrossentropy({.from_logits = true})(labels, z), {(a + b + c) / 3});
  EXPECT_EQ(BinaryCrossentropy()(Tensor::zeros({0, 1}), Tensor::zeros({0, 1})).item(), 0.0f);
}

TEST(LossObjects, RejectMeanReductionWithSeveralReplicas) {
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
  EXPECT_ERROR(BinaryCrossentropy()(labels, z), kFailedPrecondition,
               "Loss 'binary_crossentropy': called in the cross-replica context");
}

TEST(LossObjects, CanBeCreatedByName) {
  const Tensor labels = Tensor::from<float>({2, 1}, {0, 1});
  const Tensor predictions = Tensor::from<float>({2, 1}, {1, 1});
  expect_values(Loss("mse")(labels, predictions), {0.5});
  expect_values(Loss("mean_absolute_error")(labels, predictions), {0.5});
  EXPECT_EQ(Loss("kld")(predictions, predictions).item(), 0.0f);
  expect_values(Huber({.delta = 0.5})(labels, predictions), {0.375 / 2});
  EXPECT_INVALID(Loss loss("crossentropy"),
                 "no loss is named 'crossentropy'; expected one of "
                 "sparse_categorical_crossentropy, categorical_crossentropy");
  const Loss open("binary_crossentropy");
  EXPECT_TRUE(open.prediction_kind_is_open());
  EXPECT_FALSE(BinaryCrossentropy().prediction_kind_is_open());
  const Tensor p = Tensor::from<float>({2, 1}, {0.25, 0.75});
  expect_values(open.for_predictions(PredictionKind::kProbabilities).per_example(labels, p),
                {-std::log(0.75), -std::log(0.75)}, 1e-6);
}

TEST(LossFunctions, AcceptEmptyBatchesAndRejectShapeMismatches) {
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

TEST(ClassLabels, ErrorForFractionOrNanNamesRowAndValue) {
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
  for (const auto& each : cases) {
    const Tensor& labels = each.labels;
    const auto refuses = [&](const char* who, const auto& body) {
      std::vector<std::string> all = each.parts;
      all.push_back(who);
      expect_error(ErrorCode::kInvalidArgument, all, body);
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
    EXPECT_INVALID(iou.update_state(reshape(labels, {2}), Tensor::from<std::int64_t>({2}, {0, 1})),
                   "mean_io_u", "whole numbers");
  }
  // If labels have a dimension for time steps, the error still names the row in the batch.
  EXPECT_INVALID((void)losses::sparse_categorical_crossentropy(
                     Tensor::from<float>({2, 3}, {0, 1, 2, 0, 0.5f, 1}), Tensor::zeros({2, 3, 4})),
                 "got 0.5 in row 1");
  const Tensor whole = Tensor::from<float>({2}, {2, 0});
  expect_values(
      losses::sparse_categorical_crossentropy(whole, logits()),
      losses::sparse_categorical_crossentropy(Tensor::from<std::int64_t>({2}, {2, 0}), logits())
          .to_doubles());
}

TEST(BinaryLabels, WarnOnceIfOutsideZeroToOne) {
  const Tensor z = Tensor::from<float>({2, 1}, {0.5f, -1});
  const auto warnings = warnings_of([&] {
    for (int call = 0; call < 2; ++call) {
      (void)losses::binary_crossentropy(Tensor::from<std::int64_t>({2}, {0, 9}), z);
      (void)losses::binary_crossentropy(Tensor::from<float>({2}, {0, 1}), z);
      (void)losses::binary_crossentropy(Tensor::from<float>({2}, {0.25f, 0.5f}), z);
      (void)losses::binary_focal_crossentropy(Tensor::from<float>({2}, {-1, 1}), z);
    }
  });
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], HasSubstr("binary_crossentropy: expected labels from 0 to 1"));
  for (const char* name : {"binary_accuracy", "precision", "auc"}) {
    const auto of_metric = warnings_of([&] {
      auto metric = MetricSpec(name).make(Loss("binary_crossentropy"));
      metric->update_state(Tensor::from<std::int64_t>({2}, {1, 0}), z);
      for (int call = 0; call < 2; ++call)
        metric->update_state(Tensor::from<std::int64_t>({2}, {9, 0}), z);
    });
    ASSERT_EQ(of_metric.size(), 1u) << name;
    EXPECT_THAT(of_metric[0], HasSubstr(concat(name, ": expected labels from 0 to 1")));
  }
  EXPECT_THAT(warnings[1], HasSubstr("binary_focal_crossentropy: expected labels from 0 to 1"));
}

template <class Size>
concept TakenAsGlobalBatch = requires(const Tensor& losses, Size size) {
  compute_average_loss(losses, size);
};

Tensor example_losses() { return Tensor::from<float>({3}, {2.5, 6.2, 5.0}); }

TEST(AverageLoss, IsMeanWithoutStrategyAndZeroForEmptyInput) {
  EXPECT_NEAR(compute_average_loss(example_losses()).item(), 13.7 / 3, 1e-5);
  const Tensor none = Tensor::zeros({0});
  EXPECT_EQ(compute_average_loss(none).item(), 0.0f);
  EXPECT_EQ(compute_average_loss(none, {.sample_weight = 2.0f}).item(), 0.0f);
  EXPECT_EQ(compute_average_loss(none, {.sample_weight = Tensor::zeros({0})}).item(), 0.0f);
  EXPECT_EQ(compute_average_loss(none, 8).item(), 0.0f);
  EXPECT_INVALID(compute_average_loss(Tensor(1.0f)), "at least rank 1");
}

TEST(AverageLoss, InformsReplicaGroupWhenRowsAreAssumedEqual) {
  struct Group : EqualReplicas {
    Group() : EqualReplicas(2) {}
    void assume_equal_rows(std::int64_t rows) override { assumed.push_back(rows); }
    std::vector<std::int64_t> assumed;
  } group;
  ReplicaGroupScope scope(&group);
  compute_average_loss(example_losses(), 6);
  EXPECT_TRUE(group.assumed.empty());
  compute_average_loss(example_losses());
  EXPECT_EQ(group.assumed, std::vector<std::int64_t>{3});
}

TEST(AverageLoss, AppliesSampleWeights) {
  const Tensor losses = Tensor::from<float>({3}, {2, 4, 6});
  EqualReplicas group(2);
  ReplicaGroupScope scope(&group);
  auto sum_over_replicas = [&](const Tensor& weight) {
    return group.all_reduce(ReduceOp::kSum, compute_average_loss(losses, {.sample_weight = weight}))
        .item();
  };
  EXPECT_NEAR(sum_over_replicas(2.0f), 8.0, 1e-6);
  EXPECT_NEAR(sum_over_replicas(Tensor::from<float>({3}, {0.3, 0.5, 0.2})), 1.26667, 1e-5);
  EXPECT_NEAR(sum_over_replicas(Tensor::from<double>({3}, {0.3, 0.5, 0.2})), 1.26667, 1e-5);
  const Tensor pixels = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  EXPECT_NEAR(compute_average_loss(pixels, {.global_batch_size = 2,
                                            .sample_weight = Tensor::from<float>({2}, {1, 10})})
                  .item(),
              (3 + 70) / 2.0, 1e-5);
  EXPECT_INVALID(compute_average_loss(losses, {.sample_weight = Tensor::ones({2})}),
                 "compute_average_loss: the weights do not match the values; expected shape "
                 "[3] or that shape without trailing dimensions, got [2]");
}

TEST(AverageLoss, DividesByGlobalBatchSize) {
  const Tensor losses = Tensor::from<float>({5}, {1, 2, 3, 4, 5});
  EXPECT_EQ(compute_average_loss(losses, 10).item(), 1.5f);
  EXPECT_EQ(compute_average_loss(losses, {.global_batch_size = 10}).item(), 1.5f);
  EXPECT_EQ(compute_average_loss(losses, std::int64_t{10}).item(), 1.5f);
  EXPECT_EQ(compute_average_loss(losses, 0).item(), 0.0f);
  EXPECT_INVALID(compute_average_loss(losses, -1),
                 "global_batch_size must be non-negative, got -1");
  static_assert(TakenAsGlobalBatch<int> && TakenAsGlobalBatch<std::int64_t>);
  static_assert(!TakenAsGlobalBatch<float> && !TakenAsGlobalBatch<double>);
}

TEST(AverageLoss, RejectsCrossReplicaContext) {
  ReplicaGroupScope scope(nullptr);
  EXPECT_ERROR(compute_average_loss(example_losses(), 3), kFailedPrecondition,
               "compute_average_loss: called in the cross-replica context");
  EXPECT_ERROR(scale_regularization_loss(Tensor(1.0f)), kFailedPrecondition,
               "scale_regularization_loss: called in the cross-replica context");
}

TEST(AverageLoss, RegularizationIsDividedByReplicaCount) {
  EXPECT_NEAR(scale_regularization_loss(example_losses()).item(), 13.7, 1e-5);
  EqualReplicas group(2);
  ReplicaGroupScope scope(&group);
  const std::vector<Tensor> list = {2.5f, 6.2f, 5.0f};
  const Tensor loss = scale_regularization_loss(list);
  EXPECT_NEAR(loss.item(), 13.7 / 2, 1e-5);
  EXPECT_NEAR(group.all_reduce(ReduceOp::kSum, loss).item(), 13.7, 1e-5);
  EXPECT_EQ(scale_regularization_loss(std::vector<Tensor>{}).item(), 0.0f);
}

TEST(AverageLoss, DividesByReplicaCountOfInnermostScope) {
  EXPECT_EQ(compute_average_loss(Tensor::from<float>({2}, {2, 4})).item(), 3.0f);
  EqualReplicas eight(8), four(4), zero(0);
  ReplicaGroupScope outer(&eight);
  {
    ReplicaGroupScope inner(&four);
    EXPECT_EQ(compute_average_loss(Tensor::ones({2})).item(), 0.25f);
  }
  EXPECT_EQ(compute_average_loss(Tensor::ones({2})).item(), 0.125f);
  ReplicaGroupScope none(&zero);
  EXPECT_INVALID(compute_average_loss(Tensor::ones({2})), "expected at least one replica, got 0");
}

TEST(AverageLoss, HalfBatchGradientsSumToFullBatchGradientWithL2) {
  const Variable w(Tensor::from<float>({1}, {3}));
  auto gradient = [&](const Tensor& x) {
    GradientTape tape;
    const Tensor loss = compute_average_loss(square(x * w.value()), 4) +
                        scale_regularization_loss(reduce_sum(square(w.value())) * 0.1);
    return tape.gradient(loss, w).to_dense().item();
  };
  const double whole = gradient(Tensor::from<float>({4}, {1, 2, 3, 4}));
  EqualReplicas group(2);
  ReplicaGroupScope scope(&group);
  const double halves =
      gradient(Tensor::from<float>({1}, {1})) + gradient(Tensor::from<float>({3}, {2, 3, 4}));
  EXPECT_NEAR(whole, 2 * 3 * 30 / 4.0 + 0.2 * 3, 1e-4);
  EXPECT_NEAR(halves, whole, 1e-4);
}

TEST(AverageLoss, PreservesLossType) {
  EXPECT_EQ(compute_average_loss(Tensor::ones({2}, DType::kFloat64), 4).dtype(), DType::kFloat64);
}

/// Returns two sequences of two steps with one number each. The labels are 0, so each loss is the
/// square of the number.
Tensor numbers_of_steps() { return Tensor::from<float>({2, 2, 1}, {1, 2, 3, 4}); }
Tensor labels_of_steps() { return Tensor::zeros({2, 2, 1}); }

TEST(StepWeightsTest, LossesAverageWeightedUnmaskedSteps) {
  const Loss loss("mse");
  const Tensor x = numbers_of_steps(), y = labels_of_steps();
  const Tensor weights = Tensor::from<float>({2, 2}, {1, 0.5, 2, 0});
  expect_values(loss.per_example(y, x, weights), {(1 + 0.5 * 4) / 2, 2.0 * 9 / 2});
  expect_values(loss.per_example(y, x, Tensor::from<float>({2}, {3, 2})), {7.5, 25});
  expect_values(loss(y, x, weights), {(1.5 + 9) / 2});
  const MaskScope masks;
  MaskScope::set_mask(x, Tensor::from<bool>({2, 2}, {false, true, true, true}));
  expect_values(loss.per_example(y, x, weights), {0.5 * 4, 9});
  expect_values(loss.per_example(y, x, Tensor::from<float>({2, 1}, {3, 2})), {12, 25});
}

TEST(StepWeightsTest, WeightsScaleGradientsOfTheirSteps) {
  const Variable x(numbers_of_steps());
  GradientTape tape;
  const Tensor loss = reduce_sum(Loss("mse").per_example(
      labels_of_steps(), x.value(), Tensor::from<float>({2, 2}, {1, 0.5, 2, 0})));
  // The gradient of weight * x^2 / 2 is weight * x.
  expect_values(tape.gradient(loss, x).dense(), {1, 1, 6, 0});
}

TEST(StepWeightsTest, MetricsApplyMaskForEveryPredictionDType) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tensor x = cast(numbers_of_steps(), dtype);
    const MaskScope masks;
    MaskScope::set_mask(x, Tensor::from<bool>({2, 2}, {true, true, true, false}));
    MeanAbsoluteErrorMetric metric;
    metric.update_state(labels_of_steps(), x);
    EXPECT_EQ(metric.result().item_double(), 2.0) << dtype;
  }
}

TEST(StepWeightsTest, ErrorNamesMismatchedWeights) {
  const Tensor scores = Tensor::zeros({2, 3});
  EXPECT_INVALID(
      Loss("mse").per_example(scores, scores, Tensor::ones({2, 3})),
      "mse: weights of shape [2, 3], one per step, do not match the predictions; expected "
      "predictions [batch, steps, ...], got [2, 3]; use weights of shape [batch]");
  EXPECT_INVALID(
      Loss("mse").per_example(labels_of_steps(), numbers_of_steps(), Tensor::ones({2, 3})),
      "mse: the weights do not match the values; expected shape [2, 2]");
  EXPECT_INVALID(
      Loss("mse").per_example(Tensor::zeros({2}), numbers_of_steps(), Tensor::ones({2, 2})),
      "mse: expected labels [batch, steps, ...] whose leading dimensions are those of the "
      "predictions, [2, 2], because steps have a mask or weights, got [2]");
}

TEST(MetricTest, MeanAveragesOverValuesInsteadOfBatches) {
  Mean mean;
  EXPECT_EQ(mean.result().item(), 0.0f) << "mean of no values";
  mean.update_state(Tensor::from<std::int64_t>({3}, {0, 1, 2}));
  mean.update_state(Tensor::zeros({0}));
  mean.update_state(Tensor::from<std::int64_t>({7}, {3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(mean.result().item(), 4.5f);
  EXPECT_EQ(mean.variables()[0].value().item(), 45.0f);
  EXPECT_EQ(mean.variables()[1].value().item(), 10.0f);
  mean.reset_state();
  EXPECT_EQ(mean.result().item(), 0.0f);
}

TEST(MetricTest, SampleWeightsScaleValues) {
  Mean mean;
  mean.update_state(Tensor::from<float>({2}, {1, 4}), Tensor::from<float>({2}, {2, 1}));
  EXPECT_EQ(mean.result().item(), 2.0f);
  mean.reset_state();
  mean.update_state(Tensor::from<float>({2, 2}, {1, 3, 5, 7}), Tensor::from<float>({2}, {1, 0}));
  EXPECT_EQ(mean.result().item(), 2.0f);
  Sum sum;
  sum.update_state(Tensor::from<float>({2}, {1, 4}), 2.0f);
  sum.update_state(1.0f);
  EXPECT_EQ(sum.result().item(), 11.0f);
}

TEST(MetricTest, CountsAboveFloat32PrecisionAreExact) {
  Sum sum;
  sum.update_state(Tensor::full({}, 16777216.0));
  for (int i = 0; i < 3; ++i) sum.update_state(1.0f);
  EXPECT_EQ(sum.result().item_double(), 16777219.0);
  BinaryAccuracy binary;
  binary.update_state(Tensor::from<std::int64_t>({4}, {1, 0, 1, 0}),
                      Tensor::from<float>({4, 1}, {0.9, 0.4, 0.2, 0.1}));
  EXPECT_FLOAT_EQ(binary.result().item(), 0.75f);
  binary.reset_state();
  EXPECT_EQ(binary.result().item(), 0.0f);
}

TEST(MetricTest, AccuracyByNameDependsOnLoss) {
  const Tensor logits = Tensor::from<float>({2, 1}, {0.3, -2});
  const Tensor labels = Tensor::from<float>({2, 1}, {1, 0});
  auto of_logits = MetricSpec("accuracy").make(Loss("binary_crossentropy"));
  of_logits->update_state(labels, logits);
  EXPECT_EQ(of_logits->result().item(), 1.0f) << "a logit above 0 predicts class 1";
  auto of_probabilities =
      MetricSpec("accuracy")
          .make(Loss("binary_crossentropy").for_predictions(PredictionKind::kProbabilities));
  of_probabilities->update_state(labels, logits);
  EXPECT_EQ(of_probabilities->result().item(), 0.5f);
  EXPECT_EQ(of_logits->name(), "accuracy");
  auto by_shape = MetricSpec("acc").make(Loss("mse"));
  by_shape->update_state(Tensor::from<std::int64_t>({2}, {1, 1}),
                         Tensor::from<float>({2, 2}, {0, 1, 1, 0}));
  EXPECT_EQ(by_shape->result().item(), 0.5f);
}

TEST(MetricTest, LossNamesWorkAsMetrics) {
  auto mse = MetricSpec("mse").make(Loss("mae"));
  mse->update_state(Tensor::from<float>({2, 1}, {0, 0}), Tensor::from<float>({2, 1}, {1, 3}));
  mse->update_state(Tensor::from<float>({1, 1}, {0}), Tensor::from<float>({1, 1}, {1}));
  EXPECT_FLOAT_EQ(mse->result().item(), 11.0f / 3);
  EXPECT_INVALID(MetricSpec spec("accuray"),
                 "no metric is named 'accuray'; expected a loss or one of accuracy, ",
                 "; did you mean 'accuracy'?", "; as a loss: ");
}

TEST(MetricTest, TopKCountsLabelsAmongTheKLargestPredictions) {
  const Tensor predictions =
      Tensor::from<float>({3, 4}, {0.1, 0.2, 0.3, 0.4, 0.4, 0.3, 0.2, 0.1, 0.25, 0.25, 0.25, 0.25});
  auto share = [&](int k) {
    SparseTopKCategoricalAccuracy metric(k);
    metric.update_state(Tensor::from<std::int64_t>({3}, {2, 3, 3}), predictions);
    return metric.result().item_double();
  };
  EXPECT_DOUBLE_EQ(share(1), 1.0 / 3) << "ties count as hits";
  EXPECT_DOUBLE_EQ(share(2), 2.0 / 3);
  EXPECT_DOUBLE_EQ(share(4), 1.0);
  TopKCategoricalAccuracy one_hot_labels(2);
  one_hot_labels.update_state(Tensor::from<float>({3, 4}, {0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1}),
                              predictions);
  EXPECT_DOUBLE_EQ(one_hot_labels.result().item_double(), 2.0 / 3);
  SparseTopKCategoricalAccuracy outside(3);
  outside.update_state(Tensor::from<std::int64_t>({1}, {7}), Tensor::ones({1, 4}));
  EXPECT_EQ(outside.result().item(), 0.0f);
  EXPECT_INVALID(TopKCategoricalAccuracy bad(0), "a positive k");
}

TEST(MetricTest, PredictionAtThresholdIsNegative) {
  const Tensor labels = Tensor::from<float>({3}, {1, 0, 1});
  const Tensor predictions = Tensor::from<float>({3}, {0.9, 0.5, 0.5});
  Precision outside({.class_id = 1});
  EXPECT_INVALID(outside.update_state(reshape(labels, {3, 1}), reshape(predictions, {3, 1})),
                 "precision: expected class_id in [0, 1), got 1");
  Precision precision;
  Recall recall;
  precision.update_state(labels, predictions);
  recall.update_state(labels, predictions);
  EXPECT_EQ(precision.result().item_double(), 1.0);
  EXPECT_EQ(recall.result().item_double(), 0.5);
}

TEST(MetricTest, F1ScoreHasOneValuePerClass) {
  // Keras's example, with scores 0.5, 0.8 and 0.6667.
  const Tensor labels = Tensor::from<float>({3, 3}, {1, 1, 1, 1, 0, 0, 1, 1, 0});
  const Tensor predictions =
      Tensor::from<float>({3, 3}, {0.2, 0.6, 0.7, 0.2, 0.6, 0.6, 0.6, 0.8, 0.0});
  F1Score macro({.num_classes = 3, .threshold = 0.5});
  macro.update_state(labels, predictions);
  EXPECT_THAT(macro.per_class(),
              Pointwise(DoubleNear(1e-9), std::vector<double>{0.5, 0.8, 2.0 / 3}));
  EXPECT_INVALID(F1Score().update_state(labels, predictions), "use .num_classes = 3");
}

TEST(MetricTest, MeanIoUCoversOnlyPresentClasses) {
  // Keras's example, with classes 0 and 1: the mean of 1/3 and 1/3.
  const Tensor labels = Tensor::from<std::int64_t>({4}, {0, 0, 1, 1});
  const Tensor predictions = Tensor::from<std::int64_t>({4}, {0, 1, 0, 1});
  MeanIoU metric(2), with_absent(3);
  with_absent.update_state(labels, predictions);
  EXPECT_NEAR(with_absent.result().item_double(), 1.0 / 3, 1e-9);
  EXPECT_INVALID(metric.update_state(labels, predictions + predictions),
                 "mean_io_u: expected class numbers in [0, 2), got label 0 and prediction 2");
}

TEST(MetricTest, EmptyBatchChangesNothing) {
  auto check = [](auto metric, const Tensor& labels, const Tensor& predictions) {
    SCOPED_TRACE(metric.name());
    metric.update_state(labels, predictions);
    EXPECT_EQ(metric.result().item_double(), 0.0);
    for (const Variable& variable : metric.variables())
      for (const double value : variable.value().to_doubles()) EXPECT_EQ(value, 0.0);
  };
  const Tensor none = Tensor::zeros({0, 3});
  const Tensor no_classes = Tensor::zeros({0}, DType::kInt64);
  check(Precision(), none, none);
  check(Recall({.top_k = 2}), none, none);
  check(Auc(), none, none);
  check(F1Score({.num_classes = 3}), none, none);
  check(MeanIoU(3), no_classes, no_classes);
  check(RootMeanSquaredError(), none, none);
  check(CategoricalAccuracy(), none, none);
  check(SparseCategoricalAccuracy(), no_classes, none);
  check(TopKCategoricalAccuracy(2), none, none);
  check(SparseTopKCategoricalAccuracy(2), no_classes, none);
}

TEST(MetricTest, NamedMetricsHandleLogits) {
  const Loss logits("binary_crossentropy");
  const Tensor labels = Tensor::from<float>({2, 1}, {1, 0});
  const Tensor z = Tensor::from<float>({2, 1}, {0.2, -0.2});
  for (const char* name : {"precision", "recall", "auc", "true_positives"}) {
    auto metric = MetricSpec(name).make(logits);
    metric->update_state(labels, z);
    EXPECT_DOUBLE_EQ(metric->result().item_double(), 1.0) << name;
    EXPECT_EQ(metric->name(), name);
  }
  const Precision mine({.name = "mine"});
  auto same = MetricSpec(mine).make(logits);
  same->update_state(labels, Tensor::ones({2, 1}));
  EXPECT_DOUBLE_EQ(mine.result().item_double(), 0.5) << "the given metric must be updated";
}

/// A metric chosen by name gives the same result whether the model's outputs and the loss use
/// logits or the equivalent probabilities.
TEST(MetricNames, ThresholdsDependOnWhetherLossTakesLogits) {
  const Tensor z = Tensor::from<float>({6, 2}, {0.2f, 0.4f, -0.2f, 0.3f, 0.7f, -0.9f,  //
                                                -3.0f, 0.1f, 0.45f, 0.6f, -0.1f, -0.3f});
  const Tensor labels = Tensor::from<float>({6, 2}, {1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0});
  const std::vector<const char*> names = {
      "accuracy",       "binary_accuracy", "precision",       "recall",         "auc",
      "true_positives", "true_negatives",  "false_positives", "false_negatives"};
  for (const char* loss : {"binary_crossentropy", "bce", "binary_focal_crossentropy",
                           "categorical_crossentropy", "categorical_focal_crossentropy"}) {
    const Loss logits(loss);
    const Loss probabilities = logits.for_predictions(PredictionKind::kProbabilities);
    const bool categorical = std::string_view(loss).starts_with("categorical");
    for (const char* name : names) {
      auto of_logits = MetricSpec(name).make(logits);
      auto of_probabilities = MetricSpec(name).make(probabilities);
      of_logits->update_state(labels, z);
      of_probabilities->update_state(labels, categorical ? softmax(z) : sigmoid(z));
      EXPECT_DOUBLE_EQ(of_logits->result().item_double(), of_probabilities->result().item_double())
          << name << " of " << loss;
    }
  }
}

TEST(MetricTest, UpdatesAreNotRecordedOnTape) {
  const Variable w(Tensor::from<float>({1}, {2}));
  Mean mean;
  GradientTape tape;
  const Tensor y = w.value() * 3.0;
  mean.update_state(y);
  EXPECT_EQ(tape.gradient(y, w).to_dense().item(), 3.0f);
}

TEST(MetricTest, CopiesShareState) {
  Mean mean;
  Mean copy = mean;
  copy.update_state(4.0f);
  EXPECT_EQ(mean.result().item(), 4.0f);
}

}  // namespace tutti::testing::losses_test
