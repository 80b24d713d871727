// Implements the mode of a thread, its variable creators, and the scopes that change it.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/replicas/strategy_mode.h"

#include <optional>
#include <utility>
#include <vector>

#include "tutti/core/logging.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/device_scope.h"

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
         "' is the strategy of this thread; close that scope first");
  }
  if (mode->replica && &strategy != &default_strategy()) {
    fail(ErrorCode::kFailedPrecondition, who,
         ": called inside a replica; expected the cross-replica context (outside run or in a "
         "merge_call); in a replica, use ReplicaContext::current()");
  }
}

std::shared_ptr<VariableStorage> ForbiddenVariableCreator::create(const Variable::Initializer&,
                                                                  const RandomKey&,
                                                                  VariableOptions options) {
  fail(ErrorCode::kFailedPrecondition, "Variable '", options.name,
       "': created inside run; expected it to be created once, before run; create it in "
       "strategy.scope() and capture it");
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

namespace internal {

std::shared_ptr<VariableStorage> StrategyVariableCreator::create(
    const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options) {
  const NoDeviceScope placed_by_the_strategy;
  return strategy_.create_storage_from(initializer, key, std::move(options));
}

namespace {

void check_not_mixed(const Strategy& strategy) {
  const StrategyMode* mode = current_mode();
  if (!mode || mode->strategy == &strategy) return;
  fail(ErrorCode::kFailedPrecondition, "Strategy::scope: Mixing different strategies: '",
       strategy.name(), "' inside the scope of '", mode->strategy->name(),
       "'; close the outer scope first");
}

/// The effects that one open strategy scope has on its thread.
class OpenScope {
 public:
  explicit OpenScope(Strategy& strategy) : creator_(strategy), mode_(mode_for(strategy)) {
    const bool same_context = mode_.keeps_context;
    if (!same_context) {
      creator_scope_.emplace(creator_);
      group_scope_.emplace(nullptr);
    }
    mode_scope_.emplace(mode_.mode);
  }

  /// Returns true if this scope's mode and variable creator are the innermost of their thread.
  bool is_current() const {
    return mode_scope_->is_current() &&
           (!creator_scope_ || &VariableCreator::current() == &creator_);
  }

  /// Returns the reason why the scope cannot be closed now; "" if it can.
  std::string_view nesting_error() const {
    if (!mode_scope_->is_current()) {
      return "scope nesting error: a strategy's scope that was opened later on this thread is "
             "still open, or this scope was opened on another thread";
    }
    if (!is_current()) {
      return "variable creator scope nesting error: a scope that was opened later is still open";
    }
    if (DeviceScope::current() != device_scope_) {
      return "device scope nesting error: a scope that was opened later is still open, or the "
             "scope around this one has ended";
    }
    return "";
  }

 private:
  struct Mode {
    StrategyMode mode;
    bool keeps_context;
  };

  /// Returns the new mode. A scope inside a replica or a merge function of the same strategy, and a
  /// scope of the default strategy, change nothing.
  static Mode mode_for(Strategy& strategy) {
    const StrategyMode* outer = current_mode();
    if (outer && (outer->replica || outer->merging)) return {*outer, true};
    if (&strategy == &default_strategy()) {
      return {StrategyMode{&strategy, get_replica_context(), false}, true};
    }
    return {StrategyMode{&strategy, nullptr, false}, false};
  }

  StrategyVariableCreator creator_;
  Mode mode_;
  const DeviceScope* const device_scope_ = DeviceScope::current();
  std::optional<VariableCreatorScope> creator_scope_;
  std::optional<ReplicaGroupScope> group_scope_;
  std::optional<StrategyModeScope> mode_scope_;
};

/// Returns the scopes that were destroyed while a later scope was open. They end when the later
/// scope ends, so that the state restored by that scope does not dangle.
std::vector<std::unique_ptr<OpenScope>>& orphans() {
  thread_local std::vector<std::unique_ptr<OpenScope>> scopes;
  return scopes;
}

void end_orphans() {
  auto& scopes = orphans();
  for (std::size_t i = 0; i < scopes.size();) {
    if (!scopes[i]->is_current()) {
      ++i;
      continue;
    }
    scopes.erase(scopes.begin() + static_cast<std::ptrdiff_t>(i));
    i = 0;
  }
}

}  // namespace
}  // namespace internal

struct Scope::State {
  Strategy* strategy = nullptr;
  std::vector<std::unique_ptr<internal::OpenScope>> open;  // innermost last
};

Scope::Scope(Strategy& strategy) : state_(std::make_unique<State>()) {
  state_->strategy = &strategy;
  reopen();
}

Scope::Scope(Scope&&) noexcept = default;

Scope::~Scope() {
  if (!state_) return;
  while (!state_->open.empty()) {
    const std::string_view problem = state_->open.back()->nesting_error();
    if (!problem.empty())
      log(LogLevel::kError, concat("Scope: destroyed in the wrong order: ", problem));
    if (!state_->open.back()->is_current()) {
      internal::orphans().push_back(std::move(state_->open.back()));
    }
    state_->open.pop_back();
    internal::end_orphans();
  }
}

Strategy& Scope::strategy() const { return *state_->strategy; }

void Scope::close() {
  if (state_->open.empty()) {
    fail(ErrorCode::kFailedPrecondition, "Scope::close: the scope of '", state_->strategy->name(),
         "' is not open; call reopen()");
  }
  const std::string_view problem = state_->open.back()->nesting_error();
  if (!problem.empty()) {
    fail(ErrorCode::kFailedPrecondition, "Scope::close: ", problem,
         "; close in the reverse order of opening");
  }
  state_->open.pop_back();
  internal::end_orphans();
}

void Scope::reopen() {
  internal::check_not_mixed(*state_->strategy);
  state_->open.push_back(std::make_unique<internal::OpenScope>(*state_->strategy));
}

namespace {

/// Scope that set_strategy() opened, and the thread's mode while no inner scope is open.
struct PersistentScope {
  explicit PersistentScope(Strategy& strategy) : scope(strategy), mode(internal::current_mode()) {}
  Scope scope;
  const internal::StrategyMode* mode;
};

std::optional<PersistentScope>& staying_scope() {
  (void)internal::orphans();  // created before the scope, so destroyed after it
  thread_local std::optional<PersistentScope> scope;
  return scope;
}

}  // namespace

void set_strategy(Strategy* strategy) {
  std::optional<PersistentScope>& staying = staying_scope();
  if (internal::current_mode() != (staying ? staying->mode : nullptr)) {
    fail(ErrorCode::kFailedPrecondition, "set_strategy: called inside a scope or a replica of '",
         get_strategy().name(), "'; expected no open scope; close the scope first");
  }
  if (staying) staying->scope.close();
  staying.reset();
  if (strategy) staying.emplace(*strategy);
}

}  // namespace tutti
