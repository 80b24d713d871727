// In-graph replication as in the Distributed TensorFlow guide: one client controls copies of the
// computation on all workers. The copies share variables on parameter servers.
// SPDX-License-Identifier: Apache-2.0
//
// On a cluster: tutti run --chief --workers 2 --ps 1 -- in_graph_trainer
// Without arguments: one server in this process runs everything.
#include <algorithm>
#include <cstdio>
#include <string>

#include "examples/common/example_options.h"
#include "tutti/cluster.h"
#include "tutti/parameter_server.h"
#include "tutti/readers.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

struct TrainerOptions {
  std::int64_t steps = 100;
  std::int64_t batch_size = 64;
  double learning_rate = 0.1;
};

/// Returns this replica's share of the loss of a global batch.
Tensor share_of_loss(const std::vector<Variable>& variables, const Tensor& images,
                     const Tensor& labels, std::int64_t global_batch) {
  const Tensor logits =
      matmul(reshape(images, {images.shape()[0], 784}), variables[0]) + variables[1];
  const Tensor per_example = losses::sparse_categorical_crossentropy(labels, logits);
  return compute_average_loss(per_example, global_batch);
}

int train(const std::string& target, const TrainerOptions& options) {
  const Session session(target);
  const auto scope = session.scope();
  const int replicas = std::max(1, session.cluster().count("worker"));
  const auto on = [&](const std::string& job, int task) {
    return concat("/job:", session.cluster().has_job(job) ? job : "local", "/task:", task);
  };
  std::vector<Variable> variables;
  for (const auto& [name, shape] : {std::pair("kernel", Shape{784, 10}), {"bias", Shape{10}}}) {
    const DeviceScope ps(on("ps", 0));
    variables.emplace_back(Tensor::zeros(shape), VariableOptions{.name = name});
  }
  Sgd optimizer(variables, {.learning_rate = options.learning_rate});

  float first = 0.0f, last = 0.0f;
  std::int64_t step = 0;
  for (const auto& batch :
       load_mnist("", Split::kTrain).shuffle(60'000, 1).batch(options.batch_size).repeat()) {
    if (step++ == options.steps) break;
    const std::int64_t global = batch[0].shape()[0];
    const std::int64_t rows = (global + replicas - 1) / replicas;
    const std::vector<Tensor> losses = session.run([&] {
      std::vector<Tensor> losses;
      std::vector<std::vector<Gradient>> gradients;
      for (int r = 0; r < replicas; ++r) {
        const std::int64_t begin = std::min(r * rows, global);
        const std::int64_t count = std::min(rows, global - begin);
        const DeviceScope worker(on("worker", r));
        GradientTape tape;
        losses.push_back(share_of_loss(variables, batch[0].detached_rows(begin, count),
                                       batch[1].detached_rows(begin, count), global));
        gradients.push_back(tape.gradient(losses.back(), variables));
      }
      optimizer.apply_gradients(sum_over_replicas(variables, gradients));
      return losses;
    });
    last = 0.0f;
    for (const Tensor& each : losses) last += each.item();
    if (step == 1) first = last;
    if (step % 20 == 0) std::printf("step %d loss %.4f\n", static_cast<int>(step), last);
  }
  for (const SessionTransfer& each : session.transfers()) {
    std::printf("%s -> %s: %d values, %.1f MB\n", each.from.c_str(), each.to.c_str(),
                static_cast<int>(each.values), static_cast<double>(each.bytes) / 1e6);
  }
  return last < first ? 0 : 1;
}

int run(const TrainerOptions& options) {
  const auto resolver = resolver_from_environment();
  if (resolver->cluster_spec().empty()) {
    const auto server = Server::create_local_server();
    return train(server->target(), options);
  }
  ClusterSpec::Jobs serving = resolver->cluster_spec().as_dict();
  serving.erase("chief");  // the chief is the client, which does not serve
  const ClusterSpec cluster(serving);
  const Task self = require_task(*resolver);
  if (self.type == "chief") {
    return train(concat("grpc://", cluster.task_address("worker", 0)), options);
  }
  Server(cluster, self.type, self.index).join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  TrainerOptions options;
  Flags flags("Trains on Fashion-MNIST with one client that controls all workers");
  flags.add("--steps", options.steps, "number of global batches");
  flags.add("--batch-size", options.batch_size, "examples in a global batch");
  flags.add("--learning-rate", options.learning_rate, "learning rate of gradient descent");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return run(options); });
}
