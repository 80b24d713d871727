// Implements a callback that records the losses of fit(), and ends training after --steps.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/fit_recorder.h"

#include <algorithm>
#include <cstdio>

namespace tutti::examples {
namespace {

constexpr std::int64_t kBatchesBetweenBackups = 100;

}  // namespace

void FitRecorder::on_train_batch_end(std::int64_t batch, const Logs& logs) {
  const std::int64_t first = batch * options_.batch_size;
  const std::int64_t rows = std::min(options_.batch_size, num_examples_ - first);
  // The logs contain the mean loss of the epoch so far. The difference of sums is the step's loss.
  if (batch == 0) sum_ = 0.0;
  const double sum = logs.at("loss") * static_cast<double>(first + rows);
  record_.step(static_cast<float>((sum - sum_) / static_cast<double>(rows)), rows);
  sum_ = sum;
  if (options_.steps > 0 && record_.steps() >= options_.steps) model().stop_training();
}

Json FitRecorder::save_state() const {
  Json state = Json::object();
  state.set("record", record_.save()).set("sum", sum_);
  return state;
}

void FitRecorder::restore_state(const Json& state) {
  record_.restore(state.at("record"));
  sum_ = state.at("sum").as_double();
}

FitOptions fit_options(const ExampleOptions& options, TrainingRecord& record,
                       std::int64_t num_examples) {
  FitOptions fit{.epochs = options.epochs};
  fit.callbacks.push_back(FitRecorder(record, options, num_examples));
  if (!options.log_dir.empty()) {
    fit.callbacks.push_back(JsonLog(options.log_dir));
    fit.callbacks.push_back(TensorBoard(options.log_dir));
  }
  return fit;
}

CheckpointedFit::CheckpointedFit(const ExampleOptions& options, Model& model, FitOptions& fit)
    : model_(model) {
  if (options.checkpoint_dir.empty()) return;
  saved_ = options.checkpoint_dir + "/checkpoint.safetensors";
  if (options.resume) {
    model_.checkpoint().restore(saved_);
    fit.initial_epoch = model_.epochs_trained();
  }
  fit.callbacks.push_back(
      BackupAndRestore(options.checkpoint_dir + "/backup", {.save_freq = kBatchesBetweenBackups}));
}

void CheckpointedFit::save(std::int64_t steps) const {
  if (!saved_.empty()) model_.checkpoint().save(saved_, steps);
}

int report(const Strategy& strategy, const Logs& result, const TrainingRecord& record,
           double min_accuracy) {
  if (strategy.is_chief()) {
    std::printf("result     test loss %.4f, test accuracy %.4f (%.0f examples/s)\n",
                result.at("loss"), result.at("accuracy"), record.examples_per_second());
  }
  if (result.at("accuracy") >= min_accuracy) return 0;
  std::fprintf(stderr, "error: expected a test accuracy of at least %.4f, got %.4f\n", min_accuracy,
               result.at("accuracy"));
  return 1;
}

}  // namespace tutti::examples
