// compute_average_loss and scale_regularization_loss.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/losses.h"

#include <concepts>

#include "tests/layers/layer_helpers.h"

namespace tutti {
namespace {

using layer_tests::EqualReplicas;
using layer_tests::error_of;
using layer_tests::expect_values;
using ::testing::HasSubstr;

template <class Size>
concept TakenAsGlobalBatch = requires(const Tensor& losses, Size size) {
  compute_average_loss(losses, size);
};

Tensor example_losses() { return Tensor::from<float>({3}, {2.5, 6.2, 5.0}); }

TEST(AverageLoss, IsTheMeanWithoutStrategy) {
  EXPECT_NEAR(compute_average_loss(example_losses()).item(), 13.7 / 3, 1e-5);
}

TEST(AverageLoss, DefaultGlobalBatchIsReplicasTimesLocal) {
  EqualReplicas group(2);
  ReplicaGroupScope scope(&group);
  const Tensor loss = compute_average_loss(example_losses());
  EXPECT_NEAR(loss.item(), 13.7 / 6, 1e-5);
  EXPECT_NEAR(group.all_reduce(ReduceOp::kSum, loss).item(), 4.5667, 1e-4);
}

TEST(AverageLoss, TellsTheGroupWhenItAssumesEqualRows) {
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

TEST(AverageLoss, WeightsMultiply) {
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
  EXPECT_THAT(error_of([&] { compute_average_loss(losses, {.sample_weight = Tensor::ones({2})}); }),
              HasSubstr("compute_average_loss: the weights do not fit the values; expected shape "
                        "[3] or one that lacks trailing dimensions, got [2]"));
}

TEST(AverageLoss, GlobalBatchSizeIsTheDivisor) {
  const Tensor losses = Tensor::from<float>({5}, {1, 2, 3, 4, 5});
  EXPECT_EQ(compute_average_loss(losses, 10).item(), 1.5f);
  EXPECT_EQ(compute_average_loss(losses, {.global_batch_size = 10}).item(), 1.5f);
  EXPECT_EQ(compute_average_loss(losses, std::int64_t{10}).item(), 1.5f);
  EXPECT_EQ(compute_average_loss(losses, 0).item(), 0.0f);
  EXPECT_THAT(error_of([&] { compute_average_loss(losses, -1); }),
              HasSubstr("global_batch_size must be non-negative, got -1"));
  static_assert(TakenAsGlobalBatch<int> && TakenAsGlobalBatch<std::int64_t>);
  static_assert(!TakenAsGlobalBatch<float> && !TakenAsGlobalBatch<double>);
}

TEST(AverageLoss, NoLossesGiveZero) {
  const Tensor none = Tensor::zeros({0});
  EXPECT_EQ(compute_average_loss(none).item(), 0.0f);
  EXPECT_EQ(compute_average_loss(none, {.sample_weight = 2.0f}).item(), 0.0f);
  EXPECT_EQ(compute_average_loss(none, {.sample_weight = Tensor::zeros({0})}).item(), 0.0f);
  EXPECT_EQ(compute_average_loss(none, 8).item(), 0.0f);
}

TEST(AverageLoss, ScalarLossIsRefused) {
  EXPECT_THAT(error_of([] { compute_average_loss(Tensor(1.0f)); }), HasSubstr("at least rank 1"));
}

TEST(AverageLoss, CrossReplicaContextIsRefusedByName) {
  ReplicaGroupScope scope(nullptr);
  EXPECT_THAT(error_of([] { compute_average_loss(example_losses(), 3); }),
              HasSubstr("compute_average_loss: called in the cross-replica context"));
  EXPECT_THAT(error_of([] { scale_regularization_loss(Tensor(1.0f)); }),
              HasSubstr("scale_regularization_loss: called in the cross-replica context"));
}

TEST(AverageLoss, RegularizationIsDividedByTheReplicas) {
  EXPECT_NEAR(scale_regularization_loss(example_losses()).item(), 13.7, 1e-5);
  EqualReplicas group(2);
  ReplicaGroupScope scope(&group);
  const std::vector<Tensor> list = {2.5f, 6.2f, 5.0f};
  const Tensor loss = scale_regularization_loss(list);
  EXPECT_NEAR(loss.item(), 13.7 / 2, 1e-5);
  EXPECT_NEAR(group.all_reduce(ReduceOp::kSum, loss).item(), 13.7, 1e-5);
  EXPECT_EQ(scale_regularization_loss(std::vector<Tensor>{}).item(), 0.0f);
}

TEST(AverageLoss, ReplicaCountIsThatOfTheCurrentReplica) {
  EXPECT_EQ(compute_average_loss(Tensor::from<float>({2}, {2, 4})).item(), 3.0f);
  EqualReplicas eight(8), four(4), zero(0);
  ReplicaGroupScope outer(&eight);
  {
    ReplicaGroupScope inner(&four);
    EXPECT_EQ(compute_average_loss(Tensor::ones({2})).item(), 0.25f);
  }
  EXPECT_EQ(compute_average_loss(Tensor::ones({2})).item(), 0.125f);
  ReplicaGroupScope none(&zero);
  EXPECT_THAT(error_of([] { compute_average_loss(Tensor::ones({2})); }),
              HasSubstr("expected at least one replica, got 0"));
}

TEST(AverageLoss, WorkedExampleOfTheGuide) {
  EqualReplicas group(2);
  ReplicaGroupScope scope(&group);
  const float first = compute_average_loss(Tensor::from<float>({2}, {2, 3}), 4).item();
  const float second = compute_average_loss(Tensor::from<float>({2}, {4, 5}), 4).item();
  EXPECT_EQ(first, 1.25f);
  EXPECT_EQ(second, 2.25f);
  EXPECT_EQ(first + second, 3.5f);
  EXPECT_EQ(compute_average_loss(Tensor::from<float>({2}, {2, 3})).item(), 1.25f);
}

TEST(AverageLoss, GradientsOfTwoHalvesSumToThatOfTheWholeWithL2) {
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

TEST(AverageLoss, KeepsTheTypeOfTheLosses) {
  EXPECT_EQ(compute_average_loss(Tensor::ones({2}, DType::kFloat64), 4).dtype(), DType::kFloat64);
}

}  // namespace
}  // namespace tutti
