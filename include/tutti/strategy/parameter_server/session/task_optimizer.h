// Updates variables of a session where they are, with gradients that lie on other tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/optimizer/learning_rate_schedules.h"
#include "tutti/strategy/parameter_server/session/session.h"
#include "tutti/tensor/update_rule.h"

namespace tutti {

/// The optimizer of in-graph replication: gradients go from the tasks that computed them to each
/// variable's own, are added there in the canonical order, as under every strategy, and the rule is
/// applied there, to slots that lie beside the variable. Threads: as Session.
class TaskOptimizer {
 public:
  /// `rule`: SgdRule(0.9), AdamRule(...). Makes the slots "<rule>/<variable>/<slot>" beside their
  /// variables and "<rule>/iteration" beside the first; if other sessions made them before, it goes
  /// on where they were. Throws kInvalidArgument for no variables, kAlreadyExists for a second
  /// optimizer with this rule in the session; kUnimplemented for a rule that does not travel.
  TaskOptimizer(Session session, std::vector<TaskVariable> variables,
                std::shared_ptr<const UpdateRule> rule, LearningRate learning_rate = 0.01);

  /// `per_replica`: from each replica a list of gradients (Tensors) in the order of the variables,
  /// of the replica's share of the loss: they are summed. Returns at once.
  void apply_gradients(std::span<const TaskValue> per_replica);

  /// Updates that were asked for, those of earlier sessions included.
  std::int64_t iterations() const { return iteration_; }
  /// The iteration, then the slots of each variable.
  const std::vector<TaskVariable>& state_variables() const { return state_; }

 private:
  Session session_;
  std::vector<TaskVariable> variables_;
  std::shared_ptr<const UpdateRule> rule_;
  LearningRate learning_rate_;
  std::string described_;                        // the rule
  std::vector<std::vector<std::string>> slots_;  // by variable
  std::vector<TaskVariable> state_;
  std::int64_t iteration_ = 0;
};

}  // namespace tutti
