// Trains a residual network: times rounds of steps, or records the loss of each step.
// SPDX-License-Identifier: Apache-2.0
//
// Prints one line of JSON per event: {"event": "ready"}, then one {"event": "round"} per round, or
// {"event": "losses"}. With --on-demand, a round starts when a line with a number of steps arrives
// on standard input, so that compared programs can alternate while each stays warm. resnet_torch.py
// has the same flags and events.
#include <cstdio>
#include <iostream>

#include "benchmarks/gpu/resnet_training.h"
#include "tutti/core/clock.h"

namespace tutti::benchmarks {
namespace {

struct Options : ResnetOptions {
  std::int64_t steps = 10, warmup = 3, rounds = 3;
  bool losses = false, on_demand = false;
};

void emit(const Json& event) {
  std::printf("%s\n", event.dump().c_str());
  std::fflush(stdout);
}

/// Runs steps. Returns the seconds until the loss of the last step is known.
double time_steps(ResnetTraining& training, std::int64_t steps, double& loss) {
  const Clock& clock = Clock::system();
  const TimePoint begin = clock.now();
  PerReplica<Tensor> last = training.step();
  for (std::int64_t i = 1; i < steps; ++i) last = training.step();
  loss = training.value_of(last);
  return seconds_between(begin, clock.now());
}

void run_round(ResnetTraining& training, const Options& options, std::int64_t steps) {
  double loss = 0.0;
  const double seconds = time_steps(training, steps, loss);
  Json event = Json::object();
  event.set("event", "round").set("steps", steps).set("seconds", seconds).set("loss", loss);
  event.set("images_per_second",
            static_cast<double>(steps * options.batch_size) / std::max(seconds, 1e-9));
  emit(event);
}

void note_losses(ResnetTraining& training, std::int64_t steps) {
  std::vector<PerReplica<Tensor>> losses;
  for (std::int64_t i = 0; i < steps; ++i) losses.push_back(training.step());
  Json values = Json::array();
  for (const PerReplica<Tensor>& loss : losses) values.push_back(training.value_of(loss));
  emit(Json::object().set("event", "losses").set("losses", values));
}

void run_on_demand(ResnetTraining& training, const Options& options) {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json steps = Json::parse(line, "standard input");
    run_round(training, options, steps.as_int());
  }
}

int run(Options options) {
  options.check();
  ResnetTraining training(options);
  double first = 0.0, loss = 0.0;
  if (!options.losses && options.warmup > 0) {
    first = time_steps(training, 1, loss);
    if (options.warmup > 1) time_steps(training, options.warmup - 1, loss);
  }
  Json ready = Json::object();
  ready.set("event", "ready").set("program", "tutti").set("network", options.network);
  ready.set("policy", options.policy).set("execution", options.execution);
  ready.set("devices", options.devices);
  ready.set("replicas", training.num_replicas());
  ready.set("cross_device_ops", training.cross_device_ops());
  ready.set("batch_size", options.batch_size).set("image_size", options.image_size);
  ready.set("parameters", training.num_parameters()).set("first_step_seconds", first);
  emit(ready);
  if (options.losses) {
    note_losses(training, options.steps);
  } else if (options.on_demand) {
    run_on_demand(training, options);
  } else {
    for (std::int64_t i = 0; i < options.rounds; ++i) run_round(training, options, options.steps);
  }
  return 0;
}

}  // namespace
}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  tutti::benchmarks::Options options;
  tutti::Flags flags("Trains a residual network and prints times or losses as JSON");
  options.declare(flags);
  flags.add("--steps", options.steps, "number of steps per round, or of --losses");
  flags.add("--warmup", options.warmup, "number of steps before the first round");
  flags.add("--rounds", options.rounds, "number of rounds");
  flags.add("--losses", options.losses, "print the losses of all steps instead of times");
  flags.add("--on-demand", options.on_demand,
            "read numbers of steps from standard input; run a round for each");
  const int code = flags.parse(argc, argv);
  if (code >= 0) return code;
  try {
    return tutti::benchmarks::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_resnet: %s\n", error.what());
    return 1;
  }
}
