// Program that trains in three rounds, each with a separate strategy, in one of several styles.
// SPDX-License-Identifier: Apache-2.0
//
// restarted_program --style loop|fit|estimator|horovod --folder DIR: every process prints the hash
// of its trained state. With --ends-in ROUND, the first process of the worker given by --who ends
// in the middle of that round or, with --ends-before, before it. --ends selects how it ends.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster.h"
#include "tutti/core/flags.h"
#include "tutti/estimator.h"
#include "tutti/horovod.h"
#include "tutti/tutti.h"

namespace {

using namespace tutti;

constexpr int kRounds = 3;
constexpr std::int64_t kMiddle = 3;  // step after which a process ends

struct Options {
  std::string style = "loop";
  std::string folder;
  std::string ends = "kill";
  std::int64_t steps = 8;
  std::int64_t least_step_ms = 0;
  std::int64_t ends_in = -1;
  std::int64_t who = 1;
  bool ends_before = false;
  bool without_recovery = false;
};
Options options;

/// Thrown to return early from main().
struct EarlyReturn {};

bool ends_in(int round, int worker) {
  const char* const restarts = ::getenv("TUTTI_RESTART");
  const bool is_first = !restarts || std::string(restarts) == "0";
  return is_first && round == options.ends_in && worker == options.who;
}

void end() {
  if (options.ends == "kill") ::raise(SIGKILL);
  if (options.ends == "exit") std::exit(0);
  if (options.ends == "_exit") ::_exit(0);
  throw EarlyReturn();
}

void end_once(std::int64_t step, int round, int worker) {
  Clock::system().sleep_for(std::chrono::milliseconds(options.least_step_ms));
  if (step == kMiddle && !options.ends_before && ends_in(round, worker)) end();
}

void end_before(int round) {
  const auto resolver = resolver_from_environment();
  const int worker = resolver->task() ? resolver->task()->index : 0;
  if (options.ends_before && ends_in(round, worker)) end();
}

std::shared_ptr<Strategy> new_strategy() {
  return make_strategy("multi_worker_mirrored", {.devices = "cpu:0"});
}

/// Returns the batch, which is the same in each step and on each worker, so that a restarted
/// program may resume at any step.
std::vector<Tensor> rows() {
  const Tensor x = random_uniform({6, 4}, {.seed = 11}, -1.0, 1.0);
  return {x, argmax(slice(x, {0, 0}, {-1, 3}), 1)};
}

Sequential model_of(int round) {
  set_random_seed(static_cast<std::uint64_t>(round) + 5);
  return Sequential(Input{{4}}, Dense(7, "relu"), Dense(3));
}

Tensor loss_of(const Tensor& labels, const Tensor& logits) {
  return losses::sparse_categorical_crossentropy(labels, logits);
}

/// Trains in a custom loop, with or without Recovery.
std::string by_loop(int round) {
  const auto strategy = new_strategy();
  const auto scope = strategy->scope();
  Sequential model = model_of(round);
  Adam optimizer(model.trainable_variables(), {.learning_rate = 0.05});
  std::int64_t step = 0;
  Checkpoint state(model.variables());
  state.add(optimizer.state_variables());
  state.add_state("step", {[&] { return Json(step); }, [&](const Json& j) { step = j.as_int(); }});
  const std::vector<Tensor> batch = rows();
  const auto train_step = [&] {
    GradientTape tape;
    optimizer.minimize(tape, loss_of(batch[1], model(batch[0])).mean());
  };
  Recovery recovery(*strategy, state);
  const auto loop = [&] {
    while (step < options.steps) {
      strategy->run(train_step);
      ++step;
      if (!options.without_recovery) recovery.commit(step);
      end_once(step, round, strategy->worker());
    }
  };
  options.without_recovery ? loop() : recovery.run(loop);
  return hash_variables(state.variables());
}

class EndsOnce : public Callback {
 public:
  EndsOnce(int round, int worker) : round_(round), worker_(worker) {}
  void on_train_batch_end(std::int64_t batch, const Logs&) override {
    end_once(batch + 1, round_, worker_);
  }

