// One step of the optimizer, from gradients to the update.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/gradient_reducer.h"

#include "autograd/replica_shards.h"
#include "core/call_site.h"
#include "core/names.h"
#include "core/thread_random.h"
#include "optimizer/optimizer_state.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/logging.h"
#include "tutti/core/trace.h"
#include "tutti/optimizer/optimizer.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

namespace {
thread_local GradientReducer* current_reducer = nullptr;
}  // namespace

GradientReducer* GradientReducer::current() { return current_reducer; }

GradientReducerScope::GradientReducerScope(GradientReducer* reducer)
    : ThreadScope([]() -> GradientReducer*& { return current_reducer; }, reducer) {}

namespace {

void require_replica_context(const std::string& name, const char* method) {
  try {
    (void)ReplicaGroup::current(name);
  } catch (const Error&) {
    fail(ErrorCode::kFailedPrecondition, name, ".", method,
         ": cannot be called in cross-replica context; expected a call inside strategy.run(), got "
         "one outside it in strategy.scope(); move it into the step function");
  }
}

/// Returns the device of the first non-empty gradient; the CPU if all are empty.
Device device_of(std::span<const Gradient> gradients) {
  for (const Gradient& gradient : gradients) {
    if (gradient.is_dense()) return gradient.dense().device();
    if (gradient.is_slices()) return gradient.slices().values.device();
  }
  return {};
}

}  // namespace

void internal::with_exclusive_access(const std::function<void()>& write) {
  GradientReducer* const reducer = GradientReducer::current();
  if (reducer != nullptr) {
    reducer->begin({});
    (void)reducer->finish();
  }
  write();
  if (reducer != nullptr) reducer->updates_done();
}

/// Values read before gradients are reduced, because another replica may write them afterwards.
struct Optimizer::Step {
  UpdateScalars scalars;
  std::int64_t num_held = 0;  // number of steps with held gradients
  internal::DynamicLossScale::State loss_scale;
};

Optimizer::Step Optimizer::read_step() const {
  const StepRecorderScope not_recorded(nullptr);  // note_replays() repeats these reads in replays
  Step step;
  step.scalars.iteration = iterations_.value().item_int();
  std::int64_t num_calls = step.scalars.iteration;
  if (accumulator_) {
    step.num_held = accumulator_->num_held();
    num_calls = num_calls * accumulator_->steps() + step.num_held;
  }
  step.scalars.learning_rate =
      checked_rate(schedule_ ? (*schedule_)(num_calls) : learning_rate_.value().item_double());
  if (dynamic_loss_scale_ && StepTracer::current()) {
    fail(ErrorCode::kUnimplemented, name_,
         ": dynamic loss scaling decides on the host whether a step updates variables, so XLA "
         "cannot compile the step; use the policy mixed_bfloat16, which needs no scale, or a fixed "
         "loss_scale_factor");
  }
  if (dynamic_loss_scale_) step.loss_scale = dynamic_loss_scale_->read();
  const double scale = dynamic_loss_scale_ ? step.loss_scale.scale : loss_scale_factor_;
  // Does not use accumulator_->steps(), because a restored sum may contain a larger number of
  // calls.
  step.scalars.gradient_scale = 1.0 / (scale * static_cast<double>(step.num_held + 1));
  return step;
}

double Optimizer::loss_scale() const {
  return dynamic_loss_scale_ ? dynamic_loss_scale_->read().scale : loss_scale_factor_;
}

Tensor Optimizer::scale_loss(const Tensor& loss) const {
  const double scale = loss_scale();
  return scale == 1.0 ? loss : multiply(loss, scale);
}

void Optimizer::minimize(GradientTape& tape, const Tensor& loss, const SourceLocation& where) {
  const CallSite site(where);
  internal::note_random_step();
  require_replica_context(name_, "minimize");
  const NoDeviceScope where_things_are;
  const Step step = read_step();
  const Tensor target = scale_loss(loss);
  if (holds_back(step)) return hold_back(tape.gradient(target, variables_), step);
  GradientReducer* const reducer = GradientReducer::current();
  if (reducer == nullptr) {
    std::vector<Gradient> gradients = with_held(tape.gradient(target, variables_));
    const bool finite = is_applicable(gradients);
    return update(std::move(gradients), step, finite);
  }
  begin_sums(*reducer, step);
  {
    const TraceSpan span("backward", "compute");
    (void)tape.gradient(target, variables_,
                        [this, reducer](std::size_t index, const Gradient& gradient) {
                          reducer->ready(index, with_held(index, gradient));
                        });
  }
  update_with_sums(*reducer, step);
}

