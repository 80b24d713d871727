// Program in which one worker makes a collective call that the other workers do not make.
// Prints each worker's error.
// SPDX-License-Identifier: Apache-2.0
//
// lonely_call --case step|replica|fit|end|own_error, under any launcher. In case own_error, the
// last worker throws. Errors must contain the numbers of the lines that end in
// "// waits: <case> ...".
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "tutti/core/flags.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;

void train_once(MultiWorkerMirroredStrategy& strategy, const Variable& weight, Optimizer& sgd,
                bool asks_in_step) {
  (void)strategy.run([&] {
    if (asks_in_step) {
      (void)ReplicaContext::current().all_reduce(ReduceOp::kSum, Tensor(1.0f));  // waits: replica 0
    }
    GradientTape tape;
    const Tensor loss = reduce_sum(square(weight.value() - 1.0f));
    sgd.minimize(tape, loss);  // waits: step 1, replica 1
  });
}

/// Trains; the chief alone requests a sum between steps, inside a step, or at the end.
void train(MultiWorkerMirroredStrategy& strategy, const std::string& kind) {
  const auto scope = strategy.scope();
  const Variable weight(Tensor::zeros({8}), {.name = "weight"});
  Sgd sgd(std::vector<Variable>{weight}, {.learning_rate = 0.1});
  const PerReplica<Tensor> ones(std::vector<Tensor>{Tensor(1.0f)});
  for (int step = 0; step < 6; ++step) {
    const bool asks = strategy.is_chief() && step == 3;
    train_once(strategy, weight, sgd, asks && kind == "replica");
    const bool is_last = strategy.worker() == strategy.num_workers() - 1;
    if (is_last && step == 3 && kind == "own_error") throw std::runtime_error("my own bug");
    if (!asks || kind != "step") continue;
    (void)strategy.reduce(ReduceOp::kSum, ones);  // waits: step 0
  }
  if (kind != "end" || !strategy.is_chief()) return;
  (void)strategy.reduce(ReduceOp::kSum, ones);  // waits: end 0
}

void fit(MultiWorkerMirroredStrategy& strategy) {
  const auto scope = strategy.scope();
  Sequential model(Input{{4}}, Dense(3));
  model.compile({.optimizer = "sgd", .loss = "mse"});
  const PerReplica<Tensor> ones(std::vector<Tensor>{Tensor(1.0f)});
  const LambdaCallback log({.on_train_batch_end = [&](std::int64_t batch, const Logs&) {
    if (batch != 2 || !strategy.is_chief()) return;
    (void)strategy.reduce(ReduceOp::kSum, ones);  // waits: fit 0
  }});
  const auto rows = Dataset::from_tensor_slices({Tensor::ones({64, 4}), Tensor::ones({64, 3})});
  const FitOptions options{.callbacks = {log}, .verbose = Verbosity::kSilent};
  (void)model.fit(rows.batch(8), options);  // waits: fit 1
}

}  // namespace

int main(int argc, char** argv) {
  std::string kind = "step";
  Flags flags("Runs workers, one of which makes a collective call alone");
  flags.add_choice("--case", kind, {"step", "replica", "fit", "end", "own_error"},
                   "where the call is made; own_error: the last worker throws instead");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  // A launcher ends the remaining workers after the first failure, but they must still print their
  // errors.
  std::signal(SIGTERM, SIG_IGN);
  try {
    const auto resolver = resolver_from_environment();
    MultiWorkerMirroredStrategy strategy(*resolver, {.local = {.devices = "cpu:0"}});
    try {
      kind == "fit" ? fit(strategy) : train(strategy, kind);
      std::printf("worker %d got no error\n", strategy.worker());
      return 0;
    } catch (const Error& error) {
      std::printf("worker %d got %s: %s\n", strategy.worker(),
                  std::string(to_string(error.code())).c_str(), error.what());
      std::fflush(stdout);
      throw;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
