// Training with 3 replicas, which divide no batch evenly, against tf.distribute.MirroredStrategy:
// batch normalisation of each replica and of all, Adam with amsgrad; in float64.
// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_record.h"
#include "tutti/tutti.h"

namespace tutti::parity {
namespace {

// As in replica_cases.py.
constexpr std::int64_t kBatchOfThree = 10;

Sequential network_of_replicas(bool synchronized) {
  return Sequential(Input{{6, 5, 2}},
                    Conv2D(3, 3, {.padding = "same", .activation = "relu", .use_bias = false}),
                    BatchNormalization({.momentum = 7.0 / 8, .synchronized = synchronized}),
                    MaxPooling2D(), Flatten(), Dense(3));
}

class ReplicaParity : public ::testing::TestWithParam<std::string> {};

TEST_P(ReplicaParity, ThreeReplicasTrainAsTensorFlows) {
  const Float64 policy;
  const Record& record = record_of("replicas");
  const std::string prefix = GetParam() + "/";
  MirroredStrategy strategy({.devices = "cpu:0-2"});
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices({record.at("images"), record.at("labels")}).batch(kBatchOfThree));
  auto scope = strategy.scope();
  Sequential model = network_of_replicas(GetParam() == "synchronized");
  std::vector<Variable> variables = model.variables();
  const std::vector<Tensor> initial = record.list(prefix + "initial");
  ASSERT_EQ(variables.size(), initial.size());
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(initial[i]);
  Adam optimizer(model.trainable_variables(), {.learning_rate = 1.0 / 64,
                                               .beta_1 = 7.0 / 8,
                                               .beta_2 = 31.0 / 32,
                                               .epsilon = 1.0 / 1024,
                                               .amsgrad = true});
  auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor each = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    const Tensor loss = compute_average_loss(each, batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };
  const std::vector<double> losses = record.at(prefix + "losses").to_doubles();
  const std::vector<double> rows = record.at(prefix + "rows").to_doubles();
  std::size_t number = 0;
  while (number < losses.size()) {
    for (const PerReplica<Batch>& batch : batches) {
      for (std::size_t replica = 0; replica < 3; ++replica) {
        EXPECT_EQ(static_cast<double>(batch.values()[replica].labels().shape()[0]),
                  rows[3 * number + replica])
            << "rows of replica " << replica << " in step " << number;
      }
      const Tensor loss = strategy.reduce(ReduceOp::kSum, strategy.run(step, batch));
      EXPECT_NEAR(loss.item_double(), losses[number], 1e-9 * losses[number]) << "step " << number;
      if (++number == losses.size()) break;
    }
  }
  const std::vector<Tensor> final = record.list(prefix + "final");
  for (std::size_t i = 0; i < variables.size(); ++i) {
    // Of every replica: moving averages differ where each normalises alone.
    std::vector<Tensor> components;
    for (const Tensor& component : variables[i].storage().local_components())
      components.push_back(component.to(Device{}));
    expect_close(stack(components), final[i], 1e-9, variables[i].name());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReplicaParity, ::testing::Values("each_replica", "synchronized"),
                         [](const auto& info) { return info.param; });

TEST(ReplicaParityTable, HasTheCasesOfTheRecord) {
  EXPECT_EQ(record_of("replicas").cases(), (std::set<std::string>{"each_replica", "synchronized"}));
}

}  // namespace
}  // namespace tutti::parity
