// Trains the tutorial's network on synthetic images and compares the speed with the published log.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>

#include "examples/cifar10/cifar10_input.h"
#include "examples/cifar10/speed_report.h"
#include "examples/cifar10/synthetic_images.h"
#include "examples/cifar10/training_run.h"
#include "examples/common/example_options.h"
#include "tutti/core/flags.h"

using namespace tutti;
using namespace tutti::examples;
using namespace tutti::examples::cifar10;

namespace {

// Number of initial steps that are not measured, because they include setup.
constexpr std::int64_t kWarmUp = 2;

int check(TrainFlags flags, std::int64_t steps) {
  flags.max_steps = steps + kWarmUp;
  TrainingRun run(flags, read_images(make_synthetic_images(flags.data_dir), Split::kTrain));
  if (const int code = run.train(); code != 0) return code;
  const SpeedReport report =
      speed_report(run.step_seconds(), kWarmUp, flags.batch_size, tower_devices(flags).size());
  std::printf("%s\n", to_string(report).c_str());
  return report.times_published() > 1.0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  TrainFlags values;
  values.train_dir = (std::filesystem::temp_directory_path() / "cifar10_speed").string();
  values.num_gpus = 2;
  std::int64_t steps = 40;
  Flags flags(
      "Compares the training speed of the CIFAR-10 tutorial's network with the published speed");
  flags.add("--batch_size,--batch-size", values.batch_size, "batch size of each tower");
  flags.add("--data_dir,--data-dir", values.data_dir, "folder for the synthetic images");
  flags.add("--train_dir,--train-dir", values.train_dir, "folder for checkpoints and summaries");
  flags.add("--num_gpus,--num-gpus", values.num_gpus, "number of towers");
  flags.add("--devices", values.devices,
            "devices of the towers, instead of --num_gpus: gpu:0,gpu:2 or cpu:0-3");
  flags.add("--steps", steps, "number of measured steps");
  flags.add_footer("Exit code: 0 if training is faster than in all published log lines, else 1.");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  return run_example([&] {
    if (steps >= 1 && values.batch_size >= 1 && values.num_gpus >= 1) return check(values, steps);
    fail(ErrorCode::kInvalidArgument,
         "check_speed: expected >= 1 for --steps, --batch_size and --num_gpus, got ", steps, ", ",
         values.batch_size, " and ", values.num_gpus);
  });
}
