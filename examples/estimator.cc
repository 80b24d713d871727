// The Estimator program of tf.contrib.distribute's README: a Dense(1) learns that 1 maps to 1. Also
// trains the network with fit and with a custom loop; the results are bit-identical.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <set>

#include "examples/common/example_options.h"
#include "tutti/estimator.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

const SgdOptions kSgd{.learning_rate = 0.2};
std::int64_t num_examples = 100;

EstimatorSpec model_fn(const Tensor& features, const Tensor& labels, EstimatorMode mode) {
  Sequential layer(Input{{1}}, Dense(1));
  Tensor logits = layer(features);
  if (mode == EstimatorMode::kPredict) return {.predictions = logits};
  Tensor loss = losses::mean_squared_error(labels, logits);
  if (mode == EstimatorMode::kEval) return {.loss = loss};
  return {.loss = loss, .optimizer = kSgd};
}

Dataset input_fn(const InputContext& = {}) {
  Tensor ones = Tensor::ones({num_examples, 1});
  return Dataset::from_tensor_slices(ones, ones).batch(1);  // the batch size of one replica
}

std::string by_estimator(std::shared_ptr<Strategy> strategy, const std::string& model_dir) {
  Estimator estimator(model_fn, {model_dir, /*train_distribute=*/strategy, strategy});
  estimator.train(input_fn);
  std::string hash = hash_variables(estimator.variables());
  std::printf("evaluated  loss %g\n", estimator.evaluate(input_fn).at("loss"));
  std::printf("predicted  %g\n", estimator.predict(input_fn).to_doubles().front());
  return hash;
}

std::string by_fit(std::shared_ptr<Strategy> strategy, const std::string&) {
  const auto scope = strategy->scope();
  Sequential model(Input{{1}}, Dense(1));
  model.compile({.optimizer = kSgd, .loss = "mse"});
  model.fit(strategy->distribute_datasets_from_function(input_fn));
  return hash_variables(model.variables());
}

std::string by_hand(std::shared_ptr<Strategy> strategy, const std::string&) {
  const auto scope = strategy->scope();
  Sequential model(Input{{1}}, Dense(1));
  Sgd optimizer(model.trainable_variables(), kSgd);
  const auto step = [&](const Batch& rows) {
    GradientTape tape;
    Tensor losses = losses::mean_squared_error(rows.labels(), model(rows.features()));
    optimizer.minimize(tape, compute_average_loss(losses, rows.global_rows()));
  };
  auto batches = strategy->distribute_datasets_from_function(input_fn);
  for (const auto& batch : batches) strategy->run(step, batch);
  return hash_variables(model.variables());
}

}  // namespace

int main(int argc, char** argv) {
  ExampleOptions options;
  const auto more = [](Flags& flags) {
    flags.remove({"--batch-size", "--epochs", "--steps", "--data-dir", "--log-dir", "--resume",
                  "--metrics-json"});
    flags.add("--examples", num_examples, "number of examples");
  };
  const int code = parse_options(
      argc, argv, "Trains a Dense(1) with an Estimator, with fit and with a custom loop", options,
      more);
  return code >= 0 ? code : run_example([&] {
    require_flag("--checkpoint-dir", options.checkpoint_dir,
                 "a folder for the model's checkpoints");
    std::set<std::string> hashes;
    for (const auto way : {by_estimator, by_fit, by_hand}) {
      set_random_seed(static_cast<std::uint64_t>(options.seed));
      hashes.insert(way(make_strategy(options), options.checkpoint_dir));
    }
    std::printf("weights    %s\n", hashes.begin()->c_str());
    return hashes.size() == 1 ? 0 : 1;
  });
}
