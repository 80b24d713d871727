// The optimizer: schedule, iteration, clipping and reduction; the rule itself is an UpdateRule.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/optimizer.h"

#include <set>

#include "tutti/autograd/replica_group.h"
#include "tutti/core/logging.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/sgd.h"

namespace tutti {
namespace {

void check_variables(const std::string& name, std::span<const Variable> variables) {
  if (variables.empty()) {
    fail(ErrorCode::kInvalidArgument, name,
         ": there is nothing to train; expected one variable or more, got none; is the model built "
         "(Input{...} first)?");
  }
  std::set<const VariableStorage*> seen;
  for (const Variable& variable : variables) {
    if (!seen.insert(&variable.storage()).second) {
      fail(ErrorCode::kInvalidArgument, name, ": variable '", variable.name(), "' is given twice");
    }
    if (!is_floating(variable.dtype())) {
      fail(ErrorCode::kInvalidArgument, name, ": variable '", variable.name(),
           "' cannot be trained; expected a floating type, got ", variable.dtype());
    }
  }
}

void require_replica_context(const std::string& name, const char* method) {
  try {
    (void)ReplicaGroup::current(name);
  } catch (const Error&) {
    fail(ErrorCode::kFailedPrecondition, name, ".", method,
         ": cannot be called in cross-replica context; expected a call inside strategy.run(), got "
         "one in strategy.scope() alone; try moving it into the step function");
  }
}

/// Two strategies cannot both own a step: `state`, made here, shows whose scope is open.
void check_same_scope(const std::string& name, std::span<const Variable> variables,
                      const Variable& state) {
  for (const Variable& variable : variables) {
    if (variable.storage().owner() == state.storage().owner()) continue;
    fail(ErrorCode::kFailedPrecondition, name, ": variable '", variable.name(),
         "' and the optimizer were made in different strategy scopes; expected one scope for both; "
         "try making model and optimizer inside the same strategy.scope()");
  }
}

std::unique_ptr<UpdateRule> defined(std::unique_ptr<UpdateRule> rule) {
  if (!rule) fail(ErrorCode::kInvalidArgument, "Optimizer: expected an UpdateRule, got none");
  return rule;
}

Variable state_variable(const Tensor& value, std::string name) {
  return Variable(value, {.name = std::move(name),
                          .trainable = false,
                          .aggregation = VariableAggregation::kOnlyFirstReplica});
}

}  // namespace

Optimizer::Optimizer(std::span<const Variable> variables, std::unique_ptr<UpdateRule> rule,
                     OptimizerOptions options)
    : rule_(defined(std::move(rule))),
      name_(options.name.empty() ? std::string(rule_->name()) : options.name),
      clipping_(options.clipping),
      schedule_(options.learning_rate.schedule),
      variables_(variables.begin(), variables.end()) {
  check_variables(name_, variables_);
  clipping_.validate(name_);
  const double first_rate = schedule_ ? (*schedule_)(0) : options.learning_rate.constant;
  iterations_ = state_variable(Tensor::scalar(0, DType::kInt64), name_ + "/iteration");
  check_same_scope(name_, variables_, iterations_);
  learning_rate_ =
      state_variable(Tensor::scalar(first_rate, DType::kFloat64), name_ + "/learning_rate");
  for (const Variable& variable : variables_) {
    std::vector<Variable>& slots = slots_.emplace_back();
    for (const SlotSpec& slot : rule_->slots()) {
      slots.push_back(variable.storage().create_slot(
          concat(name_, "/", variable.name(), "/", slot.name), slot.initial_value));
    }
  }
}

UpdateScalars Optimizer::read_scalars() const {
  const std::int64_t iteration = iterations_.value().item_int();
  const double rate = schedule_ ? (*schedule_)(iteration) : learning_rate_.value().item_double();
  return {.learning_rate = rate, .iteration = iteration};
}

void Optimizer::minimize(GradientTape& tape, const Tensor& loss) {
  require_replica_context(name_, "minimize");
  // Scalars are read before finish(): after it another replica may already be updating them.
  const UpdateScalars scalars = read_scalars();
  GradientReducer* const reducer = GradientReducer::current();
  if (reducer == nullptr) {
    update(tape.gradient(loss, variables_), scalars);
    return;
  }
  reducer->begin(variables_);
  (void)tape.gradient(loss, variables_, [reducer](std::size_t index, const Gradient& gradient) {
    reducer->ready(index, gradient);
  });
  update(reducer->finish(), scalars);
  reducer->updates_done();
}

void Optimizer::apply_gradients(std::span<const Gradient> gradients, ApplyOptions options) {
  require_replica_context(name_, "apply_gradients");
  check_gradients(gradients);
  const UpdateScalars scalars = read_scalars();
  GradientReducer* const reducer = GradientReducer::current();
  if (reducer == nullptr) {
    update({gradients.begin(), gradients.end()}, scalars);
    return;
  }
  if (options.aggregation == GradientAggregation::kSum) {
    reducer->begin(variables_);
    for (std::size_t i = gradients.size(); i-- > 0;) reducer->ready(i, gradients[i]);
    update(reducer->finish(), scalars);
  } else {
    // Nothing to sum, but updates may start only when every replica has read its variables.
    reducer->begin({});
    (void)reducer->finish();
    update({gradients.begin(), gradients.end()}, scalars);
  }
  reducer->updates_done();
}

void Optimizer::check_gradients(std::span<const Gradient> gradients) const {
  if (gradients.size() != variables_.size()) {
    fail(ErrorCode::kInvalidArgument, name_,
         ".apply_gradients: expected one gradient for each of the ", variables_.size(),
         " variables, got ", gradients.size());
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Gradient& gradient = gradients[i];
    if (gradient.is_none()) continue;
    const Shape shape =
        gradient.is_dense() ? gradient.dense().shape() : gradient.slices().dense_shape;
    const DType dtype =
        gradient.is_dense() ? gradient.dense().dtype() : gradient.slices().values.dtype();
    if (shape != variables_[i].shape() || dtype != variables_[i].dtype()) {
      fail(ErrorCode::kInvalidArgument, name_, ".apply_gradients: the gradient of variable '",
           variables_[i].name(), "' does not fit; expected shape ", variables_[i].shape(), " of ",
           variables_[i].dtype(), ", got ", shape, " of ", dtype,
           "; are gradients in the order of variables()?");
    }
  }
}

void Optimizer::update(std::vector<Gradient> gradients, const UpdateScalars& scalars) {
  GradientTape::StopRecording stop;
  gradients = clip_gradients(std::move(gradients), clipping_);
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (gradients[i].is_none()) {
      warn_without_gradient(variables_[i]);
      continue;
    }
    variables_[i].storage().update(*rule_, slots_[i], gradients[i], scalars);
  }
  iterations_.storage().assign_replicated(AssignOp::kAdd, Tensor::scalar(1, DType::kInt64));
}

