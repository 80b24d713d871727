// Tests metrics on one replica: values, weights, exact counts, names.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metric_spec.h"

#include "tests/layers/layer_checks.h"

namespace tutti::metrics_test {

TEST(MetricTest, MeanIsOverValuesNotOverBatches) {
  Mean mean;
  EXPECT_EQ(mean.result().item(), 0.0f) << "of nothing";
  mean.update_state(Tensor::from<std::int64_t>({3}, {0, 1, 2}));
  mean.update_state(Tensor::zeros({0}));
  mean.update_state(Tensor::from<std::int64_t>({7}, {3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(mean.result().item(), 4.5f);
  EXPECT_EQ(mean.variables()[0].value().item(), 45.0f);
  EXPECT_EQ(mean.variables()[1].value().item(), 10.0f);
  mean.reset_state();
  EXPECT_EQ(mean.result().item(), 0.0f);
}

TEST(MetricTest, WeightsCountAsMuchAsTheyWeigh) {
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

TEST(MetricTest, CountsBeyondTwoToTheTwentyFourAreExactAlsoWithoutLastAxis) {
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

TEST(MetricTest, AccuracyByNameFollowsTheLoss) {
  const Tensor logits = Tensor::from<float>({2, 1}, {0.3, -2});
  const Tensor labels = Tensor::from<float>({2, 1}, {1, 0});
  auto of_logits = MetricSpec("accuracy").make(Loss("binary_crossentropy"));
  of_logits->update_state(labels, logits);
  EXPECT_EQ(of_logits->result().item(), 1.0f) << "a logit above 0 is a yes";
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

TEST(MetricTest, LossesAreMetricsByName) {
  auto mse = MetricSpec("mse").make(Loss("mae"));
  mse->update_state(Tensor::from<float>({2, 1}, {0, 0}), Tensor::from<float>({2, 1}, {1, 3}));
  mse->update_state(Tensor::from<float>({1, 1}, {0}), Tensor::from<float>({1, 1}, {1}));
  EXPECT_FLOAT_EQ(mse->result().item(), 11.0f / 3);
  EXPECT_INVALID(MetricSpec spec("accuray"), "no metric is named 'accuray'; expected a loss (",
                 ") or one of accuracy, ", "; did you mean 'accuracy'?");
}

TEST(MetricTest, TopKCountsLabelsAmongTheLargest) {
  const Tensor predictions =
      Tensor::from<float>({3, 4}, {0.1, 0.2, 0.3, 0.4, 0.4, 0.3, 0.2, 0.1, 0.25, 0.25, 0.25, 0.25});
  auto share = [&](int k) {
    SparseTopKCategoricalAccuracy metric(k);
    metric.update_state(Tensor::from<std::int64_t>({3}, {2, 3, 3}), predictions);
    return metric.result().item_double();
  };
  EXPECT_DOUBLE_EQ(share(1), 1.0 / 3) << "ties count as in";
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

TEST(MetricTest, APredictionAtTheThresholdIsANo) {
  const Tensor labels = Tensor::from<float>({3}, {1, 0, 1});
  const Tensor predictions = Tensor::from<float>({3}, {0.9, 0.5, 0.5});
  Precision outside({.class_id = 1});
  EXPECT_INVALID(outside.update_state(reshape(labels, {3, 1}), reshape(predictions, {3, 1})),
                 "precision: expected class_id below 1, got 1");
  Precision precision;
  Recall recall;
  precision.update_state(labels, predictions);
  recall.update_state(labels, predictions);
  EXPECT_EQ(precision.result().item_double(), 1.0);
  EXPECT_EQ(recall.result().item_double(), 0.5);
}

TEST(MetricTest, F1ScoreHasAValuePerClass) {
  // Keras's example: scores 0.5, 0.8, 0.6667.
  const Tensor labels = Tensor::from<float>({3, 3}, {1, 1, 1, 1, 0, 0, 1, 1, 0});
  const Tensor predictions =
      Tensor::from<float>({3, 3}, {0.2, 0.6, 0.7, 0.2, 0.6, 0.6, 0.6, 0.8, 0.0});
  F1Score macro({.num_classes = 3, .threshold = 0.5});
  macro.update_state(labels, predictions);
  EXPECT_THAT(macro.per_class(), ::testing::Pointwise(::testing::DoubleNear(1e-9),
                                                      std::vector<double>{0.5, 0.8, 2.0 / 3}));
  EXPECT_INVALID(F1Score().update_state(labels, predictions), "try .num_classes = 3");
}

TEST(MetricTest, MeanIoUIsOverClassesThatOccur) {
  // Keras's example: classes 0 and 1, mean of 1/3 and 1/3.
  const Tensor labels = Tensor::from<std::int64_t>({4}, {0, 0, 1, 1});
  const Tensor predictions = Tensor::from<std::int64_t>({4}, {0, 1, 0, 1});
  MeanIoU metric(2), with_absent(3);
  with_absent.update_state(labels, predictions);
  EXPECT_NEAR(with_absent.result().item_double(), 1.0 / 3, 1e-9);
  EXPECT_INVALID(metric.update_state(labels, predictions + predictions),
                 "mean_io_u: expected class numbers below 2, got label 0 and prediction 2");
}

TEST(MetricTest, NoRowsChangeNothing) {
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

TEST(MetricTest, NamesAndLogitsReachTheClasses) {
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
  EXPECT_DOUBLE_EQ(mine.result().item_double(), 0.5) << "the object that was given";
}

/// A metric chosen by name for logits equals the one for probabilities with a loss on
/// probabilities.
TEST(MetricNames, EveryThresholdFollowsTheLogitsOfTheLoss) {
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

TEST(MetricTest, UpdatesAreNotRecorded) {
  const Variable w(Tensor::from<float>({1}, {2}));
  Mean mean;
  GradientTape tape;
  const Tensor y = w.value() * 3.0;
  mean.update_state(y);
  EXPECT_EQ(tape.gradient(y, w).to_dense().item(), 3.0f);
}

TEST(MetricTest, CopiesShareTheirState) {
  Mean mean;
  Mean copy = mean;
  copy.update_state(4.0f);
  EXPECT_EQ(mean.result().item(), 4.0f);
}

}  // namespace tutti::metrics_test
