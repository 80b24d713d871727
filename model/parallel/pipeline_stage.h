// Forward and backward passes of one stage of a pipeline for one batch. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/gradients.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/core/sync.h"
#include "tutti/model/parallel/pipeline.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

// Exchange of tensors between stages during one batch. Internal.

/// Exchange for one batch: activations move forward, gradients backward. Thread-safe.
class StageExchange {
 public:
  enum class Direction { kForward, kBackward };

  StageExchange(std::vector<Device> devices, std::size_t num_micro_batches, Duration timeout);

  /// Stores a value for `stage`, whose thread retrieves the value with take().
  void put(Direction way, std::size_t stage, std::size_t micro_batch, Tensor value);
  /// Waits for the value that put() stores, and returns it. Throws kDeadlineExceeded, naming both
  /// stages, on timeout, and kAborted if a stage failed.
  Tensor take(Direction way, std::size_t stage, std::size_t micro_batch);

  /// Reports that a stage has finished, with its error or nullptr. The first error makes take()
  /// calls that wait in other stages throw.
  void end(std::exception_ptr error);
  /// Waits until all stages have ended, but no longer than one timeout after the first error;
  /// returns true if all have ended.
  bool wait_for_end();
  bool has_ended() const;
  /// Returns the first error, or nullptr. Must be called after wait_for_end().
  std::exception_ptr error() const;

  /// Returns "stage 1 (cpu:1)".
  std::string name_of(std::size_t stage) const;

 private:
  using Shelf = std::vector<std::vector<Tensor>>;  // indexed by [stage][micro-batch]
  Shelf& shelf(Direction way) TUTTI_REQUIRES(mutex_) {
    return way == Direction::kForward ? forward_ : backward_;
  }

  const std::vector<Device> devices_;
  const Duration timeout_;
  mutable Mutex mutex_;
  CondVar condition_;
  Shelf forward_ TUTTI_GUARDED_BY(mutex_);
  Shelf backward_ TUTTI_GUARDED_BY(mutex_);
  std::size_t num_ended_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
};

// Sum of a variable's gradients over micro-batches. Internal.

/// Sum of gradients, added in call order. Dense gradients are added in place, so the sum takes only
/// the memory of one gradient. Not thread-safe.
class StageSum {
 public:
  void add(const Gradient& gradient);
  Gradient total() const;

 private:
  std::optional<VariableComponent> dense_;
  GradientSum sparse_;
};

/// A batch split into micro-batches.
struct MicroBatches {
  std::vector<Tensor> features, labels;
  std::int64_t rows = 0;  // number of rows in the full batch
};

/// Splits a batch. Throws kInvalidArgument unless features and labels have the same number of rows,
/// and at least one row per part.
MicroBatches cut_into_micro_batches(const Tensor& features, const Tensor& labels, int parts);

/// Forward and backward passes of the layers of one stage, and the sums of their gradients. Not
/// thread-safe: one thread calls run(), after which another thread may read the results.
class PipelineStage {
 public:
  PipelineStage(const StagedSequential& model, const Pipeline::LossFunction& loss,
                const MicroBatches& batch, StageExchange& exchange, std::size_t number);

  void run(const std::vector<PipelineTask>& tasks);

  const std::vector<Variable>& variables() const { return variables_; }
  /// Returns the gradient of variables()[i], summed over micro-batches.
  Gradient gradient(std::size_t i) const { return sums_[i].total(); }
  /// Returns the loss summed over micro-batches; undefined except for the last stage.
  const Tensor& loss() const { return loss_sum_; }
  /// Returns the regularisation losses; undefined for a stage without regularizers.
  const Tensor& regularization() const { return regularization_; }
  const std::vector<Transfer>& transfers() const { return transfers_; }

 private:
  /// Data that the forward pass of a micro-batch keeps for its backward pass.
  struct Kept {
    std::unique_ptr<GradientTape> tape;
    Tensor input;   // undefined for the first stage
    Tensor target;  // the stage's result; for the last stage, the loss
  };
  bool is_first() const { return number_ == 0; }
  bool is_last() const { return number_ + 1 == model_.num_stages(); }
  void run_all(const std::vector<PipelineTask>& tasks);
  void forward(std::size_t k);
  void backward(std::size_t k);
  void add_regularization();
  Tensor loss_of(std::size_t k, const Tensor& predictions) const;

  const StagedSequential& model_;
  const Pipeline::LossFunction& loss_function_;
  const MicroBatches& batch_;
  StageExchange& exchange_;
  const std::size_t number_;
  const Device device_;
  const std::vector<Variable> variables_;
  std::vector<Kept> kept_;  // indexed by micro-batch
  std::vector<StageSum> sums_;
  Tensor loss_sum_, regularization_;
  std::vector<Transfer> transfers_;
};

}  // namespace tutti::internal