void Optimizer::warn_without_gradient(const Variable& variable) const {
  log_warning_once(concat(name_, ": variable '", variable.name(),
                          "' has no gradient on any replica and is not updated; does the loss "
                          "depend on it?"));
}

double Optimizer::learning_rate() const { return read_scalars().learning_rate; }

void Optimizer::set_learning_rate(double value) {
  if (schedule_) {
    fail(ErrorCode::kFailedPrecondition, name_,
         ".set_learning_rate: a schedule decides the rate; make the optimizer with a constant rate "
         "to set it by hand");
  }
  learning_rate_.assign(value);
}

std::vector<Variable> Optimizer::state_variables() const {
  std::vector<Variable> state{iterations_, learning_rate_};
  for (const auto& slots : slots_) state.insert(state.end(), slots.begin(), slots.end());
  return state;
}

Sgd::Sgd(std::span<const Variable> variables, const SgdOptions& options)
    : Optimizer(variables,
                std::make_unique<SgdRule>(options.nesterov ? SgdRule::nesterov(options.momentum)
                                                           : SgdRule(options.momentum)),
                {options.learning_rate, options.clipping, options.name}) {}

Adam::Adam(std::span<const Variable> variables, const AdamOptions& options)
    : Optimizer(variables,
                std::make_unique<AdamRule>(AdamHyperparameters{options.beta_1, options.beta_2,
                                                               options.epsilon, options.amsgrad}),
                {options.learning_rate, options.clipping, options.name}) {}

}  // namespace tutti
