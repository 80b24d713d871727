// The optimizer: schedule, iteration, clipping and reduction; the rule itself is an UpdateRule.
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

/// Base of this library's rules: device_rule() names one of the formulas that CPU, GPUs and XLA
/// share, and has the numbers of a step.
class FormulaRule : public UpdateRule {
 public:
  void apply(const UpdateArgs& args) const final;
  void direct(const UpdateArgs& args, void* direction) const final;
  std::optional<DeviceRule> device_rule(const UpdateScalars& scalars) const override = 0;

 private:
  void update(const UpdateArgs& args, void* direction) const;
};

/// The formula that these hyperparameters are for: AdamRule, LionRule, ...
template <class Hyper>
class RuleWith final : public FormulaRule {
 public:
  using Hyperparameters = Hyper;
  /// Throws kInvalidArgument for numbers out of range.
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

// Limits on gradients, applied to what was summed over replicas.

/// At most one may be set; each positive. Keras's names.
struct ClippingOptions {
  std::optional<double> clipnorm = std::nullopt;         // norm of each gradient
  std::optional<double> clipvalue = std::nullopt;        // each element
  std::optional<double> global_clipnorm = std::nullopt;  // norm of all gradients together
  void validate(std::string_view who) const;
  bool any() const { return clipnorm || clipvalue || global_clipnorm; }
};

/// Every element times `factor`; none stays none.
Gradient scale_gradient(const Gradient& gradient, double factor);

/// The sum of squares in double, in the order of tensor/sum_of_squares.h, which depends on the size
/// alone. IndexedSlices count with their duplicates added.
double sum_of_squares(const Gradient& gradient);

/// The gradients after clipping; gradients that are none stay none. The tf rule: scale = clipnorm /
/// max(norm, clipnorm).
std::vector<Gradient> clip_gradients(std::vector<Gradient> gradients,
                                     const ClippingOptions& options);

// What every optimizer takes besides the numbers of its rule.

/// Keeps an exponential moving average of the weights: after each update average = momentum *
/// average + (1 - momentum) * weight, the first time the weight itself. Every
/// `overwrite_frequency` updates, if given, the weights become their averages;
/// Optimizer::finalize_variable_values() does it at the end. Keras's use_ema.
struct EmaOptions {
  double momentum = 0.99;  // how much of the average stays
  /// Updates between two times that weights become their averages; none: at the end alone.
  std::optional<std::int64_t> overwrite_frequency = std::nullopt;
};

/// Loss scaling that looks for the largest scale at which gradients stay finite: an update with a
/// gradient that is not finite on some replica is skipped on all, and the scale divided by
/// `multiplier` (never below 1); after `growth_steps` updates in a row it is multiplied by it, as
/// long as it stays finite as a float32. tf's DynamicLossScale.
struct DynamicLossScaleOptions {
  double initial_scale = 32768.0;
  std::int64_t growth_steps = 2000;  // updates without overflow before the scale grows
  double multiplier = 2.0;           // by which it grows and shrinks
};

/// The options structs of the optimizers repeat these fields. Keras's names and meanings.
struct OptimizerOptions {
  LearningRate learning_rate = 0.01;
  /// Before each update weights shrink by weight * learning rate * this (decoupled).
  std::optional<double> weight_decay = std::nullopt;
  ClippingOptions clipping = {};
  std::optional<EmaOptions> ema = std::nullopt;
  /// A fixed factor on the loss, by which gradients are divided again.
  std::optional<double> loss_scale_factor = std::nullopt;
  std::optional<DynamicLossScaleOptions> dynamic_loss_scale = std::nullopt;
  /// Gradients of this many calls are averaged for one update; they are summed over replicas once.
  /// May change between a save and a restore: calls that are held already stay in the mean.
  std::int64_t gradient_accumulation_steps = 1;
  std::string name = "";  // empty: the rule's name
};

/// The shared fields of `options`, the options of some optimizer.
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
/// The rule that `options`, those of an optimizer of this library, describe.
template <class Options>
std::unique_ptr<UpdateRule> rule_of(const Options& options);
}  // namespace internal

namespace internal {
class DynamicLossScale;
class GradientAccumulator;
}  // namespace internal
class GradientReducer;
class StepRecorder;

/// Whether apply_gradients() sums the gradients over replicas first; kNone: the caller already did
/// (Keras's skip_gradients_aggregation). Replicas must then give equal gradients of a variable
/// whose value they share or have copies of, or kInvalidArgument names variable and replicas. An
/// ON_READ variable takes the gradient of its replica.
enum class GradientAggregation { kSum, kNone };
struct ApplyOptions {
  GradientAggregation aggregation = GradientAggregation::kSum;
};

