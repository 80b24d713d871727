// The epochs and steps of Model::fit and Model::evaluate.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "tutti/model/compiled_model.h"
#include "tutti/model/progress.h"

namespace tutti::internal {

/// Yields global batches: whole passes, or (with steps per epoch) a pass after the other without
/// regard to where epochs end.
class BatchFeed {
 public:
  BatchFeed(DistributedDataset data, std::optional<std::int64_t> steps_per_epoch);
  /// Before the first batch of each epoch.
  void begin_epoch();
  /// The next batch of the epoch, valid until the next call; nullptr at its end. Throws
  /// kInvalidArgument for an empty dataset.
  const PerReplica<Batch>* next();
  /// Batches of an epoch, if known.
  std::optional<std::int64_t> num_steps() const;
  DistributedDataset& data() { return data_; }

 private:
  void start_pass();

  DistributedDataset data_;
  std::optional<std::int64_t> steps_per_epoch_;
  std::optional<DistributedDataset::Iterator> iterator_;
  bool advance_ = false;  // the iterator stands on a batch that was handed out
  std::int64_t step_ = 0;
};

/// One call of fit.
class FitLoop {
 public:
  /// `validate` (may be empty) evaluates and returns its logs.
  FitLoop(Model& model, CompiledModel& compiled, DistributedDataset data, const FitOptions& options,
          std::function<Logs()> validate);
  History run();

 private:
  void run_epoch(std::int64_t epoch);
  void run_step(const PerReplica<Batch>& batch);
  Logs finish_epoch(std::int64_t epoch);
  void tell_batch_end(std::int64_t number, std::int64_t rows);

  Model& model_;
  CompiledModel& compiled_;
  BatchFeed feed_;
  const FitOptions& options_;
  std::function<Logs()> validate_;
  ReplicaStep step_;
  std::optional<Progress> progress_;
};

/// One call of evaluate.
Logs run_evaluation(Model& model, CompiledModel& compiled, DistributedDataset data,
                    const EvaluateOptions& options);

}  // namespace tutti::internal
