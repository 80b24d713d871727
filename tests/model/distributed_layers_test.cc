// Layers, metrics and losses in steps of several replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tests/model/model_helpers.h"
#include "tutti/model/layers/losses.h"

namespace tutti {
namespace {

using namespace model_tests;

TEST(DistributedMetrics, MeanIsOverAllValues) {
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    auto scope = strategy->scope();
    Mean mean;
    for (const PerReplica<Batch>& batch : strategy->distribute_dataset(Dataset::range(10).batch(3)))
      strategy->run([&](const Batch& part) { mean.update_state(part.features()); }, batch);
    EXPECT_EQ(mean.result().item(), 4.5f);
    EXPECT_EQ(mean.variables()[0].value().item(), 45.0f);
    EXPECT_EQ(mean.variables()[1].value().item(), 10.0f);
    mean.reset_state();
    EXPECT_EQ(mean.result().item(), 0.0f);
  }
}

TEST(DistributedMetrics, CountsOfReplicasAddUpBeforeTheyAreDivided) {
  // 130 rows in batches of 32: replicas see different shares of both labels.
  const Tensor p = random_uniform({130, 1}, {.seed = 21});
  const Tensor y = cast(greater(p + random_uniform({130, 1}, {.seed = 22}), 1.0), DType::kFloat32);
  const Dataset data = Dataset::from_tensor_slices({p, y}).batch(32);
  auto run = [&](Strategy& strategy) {
    auto scope = strategy.scope();
    Precision precision({.threshold = 0.4});
    Recall recall;
    Auc roc, pr({.curve = AucCurve::kPrecisionRecall});
    F1Score f1;
    MeanIoU iou(2);
    RootMeanSquaredError rmse;
    const std::vector<PredictionMetric*> metrics = {&precision, &recall, &roc, &pr, &f1, &rmse};
    for (const PerReplica<Batch>& batch : strategy.distribute_dataset(data)) {
      strategy.run(
          [&](const Batch& part) {
            for (PredictionMetric* metric : metrics)
              metric->update_state(part.labels(), part.features());
            iou.update_state(part.labels(), cast(greater(part.features(), 0.5), DType::kInt64));
          },
          batch);
    }
    std::vector<double> results = {iou.result().item_double()};
    for (const PredictionMetric* metric : metrics)
      results.push_back(metric->result().item_double());
    return results;
  };
  OneDeviceStrategy alone("cpu:0");
  const std::vector<double> expected = run(alone);
  for (const double value : expected) EXPECT_TRUE(value > 0.05 && value < 0.99) << value;
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    expect_near(run(*strategy), expected, 1e-6);
  }
}

TEST(DistributedMetrics, MetricFromOutsideWorksInCrossReplicaContext) {
  Mean mean;
  auto strategy = model_tests::mirrored("cpu:0-1");
  auto scope = strategy->scope();
  for (int i = 0; i < 10; ++i) mean.update_state(static_cast<float>(i));
  EXPECT_EQ(mean.result().item(), 4.5f);
}

/// Counts calls and takes the mean of its input.
class Observer : public Layer {
 public:
  std::shared_ptr<Sum> sum() const { return sum_; }
  std::shared_ptr<Mean> mean() const { return mean_; }

 protected:
  Shape build(const Shape& input) override {
    sum_ = std::make_shared<Sum>("sum");
    mean_ = std::make_shared<Mean>("mean");
    add_metric(sum_);
    add_metric(mean_);
    return input;
  }
  Tensor call(const Tensor& input, CallContext) const override {
    sum_->update_state(reduce_mean(input));
    mean_->update_state(input);
    return input;
  }

 private:
  std::shared_ptr<Sum> sum_;
  std::shared_ptr<Mean> mean_;
};

TEST(DistributedMetrics, ResultsInsideRunAreThoseOfAllReplicas) {
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    auto scope = strategy->scope();
    const auto replicas = static_cast<double>(strategy->num_replicas_in_sync());
    Observer layer;
    layer.build_for({2});
    Variable seen(Tensor(0.0f),
                  {.name = "seen", .aggregation = VariableAggregation::kOnlyFirstReplica});
    const PerReplica<Tensor> inside = strategy->run([&] {
      layer(Tensor::ones({3, 2}, DType::kFloat32, ReplicaContext::current().device()));
      const Tensor result = layer.sum()->result();
      seen.assign(result);
      return result;
    });
    for (const Tensor& result : inside) EXPECT_EQ(result.item(), replicas);
    EXPECT_EQ(seen.value().item(), replicas);
    EXPECT_EQ(layer.sum()->result().item(), replicas);
    EXPECT_EQ(layer.mean()->result().item(), 1.0f);
  }
}

