// Trains with compile and fit on parameter servers, as in the Model.fit part of TensorFlow's
// "Parameter server training with ParameterServerStrategy".
// SPDX-License-Identifier: Apache-2.0
//
// On a cluster: tutti run --workers 2 --ps 2 -- parameter_server_fit. Without a cluster, this
// process has two replicas and two servers. Workers run each step together; with --update-mode
// async, each worker proceeds independently, as in TensorFlow.
#include <cstdio>
#include <string>

#include "examples/common/example_options.h"
#include "tutti/model/callbacks.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

struct FitProgram {
  std::int64_t epochs = 5;
  std::int64_t steps_per_epoch = 20;
  std::string update_mode = "sync";
  std::string backup_dir;  // empty: no backups
};

/// Returns a dataset of ten examples of ten numbers, repeated and sharded over the workers.
Dataset make_dataset(const InputContext& context) {
  constexpr std::int64_t kGlobalBatch = 64;
  const Tensor x = random_uniform({10, 10}, {.seed = 1, .purpose = kUserPurpose, .a = 0});
  // All ten outputs of an example get the same label, as in TensorFlow, where the loss broadcasts
  // labels.
  const Tensor y = random_uniform({10, 1}, {.seed = 1, .purpose = kUserPurpose, .a = 1}) +
                   Tensor::zeros({10, 10});
  return Dataset::from_tensor_slices({x, y})
      .shuffle(10, /*seed=*/1)
      .repeat()
      .shard(context.num_input_pipelines, context.input_pipeline_id)
      .batch(context.get_per_replica_batch_size(kGlobalBatch))
      .prefetch(2);
}

int train(const FitProgram& program) {
  set_random_seed(1);
  const auto resolver = resolver_from_environment();
  const bool is_alone = resolver->cluster_spec().empty();
  ParameterServerStrategy strategy(*resolver,
                                   {.local = {.devices = is_alone ? "cpu:0-1" : "cpu:0"},
                                    .variable_partitioner = MinSizePartitioner(256 << 10, 2),
                                    .update_mode = parse_update_mode(program.update_mode),
                                    .num_servers = 2});
  if (const auto code = strategy.serve()) return *code;  // tasks that do not train return here
  DistributedDataset data = strategy.distribute_datasets_from_function(make_dataset);

  const auto scope = strategy.scope();
  Sequential model(Input{{10}}, Dense(10));
  model.compile({.optimizer = "sgd", .loss = "mse", .steps_per_execution = 10});
  FitOptions fit{.epochs = program.epochs,
                 .steps_per_epoch = program.steps_per_epoch,
                 .verbose = strategy.is_chief() ? Verbosity::kProgress : Verbosity::kSilent};
  if (!program.backup_dir.empty()) fit.callbacks.push_back(BackupAndRestore(program.backup_dir));
  const std::vector<double> losses = model.fit(data, fit).at("loss");

  if (strategy.is_chief()) {
    std::printf("loss %.6f in the first epoch, %.6f in the last; weights %s\n", losses.front(),
                losses.back(), hash_variables(model.trainable_variables()).c_str());
  }
  return losses.back() < losses.front() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  FitProgram program;
  Flags flags("Trains with compile and fit on parameter servers");
  flags.add("--epochs", program.epochs, "number of epochs, each of which prints a line");
  flags.add("--steps-per-epoch", program.steps_per_epoch, "global batches per epoch");
  flags.add_choice("--update-mode", program.update_mode, {"sync", "async"},
                   "sync: the workers run each step together");
  flags.add("--backup-dir", program.backup_dir,
            "folder for backups, from which a restarted program resumes");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return train(program); });
}
