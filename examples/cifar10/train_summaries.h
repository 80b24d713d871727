// What TensorBoard is shown of the training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "examples/cifar10/tower_trainer.h"
#include "tutti/model/log_files.h"

namespace tutti::examples::cifar10 {

/// Writes losses ("<name> (raw)": the mean over towers; "<name>": its moving average), the learning
/// rate, how many of each layer's results are 0 and, as histograms, these results, the variables
/// and their gradients. Tags name no tower: they are the same with 1 and with 4.
class TrainSummaries {
 public:
  /// The file is made by the first write().
  explicit TrainSummaries(std::string directory) : directory_(std::move(directory)) {}
  /// `result`: of a step with summaries, number `step`.
  void write(const TowerTrainer& trainer, const StepResult& result, std::int64_t step);

 private:
  void write_losses(const TowerTrainer& trainer, const StepResult& result, std::int64_t step);
  void write_activations(const StepResult& result, std::int64_t step);

  std::string directory_;
  std::optional<EventFileWriter> events_;
};

}  // namespace tutti::examples::cifar10
