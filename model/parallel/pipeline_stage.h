// One stage's work on one batch. Internal.
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

// What the stages of a pipeline hand each other during one batch. Internal.

/// Activations go forward, gradients backward; each stage takes what was put for it and waits until
/// it is there. One batch; any thread.
class PipelineMail {
 public:
  enum class Way { kForward, kBackward };

  PipelineMail(std::vector<Device> devices, std::size_t num_micro_batches, Duration timeout);

  /// For `stage`.
  void put(Way way, std::size_t stage, std::size_t micro_batch, Tensor value);
  /// Throws kDeadlineExceeded naming both stages, kAborted once a stage has failed.
  Tensor take(Way way, std::size_t stage, std::size_t micro_batch);

  /// The stage's work ends, with an error or without; the first error ends the others' waits.
  void end(std::exception_ptr error);
  /// Waits until all stages have ended, or for one timeout after the first error. Whether all have.
  bool wait_for_end();
  bool has_ended() const;
  /// After wait_for_end(): the first error, or nullptr.
  std::exception_ptr error() const;

  /// "stage 1 (cpu:1)".
  std::string name_of(std::size_t stage) const;

 private:
  using Shelf = std::vector<std::vector<Tensor>>;  // [stage][micro-batch]
  Shelf& shelf(Way way) TUTTI_REQUIRES(mutex_) {
    return way == Way::kForward ? forward_ : backward_;
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

// The sum of a variable's gradients over micro-batches. Internal.

/// Adds in the order of the calls; dense gradients in place, so that a sum never takes more memory
/// than one of them. One thread.
class StageSum {
 public:
  void add(const Gradient& gradient);
  Gradient total() const;

 private:
  std::optional<VariableComponent> dense_;
  GradientSum sparse_;
};

/// A batch in parts.
struct MicroBatches {
  std::vector<Tensor> features, labels;
  std::int64_t rows = 0;  // of all
};

/// Throws kInvalidArgument unless both have the same rows, at least as many as parts.
MicroBatches cut_into_micro_batches(const Tensor& features, const Tensor& labels, int parts);

/// Forward and backward passes of the layers of one stage, and the sums of their gradients. Made,
/// run and read one after the other; run by one thread.
class PipelineStage {
 public:
  PipelineStage(const StagedSequential& model, const Pipeline::LossFunction& loss,
                const MicroBatches& batch, PipelineMail& mail, std::size_t number);

  void run(const std::vector<PipelineTask>& tasks);

  const std::vector<Variable>& variables() const { return variables_; }
  /// The sum over micro-batches for variables()[i].
  Gradient gradient(std::size_t i) const { return sums_[i].total(); }
  /// The last stage's: sum over micro-batches. Undefined for others.
  const Tensor& loss() const { return loss_sum_; }
  /// Undefined for a stage without regularizers.
  const Tensor& regularization() const { return regularization_; }
  const std::vector<Transfer>& transfers() const { return transfers_; }

 private:
  /// What a micro-batch's backward pass needs of its forward pass.
  struct Kept {
    std::unique_ptr<GradientTape> tape;
    Tensor input;   // undefined for the first stage
    Tensor target;  // the stage's result; the last stage's loss
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
  PipelineMail& mail_;
  const std::size_t number_;
  const Device device_;
  const std::vector<Variable> variables_;
  std::vector<Kept> kept_;  // by micro-batch
  std::vector<StageSum> sums_;
  Tensor loss_sum_, regularization_;
  std::vector<Transfer> transfers_;
};

}  // namespace tutti::internal
