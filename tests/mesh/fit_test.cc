// Tests fit() and custom loops under MeshStrategy: masks, short batches, weights, callbacks, and
// control flow that depends on values.
// SPDX-License-Identifier: Apache-2.0
#include "tests/mesh/mesh_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/callbacks.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/strategies.h"

namespace tutti::mesh_tests {
namespace {

const LayoutMap kLayersOfTexts = {{"^words/embeddings$", {"model", ""}},
                                  {"lstm_cell/kernel$", {"", "model"}},
                                  {"^head/kernel$", {"model", ""}}};

/// Returns texts of six words, int64 [rows, 6], in which 0 is padding.
Tensor texts(std::int64_t rows, std::uint64_t seed) {
  const Tensor words = random_uniform({rows, 6}, {.seed = seed, .purpose = kUserPurpose}, 0, 32);
  const Tensor kept = random_uniform({rows, 6}, {.seed = seed + 9, .purpose = kUserPurpose}, 0, 2);
  return cast(words, DType::kInt64) * cast(kept, DType::kInt64);
}

Tensor labels(std::int64_t rows, std::uint64_t seed) {
  return cast(random_uniform({rows}, {.seed = seed, .purpose = kUserPurpose}, 0, 4), DType::kInt64);
}

struct FittedTexts {
  History history;
  std::vector<double> batch_losses;  // as reported to a callback
  std::int64_t best_epoch = 0;
  Logs evaluated;
  std::vector<double> predicted;
};

class BatchLosses final : public Callback {
 public:
  explicit BatchLosses(std::vector<double>& losses) : losses_(losses) {}
  void on_train_batch_end(std::int64_t, const Logs& logs) override {
    losses_.push_back(logs.at("loss"));
  }

 private:
  std::vector<double>& losses_;
};

/// Trains on 30 texts in batches of 8, so that the last batch of an epoch has 6 texts.
FittedTexts fit_texts(Strategy& strategy) {
  set_random_seed(5);
  const auto scope = strategy.scope();
  Sequential model(Input{{6}}, Embedding(32, 8, {.mask_zero = true, .name = "words"}), LSTM(16),
                   Dense(4, {.name = "head"}));
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.05},
                 .loss = "sparse_categorical_crossentropy",
                 .metrics = {"accuracy"},
                 .weighted_metrics = {"sparse_categorical_crossentropy"}});
  FittedTexts result;
  const auto best = std::make_shared<EarlyStopping>(
      EarlyStoppingOptions{.patience = 2, .restore_best_weights = true});
  result.history =
      model.fit(texts(30, 1), labels(30, 2),
                {.epochs = 4,
                 .batch_size = 8,
                 .validation_data = {texts(10, 3), labels(10, 4)},
                 .callbacks = {BatchLosses(result.batch_losses), best,
                               LearningRateScheduler([](auto, double rate) { return rate * 0.5; })},
                 .verbose = Verbosity::kSilent,
                 .class_weight = {{0, 2.0}, {3, 0.25}}});
  result.best_epoch = best->best_epoch();
  result.evaluated = model.evaluate(texts(13, 6), labels(13, 7), {.batch_size = 8});
  result.predicted = model.predict(texts(7, 8), {.batch_size = 4}).to_doubles();
  return result;
}

TEST(MeshFit, HistoryOfMaskedShortAndWeightedBatchesMatchesOneDevice) {
  OneDeviceStrategy one("cpu:0");
  const FittedTexts expected = fit_texts(one);
  for (const DeviceMesh& mesh :
       {DeviceMesh{{"data", 4}, {"model", 1}}, DeviceMesh{{"data", 2}, {"model", 2}},
        DeviceMesh{{"data", 1}, {"model", 4}}}) {
    SCOPED_TRACE(mesh.to_string());
    MeshStrategy strategy(on_mesh(mesh, kLayersOfTexts));
    const FittedTexts found = fit_texts(strategy);
    ASSERT_EQ(found.history.names(), expected.history.names());
    EXPECT_EQ(found.history.epochs(), expected.history.epochs());
    for (const std::string& name : expected.history.names()) {
      SCOPED_TRACE(name);
      testing::expect_near(found.history[name], expected.history[name], 1e-6);
    }
    testing::expect_near(found.batch_losses, expected.batch_losses, 1e-6);
    EXPECT_EQ(found.best_epoch, expected.best_epoch);
    for (const auto& [name, value] : expected.evaluated) {
      EXPECT_NEAR(found.evaluated[name], value, 1e-6) << name;
    }
    testing::expect_near(found.predicted, expected.predicted, 1e-5);
  }
}

/// Trains, halving the loss in steps where it is large. Returns the losses and the number of steps
/// in which the loss was halved.
std::pair<std::vector<double>, int> train_with_branch(Strategy& strategy) {
  const auto scope = strategy.scope();
  const Variable w(numbers({8, 4}, 3), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.2});
  const Tensor x = numbers({16, 8}, 1), y = numbers({16, 4}, 2);
  std::vector<double> losses;
  int num_halved = 0;
  for (int step = 0; step < 6; ++step) {
    bool is_halved = false;
    const auto result = strategy.run([&] {
      GradientTape tape;
      const Tensor part = relayout(x, {"data", ""});
      Tensor loss = reduce_mean(square(matmul(part, w.value()) - y));
      const bool is_large = loss.item_double() > 8.0;
      if (is_large) loss = loss * 0.5;
      optimizer.minimize(tape, loss);
      if (ReplicaContext::current().device() == Device{}) is_halved = is_large;
      return loss;
    });
    num_halved += is_halved ? 1 : 0;
    losses.push_back(result[0].item_double());
  }
  return {losses, num_halved};
}

TEST(MeshFit, DataDependentBranchesMatchOneDevice) {
  OneDeviceStrategy one("cpu:0");
  const auto [losses, num_halved] = train_with_branch(one);
  EXPECT_GT(num_halved, 0);
  EXPECT_LT(num_halved, 6);
  MeshStrategy mesh(on_mesh({{"data", 2}, {"model", 2}}, {{"^w$", {"", "model"}}}));
  const auto [found, found_halved] = train_with_branch(mesh);
  testing::expect_near(found, losses, 1e-5);
  EXPECT_EQ(found_halved, num_halved);
}

}  // namespace
}  // namespace tutti::mesh_tests
