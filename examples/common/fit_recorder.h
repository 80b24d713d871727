// Callback that records the losses of fit for the report, and ends training after --steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/common/example_options.h"
#include "examples/common/metrics_file.h"
#include "tutti/model/callbacks.h"
#include "tutti/tutti.h"

namespace tutti::examples {

/// Records the loss of each step; an epoch has `num_examples` examples. `record` and `options` must
/// outlive this object.
class FitRecorder final : public Callback {
 public:
  FitRecorder(TrainingRecord& record, const ExampleOptions& options, std::int64_t num_examples)
      : record_(record), options_(options), num_examples_(num_examples) {}

  void on_train_batch_end(std::int64_t batch, const Logs& logs) override;
  Json save_state() const override;
  void restore_state(const Json& state) override;

 private:
  TrainingRecord& record_;
  const ExampleOptions& options_;
  std::int64_t num_examples_;
  double sum_ = 0.0;  // sum of the losses of this epoch's examples so far
};

/// Returns fit() options with the epochs, the recorder, and the --log-dir logs.
FitOptions fit_options(const ExampleOptions& options, TrainingRecord& record,
                       std::int64_t num_examples);

/// Implements --checkpoint-dir and --resume for fit(). The constructor's arguments must outlive
/// this object.
class CheckpointedFit {
 public:
  /// With --resume, restores the weights of the last run. If that run was killed, training
  /// continues in the middle of its epoch.
  CheckpointedFit(const ExampleOptions& options, Model& model, FitOptions& fit);
  /// Saves the state that --resume restores.
  void save(std::int64_t steps) const;

 private:
  Model& model_;
  std::string saved_;  // path of the saved file; empty without --checkpoint-dir
};

/// Prints the result on the chief. Returns the exit code, which is 1 if the accuracy is below
/// `min_accuracy`.
int report(const Strategy& strategy, const Logs& result, const TrainingRecord& record,
           double min_accuracy);

}  // namespace tutti::examples
