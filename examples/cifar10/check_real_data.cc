// Trains on the real CIFAR-10 images for as many steps as the published log, and compares the
// losses.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "examples/cifar10/cifar10_input.h"
#include "examples/cifar10/published_archive.h"
#include "examples/cifar10/training_run.h"
#include "examples/common/example_options.h"
#include "tutti/core/flags.h"

using namespace tutti;
using namespace tutti::examples;
using namespace tutti::examples::cifar10;

namespace {

constexpr int kUnproven = 77;
constexpr std::int64_t kFirstStep = 1'200;
constexpr std::int64_t kLastStep = 1'300;
constexpr double kLowest = 2.0;
constexpr double kHighest = 2.35;
constexpr double kFirstLoss = 4.68;
constexpr double kFirstLossTolerance = 0.04;

int unproven(const std::string& why) {
  std::printf("unproven: the loss near step 1,270 on the real CIFAR-10; %s\n", why.c_str());
  return kUnproven;
}

/// Prints the first loss, and the mean loss of steps 1,200 to 1,300. Returns true if both match the
/// tutorial's log.
bool check_seed(TrainFlags flags, const ImageData& images, std::int64_t seed) {
  flags.seed = seed;
  flags.max_steps = kLastStep + 1;
  TrainingRun run(flags, images);
  if (run.train() != 0) return false;
  const auto& losses = run.losses();
  const double mean = std::accumulate(losses.begin() + kFirstStep, losses.end(), 0.0) /
                      static_cast<double>(kLastStep + 1 - kFirstStep);
  std::printf(
      "seed %lld: loss %.3f at step 0 (expected %.2f), mean %.3f in steps %lld to %lld "
      "(expected %.2f to %.2f)\n",
      static_cast<long long>(seed), double{losses[0]}, kFirstLoss, mean,
      static_cast<long long>(kFirstStep), static_cast<long long>(kLastStep), kLowest, kHighest);
  return std::abs(losses[0] - kFirstLoss) < kFirstLossTolerance && mean > kLowest &&
         mean < kHighest;
}

/// Prints whether the archive is the published archive. `data_dir` is its path or its folder.
void say_which_archive(const std::filesystem::path& data_dir) {
  for (const auto& path : {data_dir, data_dir / "cifar-10-binary.tar.gz"}) {
    if (!std::filesystem::is_regular_file(path)) continue;
    std::ifstream in(path, std::ios::binary);
    std::printf("%s: %s\n", path.c_str(), describe(identity_of(in)).c_str());
  }
}

int check(const TrainFlags& flags, std::int64_t num_seeds) {
  say_which_archive(flags.data_dir);
  ImageData images;
  try {
    images = read_images(flags.data_dir, Split::kTrain);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    return unproven(error.message());
  }
  const std::int64_t count = images.labels.num_elements();
  if (count != kNumExamplesForTraining) {
    return unproven(concat(flags.data_dir, ": expected the ", kNumExamplesForTraining,
                           " images of CIFAR-10, got ", count));
  }
  for (std::int64_t seed = 0; seed < num_seeds; ++seed) {
    if (!check_seed(flags, images, seed)) {
      std::printf("failed: the loss does not match the published loss\n");
      return 1;
    }
  }
  std::printf("proven: the loss matches the published loss, with %lld seeds\n",
              static_cast<long long>(num_seeds));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  TrainFlags values;
  values.train_dir = (std::filesystem::temp_directory_path() / "cifar10_check").string();
  std::int64_t num_seeds = 3;
  Flags flags("Compares the loss near step 1,270 on the real CIFAR-10 with the published loss");
  flags.add("--data_dir,--data-dir", values.data_dir,
            "folder with CIFAR-10's binary files, or with cifar-10-binary.tar.gz");
  flags.add("--train_dir,--train-dir", values.train_dir, "folder for checkpoints and summaries");
  flags.add("--seeds", num_seeds, "number of training runs, each with a different seed");
  flags.add_footer("Exit codes: 0 proven, 1 failed, 77 unproven because the data are missing.");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  return run_example([&] { return check(values, num_seeds); });
}
