// Trains one network with one loop under every strategy, and compares the bits of the weights. XLA,
// if present, adds in a different order, so its weights are only approximately equal.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "examples/common/example_options.h"
#include "tutti/readers.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

struct Result {
  std::string weights_hash;
  std::vector<std::vector<double>> weights;
  float loss = 0.0f;
};

// Trains with a loop that does not depend on the strategy.
Result train(Strategy& strategy, const ExampleOptions& options) {
  set_random_seed(static_cast<std::uint64_t>(options.seed));
  DistributedDataset batches =
      strategy.distribute_dataset(load_mnist(options.data_dir)
                                      .take(options.steps * options.batch_size)
                                      .shuffle(2'000, options.seed)
                                      .batch(options.batch_size));
  auto scope = strategy.scope();
  Sequential model(Input{{28, 28, 1}}, Flatten(), Dense(64, {.activation = "relu"}), Dropout(0.2),
                   Dense(10));
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1});

  auto train_step = [&](const Batch& batch) {
    GradientTape tape;
    Tensor logits = model(batch.features(), {.training = true});
    Tensor per_example = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    Tensor loss = compute_average_loss(per_example, batch.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };

  Result result;
  for (const PerReplica<Batch>& batch : batches) {
    result.loss = strategy.reduce(ReduceOp::kSum, strategy.run(train_step, batch)).item();
  }
  result.weights_hash = hash_variables(model.variables());
  for (const Variable& variable : model.variables()) {
    result.weights.push_back(variable.value().to_doubles());
  }
  return result;
}

double largest_difference(const Result& a, const Result& b) {
  double worst = 0.0;
  for (std::size_t v = 0; v < a.weights.size(); ++v) {
    for (std::size_t i = 0; i < a.weights[v].size(); ++i) {
      worst = std::max(worst, std::abs(a.weights[v][i] - b.weights[v][i]));
    }
  }
  return worst;
}

/// Returns true if TpuStrategy's weights are close to those in `expected`, or nullopt without XLA.
std::optional<bool> is_near_under_xla(ExampleOptions options, const Result& expected) {
  options.strategy = "tpu";
  options.devices = "xla:0-3";
  options.cross_device_ops = "";
  std::unique_ptr<Strategy> strategy;
  try {
    strategy = make_strategy(options);
  } catch (const Error& error) {  // there is no plugin, or the build has no XLA
    std::printf("%-16s %-8s %s\n", "tpu", "xla:0-3", error.message().c_str());
    return std::nullopt;
  }
  const Result result = train(*strategy, options);
  const double difference = largest_difference(result, expected);
  std::printf("%-16s %-8s %-24s %-9.6f differ by %.1e at most\n", "tpu", "xla:0-3",
              std::string(strategy->reduction_name()).c_str(), result.loss, difference);
  return difference < 1e-5;
}

int compare(ExampleOptions options) {
  const struct {
    const char* strategy;
    const char* devices;
    const char* operation;
  } rows[] = {{"mirrored", "cpu:0-3", "canonical"},
              {"central_storage", "cpu:0-3", "canonical"},
              {"fully_sharded", "cpu:0-3", "canonical"},
              {"mirrored", "cpu:0-3", "hierarchical_copy"},
              {"mirrored", "cpu:0-3", "reduction_to_one_device"},
              {"mirrored", "cpu:0-1", "canonical"},
              {"central_storage", "cpu:0", "canonical"}};
  options.replicas = 4;
  std::printf("%-16s %-8s %-24s %-9s weights\n", "strategy", "devices", "reduction", "loss");
  Result first;
  bool equal = true;
  for (const auto& row : rows) {
    options.strategy = row.strategy;
    options.devices = row.devices;
    options.cross_device_ops = row.operation;
    const Result result = train(*make_strategy(options), options);
    if (first.weights.empty()) first = result;
    equal = equal && result.weights_hash == first.weights_hash;
    std::printf("%-16s %-8s %-24s %-9.6f %s\n", row.strategy, row.devices, row.operation,
                result.loss, result.weights_hash.c_str());
  }
  const std::optional<bool> near = is_near_under_xla(options, first);
  const bool ok = equal && near.value_or(true);
  std::printf("%s%s\n", ok ? "the same bits everywhere" : "the weights differ",
              ok && near ? " but under XLA, where values are near" : "");
  return ok ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  ExampleOptions options;
  options.steps = 20;
  const int code = parse_options(
      argc, argv, "Trains under every strategy and compares the weights", options,
      [](Flags& flags) {  // removes flags that the comparison sets itself
        flags.remove({"--strategy", "--devices", "--replicas", "--cross-device-ops", "--plugin",
                      "--plugin-options", "--transport", "--stage", "--min-shard-bytes", "--mesh",
                      "--blocks", "--update-mode", "--replicas-to-aggregate", "--parameter-servers",
                      "--epochs", "--log-dir", "--checkpoint-dir", "--resume", "--metrics-json"});
      });
  return code >= 0 ? code : run_example([&] { return compare(options); });
}