void Optimizer::apply_gradients(std::span<const Gradient> gradients, ApplyOptions options,
                                const SourceLocation& where) {
  const CallSite site(where);
  internal::note_random_step();
  require_replica_context(name_, "apply_gradients");
  const NoDeviceScope where_things_are;
  check_gradients(gradients);
  const Step step = read_step();
  if (holds_back(step)) return hold_back(gradients, step);
  std::vector<Gradient> totals = with_held(gradients);
  GradientReducer* const reducer = GradientReducer::current();
  if (reducer != nullptr && options.aggregation == GradientAggregation::kSum) {
    begin_sums(*reducer, step);
    for (std::size_t i = totals.size(); i-- > 0;) reducer->ready(i, totals[i]);
    return update_with_sums(*reducer, step);
  }
  const bool finite = is_applicable_everywhere(totals);
  if (reducer != nullptr && finite) reducer->require_equal(variables_, totals);
  internal::with_exclusive_access([&] { update(std::move(totals), step, finite); });
}

void Optimizer::begin_sums(GradientReducer& reducer, const Step& step) const {
  reducer.note_optimizer(name_, step.scalars.learning_rate, settings_);
  reducer.begin(variables_);
}

void Optimizer::update_with_sums(GradientReducer& reducer, const Step& step) {
  std::vector<Gradient> sums = reducer.finish();
  const bool finite =
      !reducer.skips_update() &&
      (reducer.gives_shards() ? is_applicable_everywhere(sums) : is_applicable(sums));
  update(std::move(sums), step, finite);
  reducer.updates_done();
}

bool Optimizer::is_applicable(std::span<const Gradient> gradients) const {
  return !dynamic_loss_scale_ || all_finite(gradients);
}

bool Optimizer::is_applicable_everywhere(std::span<const Gradient> gradients) const {
  if (!dynamic_loss_scale_) return true;
  const GradientTape::StopRecording stop;
  const Tensor num_bad =
      Tensor::scalar(all_finite(gradients) ? 0 : 1, DType::kInt64, device_of(gradients));
  return ReplicaGroup::current(name_).all_reduce(ReduceOp::kSum, num_bad).item_int() == 0;
}

bool Optimizer::holds_back(const Step& step) const {
  return accumulator_ && step.num_held + 1 < accumulator_->steps();
}

void Optimizer::hold_back(std::span<const Gradient> gradients, const Step& step) {
  // Replicas synchronize although nothing is summed: if the step fails on one replica, no replica
  // may change anything.
  internal::with_exclusive_access([&] { accumulator_->hold(gradients, step.num_held); });
}

Gradient Optimizer::with_held(std::size_t index, const Gradient& gradient) const {
  return accumulator_ ? accumulator_->total(index, gradient) : gradient;
}

std::vector<Gradient> Optimizer::with_held(std::span<const Gradient> gradients) const {
  std::vector<Gradient> totals;
  for (std::size_t i = 0; i < gradients.size(); ++i) totals.push_back(with_held(i, gradients[i]));
  return totals;
}

void Optimizer::check_gradients(std::span<const Gradient> gradients) const {
  internal::require(gradients.size() == variables_.size(), name_,
                    ".apply_gradients: expected one gradient for each of the ", variables_.size(),
                    " variables, got ", gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Gradient& gradient = gradients[i];
    if (gradient.is_none()) continue;
    const Shape shape =
        gradient.is_dense() ? gradient.dense().shape() : gradient.slices().dense_shape;
    const DType dtype =
        gradient.is_dense() ? gradient.dense().dtype() : gradient.slices().values.dtype();
    internal::require(shape == variables_[i].shape() && dtype == variables_[i].dtype(), name_,
                      ".apply_gradients: the gradient of variable '", variables_[i].name(),
                      "' does not match; expected shape ", variables_[i].shape(), " of ",
                      variables_[i].dtype(), ", got ", shape, " of ", dtype,
                      "; pass the gradients in the order of variables()");
  }
}

