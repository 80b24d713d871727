// Optimizer, which adds a learning rate, an iteration count, clipping and reduction to an
// UpdateRule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/source_location.h"
#include "tutti/optimizer/learning_rate_schedules.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/update_rule.h"

namespace tutti {

/// Base class of tutti's update rules. device_rule() returns a formula that CPUs, GPUs and XLA
/// share, and the values of the formula's constants for one step.
class FormulaRule : public UpdateRule {
 public:
  void apply(const UpdateArgs& args) const final;
  void direct(const UpdateArgs& args, void* direction) const final;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override = 0;

 private:
  void update(const UpdateArgs& args, void* direction) const;
};

/// A built-in formula with its hyperparameters: AdamRule, LionRule, ...
template <class Hyper>
class RuleWith final : public FormulaRule {
 public:
  using Hyperparameters = Hyper;
  /// Throws kInvalidArgument if a hyperparameter is out of range.
  explicit RuleWith(Hyperparameters hyperparameters = {});
  std::string_view name() const override;
  Json describe() const override;
  std::vector<SlotSpec> slots() const override;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override;
  bool skips_zero_gradient() const override;
  bool decays_weights() const override;
  bool uses_norms() const override;

 private:
  Hyper hyper_;
};

// Clipping of gradients after they are summed over replicas.

/// Limits on gradients, with Keras's names. At most one may be set, to a positive value.
struct ClippingOptions {
  std::optional<double> clipnorm = std::nullopt;         // maximum norm of each gradient
  std::optional<double> clipvalue = std::nullopt;        // maximum absolute value of each element
  std::optional<double> global_clipnorm = std::nullopt;  // maximum joint norm of all gradients
  void validate(std::string_view who) const;
  bool any() const { return clipnorm || clipvalue || global_clipnorm; }
};

/// Returns the gradient with every element multiplied by `factor`; an empty gradient (is_none())
/// stays empty.
Gradient scale_gradient(const Gradient& gradient, double factor);

/// Returns the sum of squares, computed in double. The order of additions (tensor/sum_of_squares.h)
/// depends only on the size. Duplicate rows of IndexedSlices are added before squaring.
double sum_of_squares(const Gradient& gradient);

/// Clips gradients by tf's rule: scale = clipnorm / max(norm, clipnorm). Empty gradients
/// (is_none()) stay empty.
std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options);

// Options shared by all optimizers, in addition to the hyperparameters of their rules.

/// Options for the exponential moving average of weights (Keras's use_ema). After each update,
/// average = momentum * average + (1 - momentum) * weight; the first update sets average = weight.
/// Optimizer::finalize_variable_values(), and every `overwrite_frequency`-th update if set, replace
/// the weights with their averages.
struct EmaOptions {
  double momentum = 0.99;  // weight of the previous average
  /// Number of updates between overwrites of the weights with their averages; nullopt: never.
  std::optional<std::int64_t> overwrite_frequency = std::nullopt;
};

/// Options for dynamic loss scaling (tf's DynamicLossScale), which finds the largest scale with
/// finite gradients. If a gradient is not finite on some replica, all replicas skip the update, and
/// the scale is divided by `multiplier` (but not below 1). After `growth_steps` consecutive finite
/// updates, the scale is multiplied by `multiplier` if the result is finite in float32.
struct DynamicLossScaleOptions {
  double initial_scale = 32768.0;
  std::int64_t growth_steps = 2000;  // number of consecutive finite updates before the scale grows
  double multiplier = 2.0;           // factor by which the scale changes
};

/// Options shared by all optimizers, repeated in each optimizer's options struct. Names and
/// meanings are Keras's.
struct OptimizerOptions {
  LearningRate learning_rate = 0.01;
  /// Decoupled weight decay: before each update, weight -= weight * learning_rate * weight_decay.
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  /// Constant factor that multiplies the loss and later divides the gradients.
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  /// Number of calls to minimize() or apply_gradients() per update. An update averages the
  /// gradients of its calls, then sums the means over replicas. The number may change between save
  /// and restore; the mean still contains the gradients accumulated so far.
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";  // if empty, the rule's name is used
};

