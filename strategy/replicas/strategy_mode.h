// Strategy and context of a thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/autograd/variable.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti {

class ReplicaContext;
class Strategy;

namespace internal {

/// Mode of a thread: a strategy with a replica (replica context) or without one (cross-replica
/// context). A thread without a mode is the default replica of the default strategy.
struct StrategyMode {
  Strategy* strategy = nullptr;
  ReplicaContext* replica = nullptr;
  bool merging = false;  // inside a merge function, where run() is nested
};

/// Returns the mode of this thread's innermost scope; nullptr if there is none.
const StrategyMode* current_mode();

/// Makes `mode` current on this thread until this scope is destroyed.
class StrategyModeScope {
 public:
  explicit StrategyModeScope(StrategyMode mode);
  ~StrategyModeScope();
  StrategyModeScope(const StrategyModeScope&) = delete;
  StrategyModeScope& operator=(const StrategyModeScope&) = delete;

  /// Returns true if this is the innermost scope of the calling thread.
  bool is_current() const;

 private:
  StrategyMode mode_;
  const StrategyMode* previous_;
};

/// Returns the context of the default replica, which is current outside every scope.
ReplicaContext& default_replica_context();

/// Returns the replica of `strategy` on this thread; nullptr if the thread runs none.
ReplicaContext* replica_of(const void* strategy);

/// Throws kFailedPrecondition unless this thread is in `strategy`'s cross-replica context or in the
/// default context.
void require_cross_replica(const Strategy& strategy, std::string_view who);

/// Creator of variables in `strategy`'s cross-replica context.
class StrategyVariableCreator final : public VariableCreator {
 public:
  explicit StrategyVariableCreator(Strategy& strategy) : strategy_(strategy) {}
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override;

 private:
  Strategy& strategy_;
};

/// Creator that throws on attempts to create a variable inside run.
class ForbiddenVariableCreator final : public VariableCreator {
 public:
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override;
};

/// Scope of a merge function: sets the mode and the variable creator; hides the replica, the
/// reducer and the tapes.
class MergeScope {
 public:
  explicit MergeScope(Strategy& strategy);

 private:
  StrategyModeScope mode_;
  StrategyVariableCreator creator_;
  VariableCreatorScope creator_scope_;
  ReplicaGroupScope group_;
  GradientReducerScope reducer_;
  GradientTape::StopRecording stop_;
};

}  // namespace internal
}  // namespace tutti
