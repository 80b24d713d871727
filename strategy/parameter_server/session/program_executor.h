// Executor that runs programs with the kernels and variables of one task.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/session/task_program.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {

/// Executor of operations on tensors and on the task's variables, which all sessions share by name.
/// Thread-safe; each operation on variables is atomic.
class ProgramExecutor {
 public:
  /// Executes an operation and returns its outputs. Throws the errors of the operation, and
  /// kInvalidArgument or kDataLoss for an operation that never occurs in a program made by this
  /// library.
  std::vector<Tensor> execute(const ProgramOperation& operation, std::vector<Tensor> inputs);

 private:
  void create(const ProgramOperation& operation, const std::vector<Tensor>& inputs)
      TUTTI_REQUIRES(mutex_);
  void update(const ProgramOperation& operation, const std::vector<Tensor>& inputs)
      TUTTI_REQUIRES(mutex_);
  VariableStorage& find(const std::string& name) const TUTTI_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, Variable> variables_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const UpdateRule>> rules_ TUTTI_GUARDED_BY(mutex_);
};

/// Returns the scalars of an update as a tensor [4]. It is passed to a program as an argument,
/// because the scalars change between steps.
Tensor scalars_tensor(const UpdateScalars& scalars);
/// Returns the random key of a dropout operation as a tensor [5], which is passed to a program as
/// an argument.
Tensor key_tensor(const RandomKey& key);

}  // namespace tutti::internal