/// Returns the shared fields of an optimizer's options.
template <class Options>
OptimizerOptions shared_options(const Options& options) {
  return {.learning_rate = options.learning_rate,
          .weight_decay = options.weight_decay,
          .clipping = options.clipping,
          .ema = options.ema,
          .loss_scale_factor = options.loss_scale_factor,
          .dynamic_loss_scale = options.dynamic_loss_scale,
          .gradient_accumulation_steps = options.gradient_accumulation_steps,
          .name = options.name};
}

namespace internal {
/// Creates the update rule for the options of one of tutti's optimizers.
template <class Options>
std::unique_ptr<UpdateRule> rule_of(const Options& options);
}  // namespace internal

namespace internal {
class DynamicLossScale;
class GradientAccumulator;
}  // namespace internal
class GradientReducer;
class StepRecorder;

/// kSum: apply_gradients() sums the gradients over replicas first. kNone: the caller has summed
/// them (Keras's skip_gradients_aggregation). In that case, all replicas must pass equal gradients
/// for every variable, whether shared or copied; otherwise apply_gradients() throws
/// kInvalidArgument, naming the variable and the replicas. Each replica's component of an ON_READ
/// variable uses that replica's gradient.
enum class GradientAggregation { kSum, kNone };
struct ApplyOptions {
  GradientAggregation aggregation = GradientAggregation::kSum;
};

/// Optimizer for a fixed list of variables (keras.optimizers.Optimizer). Create it in the scope of
/// the strategy that created the variables; slots have the variables' placement. In a replica,
/// gradients are SUMmed over replicas (therefore, divide the loss by the global batch size:
/// compute_average_loss()), divided by the loss scale and clipped; then weights decay, and each
/// copy is updated once. Collective: all replicas must make the same calls. Throws
/// kFailedPrecondition in a cross-replica context. State variables are named
/// "<optimizer>/iteration", "<optimizer>/learning_rate" and "<optimizer>/<variable>/<slot>".
class Optimizer {
 public:
  /// Throws kInvalidArgument if `variables` is empty, or contains a duplicate or a variable whose
  /// type is neither float32 nor float64, or if an option is out of range.
  Optimizer(std::span<const Variable> variables, std::unique_ptr<UpdateRule> rule,
            OptimizerOptions options);
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Computes the gradients of `loss` (times the loss scale) with `tape`, sums them over replicas
  /// during the backward pass, and updates the variables.
  void minimize(GradientTape& tape, const Tensor& loss,
                const SourceLocation& where = SourceLocation::current());
  /// Same as minimize(), but for given gradients of scale_loss(loss) in the order of variables().
  /// Throws kInvalidArgument if the number of gradients, or a gradient's shape (naming the
  /// variable), does not match.
  void apply_gradients(std::span<const Gradient> gradients, ApplyOptions options = {},
                       const SourceLocation& where = SourceLocation::current());

  /// Returns `loss` times the loss scale; differentiable. Call it before computing gradients for
  /// apply_gradients(); minimize() calls it itself.
  Tensor scale_loss(const Tensor& loss) const;
  /// Returns the factor that scale_loss() applies; 1 without loss scaling.
  double loss_scale() const;
  /// Returns true if losses are scaled, by a constant or dynamically.
  bool has_loss_scale() const;
  /// Enables dynamic loss scaling. Call it before the first step, in the strategy's scope. Throws
  /// kFailedPrecondition if there already is a loss scale.
  void use_dynamic_loss_scale(const DynamicLossScaleOptions& options);

  /// Disables weight decay for variables whose name contains one of these strings. Throws
  /// kInvalidArgument for a string that no name contains. Must not be called inside a replica.
  void exclude_from_weight_decay(const std::vector<std::string>& parts_of_names);
  /// Return and set, for each of variables(), whether weight decay applies to it; by default it
  /// applies to all. Must not be called inside a replica.
  const std::vector<bool>& decaying() const { return decays_; }
  void set_decaying(std::vector<bool> decays);
  /// Assigns the moving averages, if there are any, to the weights. Must not be called inside a
  /// replica.
  void finalize_variable_values();

