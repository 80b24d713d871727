// Times tutti's training steps: forward pass, cross-entropy, backward pass, sum over replicas, SGD.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "benchmarks/train_step/models.h"
#include "benchmarks/train_step/train_step_report.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/mesh.h"
#include "tutti/tpu.h"
#include "tutti/tutti.h"

namespace tutti::benchmarks {
namespace {

struct Options : RunOptions {
  std::string strategy = "auto";
  std::string devices = "";
  std::string transport = "auto";
  std::string mesh = "data=1";
};

// Returns null for "none": the program then uses no strategy.
std::unique_ptr<Strategy> make_strategy(const Options& options) {
  std::string devices = options.devices;
  if (devices.empty()) devices = "cpu:0-" + std::to_string(options.replicas - 1);
  if (options.strategy == "one_device") return std::make_unique<OneDeviceStrategy>("cpu:0");
  if (options.strategy == "tpu") {
    return std::make_unique<TpuStrategy>(
        LocalStrategyOptions{.replicas = static_cast<int>(options.replicas)});
  }
  if (options.strategy == "multi_worker_mirrored") {
    // For MultiWorkerOptions, 0 means one replica per local device.
    const std::int64_t replicas = options.replicas > 1 ? options.replicas : 0;
    MultiWorkerOptions workers{.local = {.devices = options.devices.empty() ? "cpu:0" : devices,
                                         .replicas = static_cast<int>(replicas)}};
    workers.cluster.way = parse_way(options.transport);
    return std::make_unique<MultiWorkerMirroredStrategy>(*resolver_from_environment(), workers);
  }
  if (options.strategy == "mesh") {
    return std::make_unique<MeshStrategy>(MeshOptions{.mesh = DeviceMesh::parse(options.mesh)});
  }
  if (options.strategy == "mirrored" || options.replicas > 1) {
    return std::make_unique<MirroredStrategy>(
        LocalStrategyOptions{.devices = devices, .replicas = static_cast<int>(options.replicas)});
  }
  return nullptr;
}

int run(Options options) {
  options.check();
  if (options.replicas > 1 && (options.strategy == "none" || options.strategy == "one_device")) {
    throw Error(ErrorCode::kInvalidArgument, "--strategy " + options.strategy +
                                                 ": expected --replicas 1 or --strategy mirrored");
  }
  // All workers must run the same number of steps, so none may stop at a time limit.
  if (options.strategy == "multi_worker_mirrored") options.seconds = 1e9;
  const std::unique_ptr<Strategy> own = make_strategy(options);
  Strategy& strategy = own ? *own : default_strategy();
  DistributedDataset data =
      strategy.distribute_dataset(synthetic_data(options.model, options.batch_size));
  auto batches = data.begin();
  const PerReplica<Batch> batch = *batches;

  auto scope = strategy.scope();
  // Each step uses the same data, because the input pipeline is not measured.
  const std::unique_ptr<Model> network = make_model(options.model);
  Model& model = *network;
  Sgd optimizer(model.trainable_variables(), {.learning_rate = 1e-3});
  auto train = [&](const Batch& part) {
    GradientTape tape;
    const Tensor logits = model(part.features(), {.training = true});
    Tensor losses = losses::sparse_categorical_crossentropy(part.labels(), logits);
    if (losses.rank() > 1) losses = reduce_mean(losses, -1);  // mean over each row's time steps
    const Tensor loss = compute_average_loss(losses, part.global_rows());
    optimizer.minimize(tape, loss);
    return loss;
  };

  Report report{.program = "tutti",
                .variant = own ? std::string(strategy.name()) : "no strategy",
                .threads = options.replicas,
                .parameters = model.num_trainable_parameters()};
  if (own) {
    std::optional<PerReplica<Tensor>> loss;
    measure(
        options, [&] { loss = strategy.run(train, batch); }, report);
    report.loss = strategy.reduce(ReduceOp::kSum, *loss).item();
  } else {
    Tensor loss;
    measure(
        options, [&] { loss = train(batch[0]); }, report);
    report.loss = loss.item();
  }
  if (strategy.is_chief()) print(options, report);
  return 0;
}

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  tutti::benchmarks::Options options;
  tutti::Flags flags("Times training steps of tutti");
  options.add_to(flags);
  flags.add_choice(
      "--strategy", options.strategy,
      {"auto", "none", "one_device", "mirrored", "multi_worker_mirrored", "tpu", "mesh"},
      "auto: none for one replica, else mirrored");
  flags.add_choice("--transport", options.transport, {"auto", "shm", "tcp"},
                   "connection between workers (multi_worker_mirrored)");
  flags.add("--mesh", options.mesh, "axes of --strategy mesh, such as data=2,model=2");
  flags.add("--devices", options.devices, "devices of the replicas; default cpu:0, cpu:1 ...");
  const int code = flags.parse(argc, argv);
  if (code >= 0) return code;
  try {
    return tutti::benchmarks::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