TEST(DistributedLosses, SumOverReplicasIsTheGlobalMean) {
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    const PerReplica<Tensor> losses = strategy->run([] {
      const Device device = ReplicaContext::current().device();
      return compute_average_loss(Tensor::from<float>({3}, {2.5, 6.2, 5.0}, device));
    });
    EXPECT_NEAR(losses[0].item(), 13.7 / 3 / strategy->num_replicas_in_sync(), 1e-6);
    EXPECT_NEAR(strategy->reduce(ReduceOp::kSum, losses).item(), 4.5667, 1e-4);
  }
}

TEST(DistributedLosses, OutsideRunIsRefused) {
  auto strategy = model_tests::mirrored("cpu:0-1");
  auto scope = strategy->scope();
  EXPECT_ERROR(compute_average_loss(Tensor::ones({2})), kFailedPrecondition,
               "compute_average_loss: called in the cross-replica context");
}

TEST(DistributedLosses, AutoReductionIsRefusedInACustomLoop) {
  auto strategy = model_tests::mirrored("cpu:0-1");
  const std::string message = model_tests::error_of([&] {
    strategy->run([] {
      const Device device = ReplicaContext::current().device();
      return BinaryCrossentropy()(Tensor::ones({2}, DType::kFloat32, device),
                                  Tensor::ones({2}, DType::kFloat32, device));
    });
  });
  EXPECT_THAT(message, ::testing::HasSubstr("reduction AUTO divides by the examples of this "
                                            "replica alone, but 2 replicas take part"));
}

/// One training step of a normalised model on 12 rows; returns weights and moving averages.
std::vector<double> normalized_step(Strategy& strategy, bool synchronized) {
  set_random_seed(4);
  auto scope = strategy.scope();
  Sequential model(Input{{4}}, Dense(5), BatchNormalization({.synchronized = synchronized}),
                   Dense(3));
  model.compile(
      {.optimizer = SgdOptions{.learning_rate = 0.5}, .loss = "sparse_categorical_crossentropy"});
  model.fit(model_tests::three_classes(12).batch(12), {.epochs = 2, .verbose = Verbosity::kSilent});
  return model_tests::weights_of(model);
}

TEST(DistributedBatchNormalization, SynchronizedEqualsOneDeviceOnTheGlobalBatch) {
  OneDeviceStrategy one("cpu:0");
  const std::vector<double> expected = normalized_step(one, false);
  for (const auto& strategy : several_strategies()) {
    SCOPED_TRACE(label_of(*strategy));
    expect_near(normalized_step(*strategy, true), expected, 2e-4);
  }
}

TEST(DistributedBatchNormalization, AReplicaWithoutRowsKeepsItsAverages) {
  for (const bool synchronized : {false, true}) {
    auto strategy = model_tests::mirrored("cpu:0-1");
    auto scope = strategy->scope();
    BatchNormalization layer({.momentum = 0.0, .synchronized = synchronized});
    layer.build_for({1});
    strategy->run([&] {
      const ReplicaContext& context = ReplicaContext::current();
      const Tensor x = context.replica_id() == 0
                           ? Tensor::from<float>({2, 1}, {2, 4}, context.device())
                           : Tensor::zeros({0, 1}, DType::kFloat32, context.device());
      layer(x, {.training = true});
    });
    std::vector<double> means;
    for (const Tensor& mean : layer.variables()[2].storage().local_components())
      means.push_back(mean.item());
    expect_near(means, synchronized ? std::vector<double>{3, 3} : std::vector<double>{3, 0}, 1e-6);
  }
}

TEST(DistributedDropout, ReplicasDrawDifferentMasksAndReplaysTheSame) {
  auto masks = [] {
    set_random_seed(6);
    auto strategy = model_tests::mirrored("cpu:0-1");
    auto scope = strategy->scope();
    Dropout layer(0.5);
    layer.build_for({64});
    std::vector<std::vector<double>> found;
    for (int step = 0; step < 2; ++step) {
      const PerReplica<Tensor> results = strategy->run([&] {
        const Device device = ReplicaContext::current().device();
        return layer(Tensor::ones({1, 64}, DType::kFloat32, device), {.training = true});
      });
      for (const Tensor& result : results) found.push_back(result.to_doubles());
    }
    return found;
  };
  const auto first = masks();
  for (std::size_t i = 0; i < first.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(first[i], first[j]) << i << " and " << j;
  EXPECT_EQ(masks(), first);
  set_random_seed(0);
}

}  // namespace
}  // namespace tutti
