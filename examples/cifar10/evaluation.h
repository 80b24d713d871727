// Evaluation of the checkpoints of a training run, using the moving averages of the weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/cifar10/cifar10_network.h"
#include "tutti/data/readers.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/strategy/strategies.h"

namespace tutti::examples::cifar10 {

/// Flags of cifar10_eval, with the tutorial's names and defaults.
struct EvalFlags {
  std::string eval_dir = "/tmp/cifar10_eval";
  std::string eval_data = "test";
  std::string checkpoint_dir = "/tmp/cifar10_train";
  std::int64_t eval_interval_secs = 300;
  std::int64_t num_examples = 10'000;
  bool run_once = false;
  // The training programs also have these flags.
  std::int64_t batch_size = 128;
  std::string data_dir = "/tmp/cifar10_data";
  bool use_fp16 = false;
  // The tutorial does not have this flag.
  bool synthetic = false;
};

/// Number of images whose label has the largest logit, and the total number of images.
struct Precision {
  std::int64_t correct = 0;
  std::int64_t total = 0;
  double at_1() const { return static_cast<double>(correct) / static_cast<double>(total); }
};

/// Evaluates the network with the moving averages of a checkpoint as its weights.
class Evaluator {
 public:
  /// Evaluates on `devices`; each device gets a part of each batch.
  explicit Evaluator(std::vector<Device> devices, bool use_fp16 = false);
  /// Loads the averages from a checkpoint and returns the checkpoint's step. Throws the same errors
  /// as load_weights().
  std::int64_t restore(const std::string& checkpoint);
  /// Evaluates the first `num_examples` images, or all images if there are fewer. Counts each image
  /// once, even in a partial last batch (the original counts some images twice).
  Precision evaluate(const ImageData& images, std::int64_t num_examples, std::int64_t batch_size);

 private:
  MirroredStrategy strategy_;
  bool use_fp16_;
  VariableStore store_;
  std::optional<Cifar10Network> network_;
  ExponentialMovingAverage averages_;
};

/// Implements main() of cifar10_eval.
int run_evaluation(int argc, char** argv);

}  // namespace tutti::examples::cifar10
