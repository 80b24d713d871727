// TensorBoard summaries of training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "examples/cifar10/tower_trainer.h"
#include "tutti/model/log_files.h"

namespace tutti::examples::cifar10 {

/// Writer of summaries: losses ("<name> (raw)" is the mean over towers, and "<name>" its moving
/// average), the learning rate, the fraction of zeros in each layer's output, and histograms of
/// these outputs, of variables and of gradients. Tags do not depend on the number of towers.
class TrainSummaries {
 public:
  /// The file is created by the first write().
  explicit TrainSummaries(std::string directory) : directory_(std::move(directory)) {}
  /// Writes the `result` of step `step`. Requires: the step has summaries.
  void write(const TowerTrainer& trainer, const StepResult& result, std::int64_t step);

 private:
  void write_losses(const TowerTrainer& trainer, const StepResult& result, std::int64_t step);
  void write_activations(const StepResult& result, std::int64_t step);

  std::string directory_;
  std::optional<EventFileWriter> events_;
};

}  // namespace tutti::examples::cifar10
