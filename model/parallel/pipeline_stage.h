// One stage's work on one batch. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/parallel/pipeline.h"
#include "tutti/model/parallel/pipeline_mail.h"
#include "tutti/model/parallel/stage_sum.h"

namespace tutti::internal {

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
