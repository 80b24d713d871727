// Trains a model of a given size, commits each step and logs its progress, for tests that kill it.
// SPDX-License-Identifier: Apache-2.0
//
// recovering_state --steps N --state-mb M: trains eight matrices, which take M MB together with
// Adam's slots. A replica's gradient depends on the replica's number and on the step. Prints the
// hash of the final state. With --dies-after STEP, worker 1's first process kills itself after
// STEP.
#include <signal.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/flags.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;

constexpr int kMatrices = 8;

struct StateOptions {
  std::int64_t steps = 20;
  std::string stop_file;
  double state_mb = 100.0;
  std::int64_t least_step_ms = 50;
  std::string strategy = "multi_worker_mirrored";
  std::string transport = "auto";
  bool without_recovery = false;
  std::int64_t dies_after = -1;
};

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

/// Returns weights that, together with momentum and velocity, take `state_mb` MB: 12 bytes per
/// element.
std::vector<Variable> make_weights(double state_mb) {
  const double count = state_mb * 1e6 / (3 * sizeof(float)) / kMatrices;
  const auto columns = static_cast<std::int64_t>(std::ceil(count / 1024));
  std::vector<Variable> weights;
  for (int i = 0; i < kMatrices; ++i) {
    const auto seed = static_cast<std::uint64_t>(i + 1);
    weights.emplace_back(random_normal({1024, columns}, {.seed = seed}),
                         VariableOptions{.name = concat("weights_", i)});
  }
  return weights;
}

void die_once(const Strategy& strategy) {
  const char* const restarts = std::getenv("TUTTI_RESTART");
  if (strategy.worker() == 1 && restarts && std::string(restarts) == "0") ::raise(SIGKILL);
}

void train(const StateOptions& options) {
  say("process is here");
  const auto strategy = make_strategy(
      options.strategy, {.devices = "cpu:0", .transport = options.transport, .min_shard_bytes = 0});
  const auto scope = strategy->scope();
  say("strategy is made");
  const std::vector<Variable> weights = make_weights(options.state_mb);
  Adam optimizer(weights, {.learning_rate = 0.01});
  std::int64_t step = 0;
  Checkpoint state(weights);
  state.add(optimizer.state_variables());
  state.add_state("step", {.save = [&] { return Json(step); },
                           .restore = [&](const Json& saved) { step = saved.as_int(); }});
  say("variables are made");

  const auto train_step = [&] {
    const int replica = ReplicaContext::current().replica_id();
    std::vector<Gradient> gradients;
    for (const Variable& weight : weights) {
      gradients.emplace_back(weight.value() * static_cast<float>(replica + 1) -
                             static_cast<float>(step % 7));
    }
    optimizer.apply_gradients(gradients);
  };
  Recovery recovery(*strategy, state);
  const auto loop = [&] {
    while (step < options.steps) {
      const TimePoint begin = Clock::system().now();
      strategy->run(train_step);
      Clock::system().sleep_until(
          deadline_after(begin, std::chrono::milliseconds(options.least_step_ms)));
      ++step;
      if (!options.without_recovery) recovery.commit(step);
      say(concat("finished step ", step));
      if (step == options.dies_after) die_once(*strategy);
      if (options.stop_file.empty()) continue;
      if (std::filesystem::exists(options.stop_file))
        strategy->request_stop("the stop file exists");
      if (strategy->stops_after(step)) return;
    }
  };
  options.without_recovery ? loop() : recovery.run(loop);
  say(concat("hash ", hash_variables(state.variables())));
}

}  // namespace

int main(int argc, char** argv) {
  StateOptions options;
  Flags flags("Trains a model of a given size");
  flags.add("--steps", options.steps, "number of steps");
  flags.add("--stop-file", options.stop_file, "file whose existence stops the workers");
  flags.add("--state-mb", options.state_mb, "size of parameters and slots together, in MB");
  flags.add("--least-step-ms", options.least_step_ms, "minimum duration of a step, in ms");
  flags.add("--without-recovery", options.without_recovery, "train without Recovery");
  flags.add("--dies-after", options.dies_after, "step after which worker 1 dies once");
  flags.add_choice("--strategy", options.strategy, {"multi_worker_mirrored", "fully_sharded"},
                   "strategy that trains the model");
  flags.add_choice("--transport", options.transport, {"auto", "tcp"}, "transport between workers");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  try {
    train(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
