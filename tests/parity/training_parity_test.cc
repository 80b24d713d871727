// Whole training against tf.distribute.MirroredStrategy: 50 steps with 1, 2 and 4 replicas.
// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_record.h"
#include "tutti/tutti.h"

namespace tutti::parity {
namespace {

// As in training_cases.py.
constexpr std::int64_t kGlobalBatch = 20;
constexpr double kMomentum = 7.0 / 8;

struct TrainingCase {
  std::string name;
  int replicas;
  bool normalized;
};

const std::map<std::string, TrainingCase>& training_table() {
  static const std::map<std::string, TrainingCase> table = [] {
    std::map<std::string, TrainingCase> cases;
    for (const bool normalized : {false, true}) {
      for (const int replicas : {1, 2, 4}) {
        const std::string name = concat(normalized ? "batch_normalization_" : "plain_", replicas);
        cases[name] = {name, replicas, normalized};
      }
    }
    return cases;
  }();
  return table;
}

Sequential make_network(bool normalized) {
  const Input input{{8, 8, 1}};
  const Conv2D conv(4, 3, {.activation = "relu"});
  if (normalized) {
    return Sequential(input, conv, BatchNormalization({.momentum = kMomentum}), MaxPooling2D(),
                      Flatten(), Dense(5));
  }
  return Sequential(input, conv, MaxPooling2D(), Flatten(), Dense(5));
}

/// Trains as training_cases.py does and hands each step's loss to `check`.
template <class CheckLoss>
std::vector<Variable> train(const Record& record, const TrainingCase& which,
                            const CheckLoss& check) {
  MirroredStrategy strategy({.devices = concat("cpu:0-", which.replicas - 1)});
  DistributedDataset batches = strategy.distribute_dataset(
      Dataset::from_tensor_slices({record.at("images"), record.at("labels")}).batch(kGlobalBatch));
  auto scope = strategy.scope();
  Sequential model = make_network(which.normalized);
  const std::vector<Tensor> initial = record.list(which.name + "/initial");
  std::vector<Variable> variables = model.variables();
  EXPECT_EQ(variables.size(), initial.size());
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(initial[i]);
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 1.0 / 16, .momentum = kMomentum});
  auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor each = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    const Tensor loss = compute_average_loss(each, batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };
  const std::vector<double> losses = record.at(which.name + "/losses").to_doubles();
  std::size_t number = 0;
  while (number < losses.size()) {
    for (const PerReplica<Batch>& batch : batches) {
      const Tensor loss = strategy.reduce(ReduceOp::kSum, strategy.run(step, batch));
      check(number, loss.item_double(), losses[number]);
      if (++number == losses.size()) break;
    }
  }
  return variables;
}

class TrainingParity : public ::testing::TestWithParam<std::string> {};

TEST_P(TrainingParity, Float64StaysWithin1e9) {
  const Float64 policy;
  const Record record("training_float64");
  const TrainingCase& which = training_table().at(GetParam());
  const auto variables = train(record, which, [](std::size_t step, double ours, double theirs) {
    EXPECT_NEAR(ours, theirs, 1e-9 * std::abs(theirs)) << "loss of step " << step;
  });
  const std::vector<Tensor> final = record.list(which.name + "/final");
  for (std::size_t i = 0; i < variables.size(); ++i) {
    expect_close(variables[i].value(), final[i], 1e-9, variables[i].name());
  }
}

TEST_P(TrainingParity, Float32StaysWithin1e4ForTenStepsAnd1e3After) {
  const Record record("training_float32");
  const TrainingCase& which = training_table().at(GetParam());
  train(record, which, [](std::size_t step, double ours, double theirs) {
    const double tolerance = step < 10 ? 1e-4 : 1e-3;
    EXPECT_NEAR(ours, theirs, tolerance * std::abs(theirs)) << "loss of step " << step;
  });
}

INSTANTIATE_TEST_SUITE_P(All, TrainingParity, ::testing::ValuesIn(names_of(training_table())),
                         [](const auto& info) { return info.param; });

TEST(TrainingParityTable, HasTheCasesOfTheRecord) {
  EXPECT_EQ(names_of(training_table()), Record("training_float64").cases());
  EXPECT_EQ(names_of(training_table()), Record("training_float32").cases());
}

}  // namespace
}  // namespace tutti::parity
