// Trains an embedding classifier asynchronously: a coordinator, workers, parameter servers.
// SPDX-License-Identifier: Apache-2.0
//
// Classifies avengers as in TensorFlow's "Parameter server training with ParameterServerStrategy":
// tutti run --chief --workers 3 --ps 2 -- parameter_server_custom_loop. Without a cluster,
// one process runs all tasks.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "examples/common/example_options.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

const std::vector<std::string> kWords{"avenger",   "ironman",  "batman",      "hulk",
                                      "spiderman", "kingkong", "wonder_woman"};
const std::vector<std::string> kLabels{"yes", "no"};

/// Returns the index of a word, as keras.layers.StringLookup does; 0 means an unknown word.
std::int64_t look_up(const std::string& word) {
  const auto found = std::ranges::find(kWords, word);
  return found == kWords.end() ? 0 : found - kWords.begin() + 1;
}

/// Returns examples of three different words, int64 [3], with a label, float32 [1]: the index in
/// kLabels of "yes" if one word is "avenger", else of "no".
Dataset make_examples(std::int64_t count, std::uint64_t seed) {
  const RandomStream random({.seed = seed, .purpose = kUserPurpose});
  std::vector<std::int64_t> features;
  std::vector<float> labels;
  std::uint64_t draw = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<std::string> words = kWords;
    for (std::size_t k = 0; k < 3; ++k) {
      std::swap(words[k], words[k + random.below(draw++, words.size() - k)]);
      features.push_back(look_up(words[k]));
    }
    const bool has_avenger =
        std::find(features.end() - 3, features.end(), look_up("avenger")) != features.end();
    const auto label = std::ranges::find(kLabels, has_avenger ? "yes" : "no");
    labels.push_back(static_cast<float>(label - kLabels.begin()));
  }
  return Dataset::from_tensor_slices(
      {Tensor::from<std::int64_t>({count, 3}, features), Tensor::from<float>({count, 1}, labels)});
}

struct LoopOptions {
  std::int64_t epochs = 4;
  std::int64_t steps_per_epoch = 5;
  // Four rows take 256 KiB, so the table of eight rows is split across two servers.
  std::int64_t embedding = 16384;
};

int train(const LoopOptions& options) {
  set_random_seed(1);
  ParameterServerStrategy strategy(*resolver_from_environment(),
                                   {.local = {.devices = "cpu:0"},
                                    .variable_partitioner = MinSizePartitioner(256 << 10, 2),
                                    // num_servers and num_workers are used only without a cluster.
                                    .num_servers = 2,
                                    .num_workers = 3,
                                    .coordinated = true});
  const auto scope = strategy.scope();
  Sequential model(Input{{3}},
                   Embedding(static_cast<std::int64_t>(kWords.size()) + 1, options.embedding),
                   GlobalAveragePooling1D(), Dense(1));
  Rmsprop optimizer(model.trainable_variables(), {.learning_rate = 0.1});
  BinaryAccuracy accuracy("accuracy"), eval_accuracy("eval_accuracy");

  const auto step = [&](const Batch& batch, BinaryAccuracy& metric, bool training) {
    const auto per_replica = strategy.run([&] {
      GradientTape tape;
      const Tensor logits = model(batch.features(), {.training = training});
      const Tensor loss =
          compute_average_loss(losses::binary_crossentropy(batch.labels(), logits), batch.rows());
      if (training) optimizer.minimize(tape, loss);
      metric.update_state(batch.labels(), sigmoid(logits));
      return loss;
    });
    return strategy.reduce(ReduceOp::kSum, per_replica).item();
  };
  ClusterCoordinator coordinator(strategy);
  coordinator.define("train",
                     [&](DatasetIterator& data) { return step(data.next(), accuracy, true); });
  coordinator.define(
      "evaluate", [&](DatasetIterator& data) { return step(data.next(), eval_accuracy, false); });
  const PerWorkerDataset training = coordinator.create_per_worker_dataset(
      make_examples(200, 1).shuffle(200, /*seed=*/1).batch(32).repeat());
  const PerWorkerDataset evaluation =
      coordinator.create_per_worker_dataset(make_examples(16, 2).batch(8).repeat());
  // Workers and servers exit here.
  if (const auto code = coordinator.serve()) return *code;
  coordinator.start();

  for (const ShardPlace& shard : strategy.shards_of(model.trainable_variables().front())) {
    std::printf("words %d to %d on %s\n", static_cast<int>(shard.first_row),
                static_cast<int>(shard.first_row + shard.num_rows - 1), shard.device.c_str());
  }
  const auto iterator = training.iterate();
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    accuracy.reset_state();
    for (std::int64_t i = 0; i < options.steps_per_epoch; ++i) {
      coordinator.schedule("train", iterator);
    }
    coordinator.join();
    std::printf("Finished epoch %d, accuracy is %f.\n", static_cast<int>(epoch),
                accuracy.result().item_double());
    std::fflush(stdout);
  }
  std::printf("Final loss is %f\n", coordinator.schedule("train", iterator).fetch<float>());
  const auto eval_iterator = evaluation.iterate();
  for (int i = 0; i < 2; ++i) coordinator.schedule("evaluate", eval_iterator);
  coordinator.join();
  const double result = eval_accuracy.result().item_double();
  std::printf("Evaluation accuracy: %f\n", result);
  return result >= 0.75 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  LoopOptions options;
  Flags flags("Trains an embedding classifier with a coordinator and parameter servers");
  flags.add("--epochs", options.epochs, "number of rounds, each of which ends with join()");
  flags.add("--steps-per-epoch", options.steps_per_epoch, "number of steps scheduled per round");
  flags.add("--embedding", options.embedding, "numbers in a word's vector");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return train(options); });
}
