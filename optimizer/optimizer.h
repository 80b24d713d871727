// The optimizer: schedule, iteration, clipping and reduction; the rule itself is an UpdateRule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable.h"
#include "tutti/optimizer/clipping.h"
#include "tutti/optimizer/learning_rate_schedule.h"
#include "tutti/tensor/update_rule.h"

namespace tutti {

struct OptimizerOptions {
  LearningRate learning_rate = 0.01;
  ClippingOptions clipping = {};
  std::string name = "";  // empty: the rule's name
};

/// Whether apply_gradients() sums the gradients over replicas first; kNone: the caller already did
/// (Keras's skip_gradients_aggregation).
enum class GradientAggregation { kSum, kNone };
struct ApplyOptions {
  GradientAggregation aggregation = GradientAggregation::kSum;
};

/// Updates a fixed list of variables. Made in the scope of the strategy that made the variables;
/// slots live beside them. In a replica gradients are SUMmed over replicas (scale the loss by the
/// global batch: compute_average_loss), then clipped, then each copy is updated once. All replicas
/// must call. Throws kFailedPrecondition in a cross-replica context. State is called
/// "<optimizer>/iteration", "<optimizer>/learning_rate" and "<optimizer>/<variable>/<slot>".
/// keras.optimizers.Optimizer.
class Optimizer {
 public:
  /// Throws kInvalidArgument for no variables, a variable given twice or one that is not floating.
  Optimizer(std::span<const Variable> variables, std::unique_ptr<UpdateRule> rule,
            OptimizerOptions options);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Gradients of `loss` by `tape`, their sum over replicas (overlapped with the backward pass) and
  /// the update.
  void minimize(GradientTape& tape, const Tensor& loss);
  /// The same for gradients that exist, in the order of variables(). Throws kInvalidArgument naming
  /// a variable whose gradient has another shape, or the numbers when there are too few or too
  /// many.
  void apply_gradients(std::span<const Gradient> gradients, ApplyOptions options = {});

  const std::string& name() const { return name_; }
  const UpdateRule& rule() const { return *rule_; }
  std::span<const Variable> variables() const { return variables_; }
  /// Updates so far: int64 [].
  const Variable& iterations() const { return iterations_; }
  /// The rate of the next update.
  double learning_rate() const;
  /// Throws kFailedPrecondition when a schedule decides. Not inside a replica.
  void set_learning_rate(double value);
  /// What a checkpoint holds: iterations, learning rate, then the slots of each variable, in order.
  std::vector<Variable> state_variables() const;

 private:
  UpdateScalars read_scalars() const;
  void check_gradients(std::span<const Gradient> gradients) const;
  void update(std::vector<Gradient> gradients, const UpdateScalars& scalars);
  void warn_without_gradient(const Variable& variable) const;

  std::unique_ptr<UpdateRule> rule_;
  std::string name_;
  ClippingOptions clipping_;
  std::shared_ptr<const LearningRateSchedule> schedule_;
  std::vector<Variable> variables_;
  std::vector<std::vector<Variable>> slots_;  // by variable
  Variable iterations_;
  Variable learning_rate_;
};

struct SgdOptions {
  LearningRate learning_rate = 0.01;
  double momentum = 0.0;
  bool nesterov = false;
  ClippingOptions clipping = {};
  std::string name = "";
};
struct AdamOptions {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool amsgrad = false;
  ClippingOptions clipping = {};
  std::string name = "";
};

/// `Sgd optimizer(model.trainable_variables(), {.learning_rate = 0.1});`
class Sgd final : public Optimizer {
 public:
  explicit Sgd(std::span<const Variable> variables, const SgdOptions& options = {});
};
class Adam final : public Optimizer {
 public:
  explicit Adam(std::span<const Variable> variables, const AdamOptions& options = {});
};

}  // namespace tutti
