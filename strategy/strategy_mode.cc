// The mode of a thread and who may make variables in it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/strategy_mode.h"

#include <utility>

#include "tutti/strategy/strategy.h"

namespace tutti {
namespace internal {
namespace {

const StrategyMode*& mode_slot() {
  thread_local const StrategyMode* mode = nullptr;
  return mode;
}

}  // namespace

const StrategyMode* current_mode() { return mode_slot(); }

StrategyModeScope::StrategyModeScope(StrategyMode mode)
    : mode_(mode), previous_(std::exchange(mode_slot(), &mode_)) {}
StrategyModeScope::~StrategyModeScope() { mode_slot() = previous_; }
bool StrategyModeScope::is_current() const { return mode_slot() == &mode_; }

ReplicaContext* replica_of(const void* strategy) {
  const StrategyMode* mode = current_mode();
  return mode && static_cast<const void*>(mode->strategy) == strategy ? mode->replica : nullptr;
}

void require_cross_replica(const Strategy& strategy, std::string_view who) {
  const StrategyMode* mode = current_mode();
  if (!mode) return;
  if (mode->strategy != &strategy) {
    fail(ErrorCode::kFailedPrecondition, who, ": Mixing different strategies: called on '",
         strategy.name(), "' while '", mode->strategy->name(),
         "' is the strategy of this thread; try closing that scope first");
  }
  if (mode->replica && &strategy != &default_strategy()) {
    fail(ErrorCode::kFailedPrecondition, who,
         ": called inside a replica; expected the cross-replica context (outside run or in a "
         "merge_call); try ReplicaContext::current()");
  }
}

std::shared_ptr<VariableStorage> ForbiddenVariableCreator::create(const Variable::Initializer&,
                                                                  const RandomKey&,
                                                                  VariableOptions options) {
  fail(ErrorCode::kFailedPrecondition, "Variable '", options.name,
       "': created inside run; expected it to be made once, before; try making it in "
       "strategy.scope() and capturing it");
}

MergeScope::MergeScope(Strategy& strategy)
    : mode_(StrategyMode{&strategy, nullptr, true}),
      creator_(strategy),
      creator_scope_(creator_),
      group_(nullptr),
      reducer_(nullptr) {}

}  // namespace internal

bool in_cross_replica_context() { return get_cross_replica_context() != nullptr; }
bool in_replica_context() { return !in_cross_replica_context(); }

bool has_strategy() {
  const internal::StrategyMode* mode = internal::current_mode();
  return mode && mode->strategy != &default_strategy();
}

Strategy& get_strategy() {
  const internal::StrategyMode* mode = internal::current_mode();
  return mode ? *mode->strategy : default_strategy();
}

Strategy* get_cross_replica_context() {
  const internal::StrategyMode* mode = internal::current_mode();
  return mode && !mode->replica ? mode->strategy : nullptr;
}

}  // namespace tutti