void Optimizer::update(std::vector<Gradient> gradients, const Step& step, bool finite) {
  const TraceSpan span("update", "compute");
  const GradientTape::StopRecording stop;
  if (accumulator_) accumulator_->clear();
  if (dynamic_loss_scale_) dynamic_loss_scale_->update(step.loss_scale, finite);
  if (!finite) return;
  UpdateScalars scalars = step.scalars;
  if (clipping_.any()) {
    // The limits apply to unscaled gradients.
    GradientReducer* const reducer = GradientReducer::current();
    GradientReducer* const sums_from = reducer && reducer->gives_shards() ? reducer : nullptr;
    const double scale = std::exchange(scalars.gradient_scale, 1.0);
    if (scale != 1.0) {
      for (Gradient& gradient : gradients) gradient = scale_gradient(gradient, scale);
    }
    gradients = internal::clip_gradients(std::move(gradients), clipping_, sums_from);
  }
  if (StepRecorder* const recorder = StepRecorder::current()) {
    scalars.live = note_replays(*recorder, scalars);
  }
  for (std::size_t i = 0; i < variables_.size(); ++i) update_variable(i, gradients[i], scalars);
  const StepRecorderScope not_recorded(nullptr);  // note_replays() registered this increment
  iterations_.storage().assign_replicated(AssignOp::kAdd, Tensor::scalar(1, DType::kInt64));
}

/// Registers the work that the host does in each replay of a captured step: counting iterations and
/// evaluating the schedule.
const UpdateScalars* Optimizer::note_replays(StepRecorder& recorder, const UpdateScalars& scalars) {
  if (accumulator_ || dynamic_loss_scale_) {
    fail(ErrorCode::kUnimplemented, name_, ": ",
         accumulator_ ? "gradient accumulation" : "dynamic loss scaling",
         " makes a decision on the host in each step, so the step cannot be captured; run the step "
         "function directly");
  }
  const auto live = std::make_shared<UpdateScalars>(scalars);
  recorder.on_replay(
      [this, live] {
        const double gradient_scale = live->gradient_scale;  // clipping may have applied it already
        *live = read_step().scalars;
        live->gradient_scale = gradient_scale;
      },
      [this] {
        internal::note_random_step();
        iterations_.storage().assign_replicated(AssignOp::kAdd, Tensor::scalar(1, DType::kInt64));
      });
  return live.get();
}

void Optimizer::update_variable(std::size_t index, const Gradient& gradient,
                                UpdateScalars scalars) {
  const Variable& variable = variables_[index];
  scalars.weight_decay = decays_[index] ? weight_decay_ : 0.0;
  if (gradient.is_none()) {
    warn_without_gradient(variable);
  } else {
    const UpdateRule& rule = decaying_rule_ && decays_[index] ? *decaying_rule_ : *rule_;
    variable.storage().update(rule, slots_[index], gradient, scalars);
  }
  if (!average_rule_) return;
  // The average does not depend on a gradient, but storages require one with the variable's shape.
  const auto zeros = [&] {
    // Does not read a sharded variable, because other replicas may be writing their shards.
    const bool has_shards =
        dynamic_cast<const internal::ReplicaShards*>(&variable.storage()) != nullptr;
    return Tensor::zeros(
        variable.shape(), variable.dtype(),
        has_shards ? variable.storage().devices().front() : variable.value().device());
  };
  const Gradient any = gradient.is_dense() ? gradient : Gradient(zeros());
  variable.storage().update(*average_rule_, {&averages_[index], 1}, any, scalars);
}

void Optimizer::warn_without_gradient(const Variable& variable) const {
  log_warning_once(concat(name_, ": variable '", variable.name(),
                          "' has no gradient on any replica and is not updated; does the loss "
                          "depend on it, and was the tape made before the forward pass?"));
}

double Optimizer::learning_rate() const { return read_step().scalars.learning_rate; }

}  // namespace tutti