  const std::string& name() const { return name_; }
  const UpdateRule& rule() const { return *rule_; }
  std::span<const Variable> variables() const { return variables_; }
  /// Number of updates so far, an int64 scalar.
  const Variable& iterations() const { return iterations_; }
  /// Returns the learning rate of the next update. As in Keras, a schedule's argument is the number
  /// of calls so far; with gradient accumulation, there are more calls than updates. Throws
  /// kInvalidArgument, as the update does, if the schedule returns a negative or non-finite rate.
  double learning_rate() const;
  /// Returns true if the learning rate follows a schedule.
  bool has_schedule() const { return schedule_ != nullptr; }
  /// Sets a constant learning rate. Throws kFailedPrecondition if there is a schedule, and
  /// kInvalidArgument if the rate is negative or not finite. Must not be called inside a replica.
  void set_learning_rate(double value);
  /// Returns the variables that a checkpoint stores: iterations, learning rate, state of loss
  /// scaling and accumulation, then the slots of each variable, in order.
  std::vector<Variable> state_variables() const;

 private:
  struct Step;
  void make_slots();
  void make_loss_scale(const OptimizerOptions& options);
  void describe_settings();
  Step read_step() const;
  double checked_rate(double rate) const;
  bool holds_back(const Step& step) const;
  void hold_back(std::span<const Gradient> gradients, const Step& step);
  Gradient with_held(std::size_t index, const Gradient& gradient) const;
  std::vector<Gradient> with_held(std::span<const Gradient> gradients) const;
  void check_gradients(std::span<const Gradient> gradients) const;
  bool is_applicable(std::span<const Gradient> gradients) const;
  bool is_applicable_everywhere(std::span<const Gradient> gradients) const;
  void begin_sums(GradientReducer& reducer, const Step& step) const;
  void update_with_sums(GradientReducer& reducer, const Step& step);
  void update(std::vector<Gradient> gradients, const Step& step, bool finite);
  const UpdateScalars* note_replays(StepRecorder& recorder, const UpdateScalars& scalars);
  void update_variable(std::size_t index, const Gradient& gradient, UpdateScalars scalars);
  void warn_without_gradient(const Variable& variable) const;

  std::unique_ptr<UpdateRule> rule_;
  std::string name_;
  std::string settings_;  // all settings but the learning rate, for comparison between workers
  ClippingOptions clipping_;
  std::shared_ptr<const LearningRateSchedule> schedule_;
  double loss_scale_factor_ = 1.0;
  double weight_decay_ = 0.0;
  std::unique_ptr<UpdateRule> decaying_rule_;  // for variables with weight decay; null: use rule_
  std::unique_ptr<UpdateRule> average_rule_;   // null without moving averages
  std::vector<Variable> variables_;
  std::vector<bool> decays_;                  // one flag per variable
  std::vector<std::vector<Variable>> slots_;  // slots of each variable
  std::vector<Variable> averages_;            // one per variable; empty without moving averages
  Variable iterations_;
  Variable learning_rate_;
  std::unique_ptr<internal::DynamicLossScale> dynamic_loss_scale_;
  std::unique_ptr<internal::GradientAccumulator> accumulator_;
};

/// Optimizer created from one of tutti's options structs: Sgd, Adam, ...
template <class Options>
class OptimizerWith final : public Optimizer {
 public:
  explicit OptimizerWith(std::span<const Variable> variables, const Options& options = {})
      : Optimizer(variables, internal::rule_of(options), shared_options(options)) {}
  /// Takes a constant or a schedule as the learning rate: `Adam(variables, 1e-3)`.
  template <std::convertible_to<LearningRate> Rate>
  OptimizerWith(std::span<const Variable> variables, const Rate& learning_rate)
      : OptimizerWith(variables, with_rate(learning_rate)) {}

 private:
  static Options with_rate(LearningRate learning_rate) {
    Options options;
    options.learning_rate = std::move(learning_rate);
    return options;
  }
};

}  // namespace tutti
