// Client of an Estimator that is trained by workers and parameter servers in other processes.
// SPDX-License-Identifier: Apache-2.0
//
// On a cluster: tutti run --chief --workers 2 --ps 1 -- estimator_client. Without a cluster, this
// process trains alone.
#include <cstdio>
#include <filesystem>

#include "examples/common/example_options.h"
#include "tutti/estimator.h"
#include "tutti/parameter_server.h"
#include "tutti/tutti.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

EstimatorSpec model_fn(const Tensor& features, const Tensor& labels, EstimatorMode mode) {
  Sequential layer(Input{{1}}, Dense(1));
  Tensor y = layer(features);
  if (mode == EstimatorMode::kPredict) return {.predictions = y};
  return {.loss = losses::mean_squared_error(labels, y),
          .optimizer = SgdOptions{.learning_rate = 0.05}};
}

/// Returns data with y = 2 x + 1. Each worker reads all data.
Dataset input_fn() {
  Tensor x = linspace(-1.0, 1.0, 16).reshape({16, 1});
  return Dataset::from_tensor_slices(x, x * 2.0f + 1.0f).shuffle(16, /*seed=*/1).batch(4);
}

int train(const std::string& model_dir, std::int64_t steps) {
  auto strategy = std::make_shared<ParameterServerStrategy>(
      *resolver_from_environment(),
      ParameterServerOptions{.local = {.devices = "cpu:0"}, .coordinated = true});
  Estimator estimator(model_fn, {.model_dir = model_dir, .train_distribute = strategy});
  const auto repeated = [] { return input_fn().repeat(); };
  // On workers and servers, serve() returns the exit code when the chief is done.
  if (const auto code = estimator.serve(repeated)) return *code;

  estimator.train_on_workers({.max_steps = steps});
  const Logs logs = estimator.evaluate(input_fn);  // evaluates the checkpoint on the client
  std::printf("loss %g after %g steps\n", logs["loss"], logs["global_step"]);
  return logs["loss"] < 1e-3 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string model_dir = (std::filesystem::temp_directory_path() / "estimator_client").string();
  std::int64_t steps = 300;
  Flags flags("Trains a Dense(1) with an Estimator on workers and parameter servers");
  flags.add("--model-dir", model_dir, "folder for the client's checkpoints");
  flags.add("--steps", steps, "number of updates");
  const int code = flags.parse(argc, argv);
  return code >= 0 ? code : run_example([&] { return train(model_dir, steps); });
}