 private:
  const int round_, worker_;
};

/// Trains with fit(), which recovers by itself if TUTTI_MAX_RESTARTS shows that the launcher
/// restarts processes.
std::string by_fit(int round) {
  const auto strategy = new_strategy();
  const auto scope = strategy->scope();
  Sequential model = model_of(round);
  model.compile(
      {.optimizer = AdamOptions{.learning_rate = 0.05}, .loss = "sparse_categorical_crossentropy"});
  FitOptions fit{.verbose = Verbosity::kSilent};
  fit.callbacks = {std::make_shared<EndsOnce>(round, strategy->worker())};
  model.fit(Dataset::from_tensors(rows()).repeat(options.steps).unbatch().batch(6), fit);
  return hash_variables(model.variables());
}

class EndsOnceHook final : public SessionRunHook {
 public:
  EndsOnceHook(int round, int worker) : round_(round), worker_(worker) {}
  void begin(SessionRunContext& context) override { first_ = context.global_step; }
  void after_run(SessionRunContext& context) override {
    end_once(context.global_step - first_, round_, worker_);
  }

 private:
  const int round_, worker_;
  std::int64_t first_ = 0;
};

EstimatorSpec model_fn(const Tensor& features, const Tensor& labels, EstimatorMode mode) {
  Sequential model = model_of(0);
  const Tensor loss = loss_of(labels, model(features));
  if (mode == EstimatorMode::kEval) return {.loss = loss};
  return {.loss = loss, .optimizer = AdamOptions{.learning_rate = 0.05}};
}

/// Trains, evaluates, and then resumes training from the newest checkpoint, each time with a
/// separate strategy.
std::string by_estimator(int round) {
  const auto strategy = new_strategy();
  Estimator estimator(model_fn, {.model_dir = options.folder,
                                 .train_distribute = strategy,
                                 .eval_distribute = strategy,
                                 .save_checkpoints_steps = 3,
                                 .keep_checkpoint_max = 0});
  const auto data = [] { return Dataset::from_tensors(rows()).repeat().unbatch().batch(6); };
  if (round == 1) {
    const std::int64_t step = options.steps;
    const Logs logs = estimator.evaluate(
        data, {.steps = 1, .checkpoint_path = concat(options.folder, "/step_", step)});
    return concat(logs.at("global_step"), " ", logs.at("loss"));
  }
  const std::int64_t last = options.steps * (round == 0 ? 1 : 2);
  estimator.train(data, {.max_steps = last,
                         .hooks = {std::make_shared<EndsOnceHook>(round, strategy->worker())}});
  // Returns no hash after the first round, because an earlier process may have trained further.
  return round == 0 ? "" : hash_variables(estimator.variables());
}

/// Trains in Horovod's style; hvd::init() and hvd::shutdown() create and destroy a strategy.
std::string by_horovod(int round) {
  hvd::init();
  Sequential model = model_of(round + 10 * hvd::rank());
  Adam adam(model.trainable_variables(), 0.05);
  hvd::DistributedOptimizer optimizer(adam);
  hvd::broadcast_variables(model.variables(), 0);
  hvd::broadcast_variables(adam.state_variables(), 0);
  const std::vector<Tensor> batch = rows();
  for (std::int64_t step = 1; step <= options.steps; ++step) {
    GradientTape tape;
    optimizer.minimize(tape, loss_of(batch[1], model(batch[0])).mean());
    end_once(step, round, hvd::rank());
  }
  const std::string hash = hash_variables(model.variables());
  hvd::shutdown();
  return hash;
}

const std::map<std::string, std::function<std::string(int)>> kStyles = {
    {"loop", by_loop}, {"fit", by_fit}, {"estimator", by_estimator}, {"horovod", by_horovod}};

}  // namespace

int main(int argc, char** argv) {
  Flags flags("Trains in three rounds, each with a separate strategy");
  flags.add_choice("--style", options.style, {"loop", "fit", "estimator", "horovod"},
                   "style of the training program");
  flags.add("--folder", options.folder, "folder of the Estimator's checkpoints");
  flags.add("--steps", options.steps, "number of steps of each round");
  flags.add("--least-step-ms", options.least_step_ms, "pause after each step, in ms");
  flags.add("--without-recovery", options.without_recovery,
            "turn off recovery in the loop and in fit()");
  flags.add("--ends-in", options.ends_in, "round in which a process ends once; -1: none");
  flags.add("--ends-before", options.ends_before, "end before creating the strategy of that round");
  flags.add_choice("--ends", options.ends, {"kill", "exit", "_exit", "return"},
                   "how the process ends");
  flags.add("--who", options.who, "worker that ends");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  if (options.without_recovery) ::unsetenv("TUTTI_MAX_RESTARTS");
  try {
    std::string hashes;
    for (int round = 0; round < kRounds; ++round) {
      end_before(round);
      hashes += " " + kStyles.at(options.style)(round);
    }
    std::printf("hash%s\n", hashes.c_str());
    return 0;
  } catch (const EarlyReturn&) {
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
