// The program of the TensorFlow white paper: weights are on two ps tasks, and layers on a worker
// task.
// SPDX-License-Identifier: Apache-2.0
// On a cluster: tutti run --chief --workers 1 --ps 2 -- session
// Without a cluster, everything runs in this process, with bit-identical results.
#include <cstdio>
#include <memory>
#include <optional>

#include "examples/common/example_options.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

using namespace tutti;

/// Trains on the tasks of the session, or in this process without a session.
int train(const std::optional<Session>& session, std::int64_t steps) {
  const auto scope = session ? std::make_unique<SessionScope>(*session) : nullptr;
  const auto device = [&](const char* name) { return DeviceScope(session ? name : ""); };
  const auto weights = [&](const char* task, std::uint64_t number, const Shape& shape) {
    const DeviceScope ps = device(task);
    return Variable(random_normal(shape, {.seed = 1, .a = number}, 0.0, 0.3),
                    {.name = concat("weights_", number)});
  };
  const std::vector<Variable> w = {weights("/job:ps/task:0", 1, {8, 32}),
                                   weights("/job:ps/task:0", 2, {32, 16}),
                                   weights("/job:ps/task:1", 3, {16, 4})};
  Sgd optimizer(w, {.learning_rate = 0.05});
  const auto train_op = [&](const Tensor& input, const Tensor& labels) {
    const DeviceScope worker = device("/job:worker/task:0");
    GradientTape tape;
    const Tensor logits = matmul(relu(matmul(relu(matmul(input, w[0])), w[1])), w[2]);
    optimizer.minimize(tape, reduce_mean(sparse_softmax_cross_entropy(labels, logits)));
  };
  for (std::int64_t i = 0; i < steps; ++i) {
    const Tensor input = random_normal({16, 8}, {.seed = 2, .a = static_cast<std::uint64_t>(i)});
    const Tensor labels = argmax(slice(input, {0, 0}, {16, 4}), 1);
    session ? session->run([&] { train_op(input, labels); }) : train_op(input, labels);
  }
  std::printf("after %d steps: %s\n", static_cast<int>(steps), hash_variables(w).c_str());
  return 0;
}

int main(int argc, char** argv) {
  std::int64_t steps = 10'000;
  Flags flags("Trains on named tasks of a cluster");
  flags.add("--steps", steps, "number of training steps");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  return examples::run_example([&] {
    const auto resolver = resolver_from_environment();
    if (resolver->cluster_spec().empty()) return train({}, steps);
    ClusterSpec::Jobs serving = resolver->cluster_spec().as_dict();
    serving.erase("chief");  // the chief is the client, which does not serve
    const ClusterSpec cluster(serving);
    const Task self = resolver->task().value();
    const std::string master = cluster.task_address("worker", 0);
    if (self.type == "chief") return train(Session("grpc://" + master), steps);
    Server(cluster, self.type, self.index).join();
    return 0;
  });
}
