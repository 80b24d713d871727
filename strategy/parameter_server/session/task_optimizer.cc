// Slots, and one update per variable and step, on the variable's task.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/task_optimizer.h"

#include <utility>

#include "strategy/parameter_server/session/session_core.h"
#include "tutti/optimizer/update_rule_spec.h"

namespace tutti {

using internal::TaskRequestKind;

TaskOptimizer::TaskOptimizer(Session session, std::vector<TaskVariable> variables,
                             std::shared_ptr<const UpdateRule> rule, LearningRate learning_rate)
    : session_(std::move(session)),
      variables_(std::move(variables)),
      rule_(std::move(rule)),
      learning_rate_(std::move(learning_rate)) {
  if (rule_ == nullptr || variables_.empty()) {
    fail(ErrorCode::kInvalidArgument, "TaskOptimizer: expected a rule and one variable or more, ",
         "got ", rule_ ? "no variable" : "no rule");
  }
  const NoDeviceScope here;
  described_ = describe_update_rule(*rule_);
  const std::string name(rule_->name());
  const auto make_beside = [&](const TaskVariable& variable, const std::string& own_name,
                               const Tensor& initial) {
    state_.push_back(session_.core_->make_variable({variable.task(), ""}, own_name, initial));
  };
  make_beside(variables_.front(), concat(name, "/iteration"), Tensor::zeros({}, DType::kInt64));
  for (const TaskVariable& variable : variables_) {
    std::vector<std::string>& names = slots_.emplace_back();
    for (const SlotSpec& slot : rule_->slots()) {
      names.push_back(concat(name, "/", variable.name(), "/", slot.name));
      make_beside(variable, names.back(),
                  Tensor::full(variable.shape(), slot.initial_value, variable.dtype()));
    }
  }
  iteration_ = state_.front().read().fetch<std::int64_t>();
}

void TaskOptimizer::apply_gradients(std::span<const TaskValue> per_replica) {
  if (per_replica.empty()) {
    fail(ErrorCode::kInvalidArgument, "TaskOptimizer::apply_gradients: no replica gave gradients; ",
         "expected a list of ", variables_.size(), " from each");
  }
  const NoDeviceScope here;
  const double rate = learning_rate_.at(iteration_);
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    std::vector<TaskInput> gradients;
    for (const TaskValue& each : per_replica) {
      gradients.emplace_back(each.element(static_cast<int>(i)));
    }
    session_.core_->change(
        TaskRequestKind::kUpdateVariable, variables_[i], gradients,
        internal::to_nest(internal::UpdateDetails(described_, slots_[i], rate, iteration_)),
        slots_[i]);
  }
  ++iteration_;
  state_.front().assign_add(std::int64_t{1});
}

}  // namespace tutti
