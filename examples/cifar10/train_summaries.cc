// Implements the TensorBoard summaries of the training.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/train_summaries.h"

#include <algorithm>

namespace tutti::examples::cifar10 {

void TrainSummaries::write_losses(const TowerTrainer& trainer, const StepResult& result,
                                  std::int64_t step) {
  for (std::size_t i = 0; i < result.tower_losses[0].size(); ++i) {
    const std::string name = without_tower(result.tower_losses[0][i].name);
    events_->scalar(name + " (raw)", step, mean_loss(result, i));
    events_->scalar(name, step, trainer.loss_averages().average(name).value().item_double());
  }
}

void TrainSummaries::write_activations(const StepResult& result, std::int64_t step) {
  for (const NamedTensor& activation : result.activations) {
    const std::string name = without_tower(activation.name);  // "conv1/activations"
    const std::vector<double> values = activation.value.to_doubles();
    const auto zeros = static_cast<double>(std::ranges::count(values, 0.0));
    events_->histogram(name, step, values);
    events_->scalar(name.substr(0, name.rfind('/')) + "/sparsity", step,
                    zeros / static_cast<double>(values.size()));
  }
}

void TrainSummaries::write(const TowerTrainer& trainer, const StepResult& result,
                           std::int64_t step) {
  if (!events_) events_.emplace(directory_);
  write_losses(trainer, result, step);
  events_->scalar("learning_rate", step, trainer.learning_rate());
  write_activations(result, step);
  for (const auto& [gradient, variable] : result.gradients) {
    events_->histogram(variable.name(), step, variable.value().to_doubles());
    if (gradient.is_none()) continue;
    events_->histogram(variable.name() + "/gradients", step, gradient.to_dense().to_doubles());
  }
}

}  // namespace tutti::examples::cifar10
