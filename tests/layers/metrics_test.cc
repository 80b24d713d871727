// Metrics on one replica: values, weights, exact counts, names.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metrics.h"

#include "tests/layers/layer_helpers.h"

namespace tutti {
namespace {

using layer_tests::error_of;
using ::testing::HasSubstr;

TEST(MetricTest, MET_01_MeanOfEqualValuesIsThatValue) {
  Mean first("first"), second("second");
  first.update_state(5.0f);
  second.update_state(5.0f);
  EXPECT_EQ(first.result().item(), 5.0f);
  EXPECT_EQ(second.result().item(), 5.0f);
  EXPECT_EQ(first.variables()[0].name(), "first/total");
  EXPECT_EQ(first.variables()[1].name(), "first/count");
}

TEST(MetricTest, MET_02_MeanIsOverValuesNotOverBatches) {
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

TEST(MetricTest, CountsBeyondTwoToTheTwentyFourAreExact) {
  Sum sum;
  sum.update_state(Tensor::full({}, 16777216.0));
  for (int i = 0; i < 3; ++i) sum.update_state(1.0f);
  EXPECT_EQ(sum.result().item_double(), 16777219.0);
}

TEST(MetricTest, AccuraciesCountHits) {
  const Tensor predictions = Tensor::from<float>({3, 2}, {0.1, 0.9, 0.8, 0.2, 0.3, 0.7});
  SparseCategoricalAccuracy sparse;
  sparse.update_state(Tensor::from<std::int64_t>({3}, {1, 0, 0}), predictions);
  EXPECT_FLOAT_EQ(sparse.result().item(), 2.0f / 3);
  sparse.update_state(Tensor::zeros({0}, DType::kInt64), Tensor::zeros({0, 2}));
  EXPECT_FLOAT_EQ(sparse.result().item(), 2.0f / 3);
  CategoricalAccuracy categorical;
  categorical.update_state(Tensor::from<float>({3, 2}, {0, 1, 1, 0, 1, 0}), predictions);
  EXPECT_FLOAT_EQ(categorical.result().item(), 2.0f / 3);
  BinaryAccuracy binary;
  binary.update_state(Tensor::from<std::int64_t>({4}, {1, 0, 1, 0}),
                      Tensor::from<float>({4, 1}, {0.9, 0.4, 0.2, 0.1}));
  EXPECT_FLOAT_EQ(binary.result().item(), 0.75f);
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
  EXPECT_THAT(error_of([] { MetricSpec spec("accuray"); }),
              HasSubstr("no metric is named 'accuray'; expected accuracy, "));
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

}  // namespace
}  // namespace tutti
