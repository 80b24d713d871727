// Between-graph replication as in the Distributed TensorFlow guide: each worker trains
// independently on variables that are on parameter servers.
// SPDX-License-Identifier: Apache-2.0
//
// In four terminals:         between_graph_trainer --ps_hosts 127.0.0.1:2222,127.0.0.1:2223
//     --worker_hosts 127.0.0.1:2224,127.0.0.1:2225 --job_name ps|worker --task_index 0|1
// In one command:            tutti run --workers 2 --ps 2 -- between_graph_trainer
// Without either:            one worker and a server in this process.
#include <cstdio>

#include "examples/common/example_options.h"
#include "examples/common/task_flags.h"
#include "tutti/parameter_server.h"
#include "tutti/readers.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

// Shared flags that do not apply to this program: other strategies, fit, checkpoints.
const std::vector<std::string> kUnused = {"--strategy",   "--replicas",       "--cross-device-ops",
                                          "--transport",  "--bytes-per-pack", "--compression",
                                          "--non-finite", "--stage",          "--min-shard-bytes",
                                          "--plugin",     "--plugin-options", "--parameter-servers",
                                          "--epochs",     "--steps",          "--log-dir",
                                          "--resume",     "--checkpoint-dir", "--metrics-json",
                                          "--mesh",       "--blocks"};

struct TrainerOptions {
  std::int64_t train_steps = 200;
  bool sync = false;
  double learning_rate = 0.1, min_accuracy = 0.0;
};

double test_accuracy(const Sequential& model, const std::string& data_dir) {
  // All test images are in a single batch.
  const Dataset all = load_mnist(data_dir, Split::kTest).batch(10'000);
  const Element test = *all.begin();
  const Tensor hits = equal(argmax(model(test[0]), 1), cast(test[1], DType::kInt64));
  return reduce_mean(cast(hits, DType::kFloat64)).item_double();
}

int train(const ClusterResolver& resolver, const ExampleOptions& options,
          const TrainerOptions& trainer) {
  ParameterServerOptions servers;
  servers.local.devices = options.devices;
  servers.update_mode = parse_update_mode(trainer.sync ? "sync_replicas" : options.update_mode);
  servers.replicas_to_aggregate = static_cast<int>(options.replicas_to_aggregate);
  ParameterServerStrategy strategy(resolver, servers);
  if (const auto code = strategy.serve()) return *code;  // servers wait here for the workers
  const int worker = strategy.worker();

  DistributedDataset batches =
      strategy.distribute_datasets_from_function([&](const InputContext& context) {
        // Each worker reads the data in its own order.
        const auto seed = static_cast<std::uint64_t>(options.seed + context.input_pipeline_id);
        return load_mnist(options.data_dir, Split::kTrain)
            .cache()
            .shuffle(60'000, seed)
            .repeat()
            .batch(options.batch_size);
      });

  const auto scope = strategy.scope();
  Sequential model(Input{{28, 28, 1}}, Flatten(), Dense(64, {.activation = "relu"}), Dense(10));
  Sgd optimizer(model.trainable_variables(), {.learning_rate = trainer.learning_rate});
  // This variable is on a server and counts the steps of all workers.
  const Variable& global_step = optimizer.iterations();

  // A step uses one worker's batch, unless the servers combine the gradients of several batches.
  const int batches_per_step =
      servers.update_mode == UpdateMode::kSyncReplicas ? strategy.num_workers() : 1;
  const auto train_step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor logits = model(batch.features(), {.training = true});
    const Tensor per_example = losses::sparse_categorical_crossentropy(batch.labels(), logits);
    const Tensor loss = compute_average_loss(per_example, batch.global_rows() * batches_per_step);
    // The step number is read after the weights. If the last step has ended in the meantime,
    // minimize() would wait for workers that have already exited.
    if (global_step.value().item_int() < trainer.train_steps) optimizer.minimize(tape, loss);
    return loss;
  };

  std::int64_t own_steps = 0, step = 0;
  for (auto batch = batches.begin(); step < trainer.train_steps; ++batch) {
    const PerReplica<Tensor> losses = strategy.run(train_step, *batch);
    step = global_step.value().item_int();
    if (++own_steps % 20 != 0 && step < trainer.train_steps) continue;
    std::printf(
        "worker %d   step %lld done (global step %lld), loss %.4f\n", worker,
        static_cast<long long>(own_steps), static_cast<long long>(step),
        strategy.reduce(ReduceOp::kSum, losses).item() * static_cast<float>(batches_per_step));
    std::fflush(stdout);
  }
  if (worker != 0) return 0;

  const double accuracy = test_accuracy(model, options.data_dir);
  std::printf("result     global step %lld, test accuracy %.4f\n",
              static_cast<long long>(global_step.value().item_int()), accuracy);
  return accuracy >= trainer.min_accuracy ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  ExampleOptions options;
  options.strategy = "parameter_server";
  options.devices = "cpu:0";
  options.update_mode = "async";
  TaskFlags task;
  TrainerOptions trainer;
  const int code = parse_options(
      argc, argv, "Trains on Fashion-MNIST with parameter servers and independent workers", options,
      [&](Flags& flags) {
        flags.remove(kUnused);
        task.add_to(flags);
        flags.add("--train_steps", trainer.train_steps, "global step at which training ends");
        flags.add("--sync", trainer.sync, "same as --update-mode sync_replicas");
        flags.add("--learning-rate", trainer.learning_rate, "learning rate of gradient descent");
        flags.add("--min-accuracy", trainer.min_accuracy, "fails below this test accuracy");
      });
  if (code >= 0) return code;
  return run_example([&] { return train(*task.resolver(), options, trainer); });
}