/// Updates a fixed list of variables. Made in the scope of the strategy that made the variables;
/// slots live beside them. In a replica gradients are SUMmed over replicas (scale the loss by the
/// global batch: compute_average_loss), divided by the loss scale, then clipped, then weights decay
/// and each copy is updated once. All replicas must call. Throws kFailedPrecondition in a
/// cross-replica context. State is called "<optimizer>/iteration", "<optimizer>/learning_rate" and
/// "<optimizer>/<variable>/<slot>". keras.optimizers.Optimizer.
class Optimizer {
 public:
  /// Throws kInvalidArgument for no variables, a variable given twice or one that is not floating,
  /// and for options out of range.
  Optimizer(std::span<const Variable> variables, std::unique_ptr<UpdateRule> rule,
            OptimizerOptions options);
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Gradients of `loss` (times the loss scale) by `tape`, their sum over replicas (overlapped with
  /// the backward pass) and the update.
  void minimize(GradientTape& tape, const Tensor& loss,
                const SourceLocation& where = SourceLocation::current());
  /// The same for gradients that exist, of scale_loss(loss), in the order of variables(). Throws
  /// kInvalidArgument naming a variable whose gradient has another shape, or the numbers when there
  /// are too few or too many.
  void apply_gradients(std::span<const Gradient> gradients, ApplyOptions options = {},
                       const SourceLocation& where = SourceLocation::current());

  /// `loss` times the loss scale, differentiable. For apply_gradients(); minimize() does it itself.
  Tensor scale_loss(const Tensor& loss) const;
  /// The factor of scale_loss(); 1 without loss scaling.
  double loss_scale() const;
  /// Whether losses are scaled, by a fixed factor or dynamically.
  bool has_loss_scale() const;
  /// Turns on dynamic loss scaling, before the first step and in the strategy's scope. Throws
  /// kFailedPrecondition when there is a loss scale already.
  void use_dynamic_loss_scale(const DynamicLossScaleOptions& options);

  /// Variables whose name contains one of these do not decay. Throws kInvalidArgument naming what
  /// no variable's name contains. Not inside a replica.
  void exclude_from_weight_decay(const std::vector<std::string>& parts_of_names);
  /// Which of variables() decay, in their order; all by default. Not inside a replica.
  const std::vector<bool>& decaying() const { return decays_; }
  void set_decaying(std::vector<bool> decays);
  /// With moving averages: makes weights their averages. Not inside a replica.
  void finalize_variable_values();

  const std::string& name() const { return name_; }
  const UpdateRule& rule() const { return *rule_; }
  std::span<const Variable> variables() const { return variables_; }
  /// Updates so far: int64 [].
  const Variable& iterations() const { return iterations_; }
  /// The rate of the next update. A schedule is asked with the number of calls so far, as Keras
  /// does: with gradient accumulation these are more than updates. Throws kInvalidArgument, as the
  /// update itself, where the schedule gives one that is negative or not finite.
  double learning_rate() const;
  /// Throws kFailedPrecondition when a schedule decides, kInvalidArgument for a rate that is
  /// negative or not finite. Not inside a replica.
  void set_learning_rate(double value);
  /// What a checkpoint holds: iterations, learning rate, state of loss scaling and accumulation,
  /// then the slots of each variable, in order.
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
  std::string settings_;  // all but the learning rate, for comparing workers
  ClippingOptions clipping_;
  std::shared_ptr<const LearningRateSchedule> schedule_;
  double loss_scale_factor_ = 1.0;
  double weight_decay_ = 0.0;
  std::unique_ptr<UpdateRule> decaying_rule_;  // of decaying variables; null: rule_
  std::unique_ptr<UpdateRule> average_rule_;   // null: no moving averages
  std::vector<Variable> variables_;
  std::vector<bool> decays_;                  // by variable
  std::vector<std::vector<Variable>> slots_;  // by variable
  std::vector<Variable> averages_;            // by variable; empty: no moving averages
  Variable iterations_;
  Variable learning_rate_;
  std::unique_ptr<internal::DynamicLossScale> dynamic_loss_scale_;
  std::unique_ptr<internal::GradientAccumulator> accumulator_;
};

/// The optimizer that its options, one of the structs of this library, describe: Sgd, Adam, ...
template <class Options>
class OptimizerWith final : public Optimizer {
 public:
  explicit OptimizerWith(std::span<const Variable> variables, const Options& options = {})
      : Optimizer(variables, internal::rule_of(options), shared_options(options)) {}
  /// `Adam(variables, 1e-3)`, and with a schedule.
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
