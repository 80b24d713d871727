// Opening and closing a strategy's scope on one thread.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/scope.h"

#include <vector>

#include "tutti/core/logging.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/strategy_mode.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {
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
       "'; try closing the outer scope first");
}

/// What opening a scope once changes.
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

  bool is_current() const {
    return mode_scope_->is_current() &&
           (!creator_scope_ || &VariableCreator::current() == &creator_);
  }

 private:
  struct Mode {
    StrategyMode mode;
    bool keeps_context;
  };

  /// A scope inside a replica or a merge function of the same strategy, and that of the default
  /// strategy, change nothing.
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
  std::optional<VariableCreatorScope> creator_scope_;
  std::optional<ReplicaGroupScope> group_scope_;
  std::optional<StrategyModeScope> mode_scope_;
};

/// Scopes destroyed while a later one was still open: they end when it does, so that nothing
/// restored by it dangles.
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
    if (!state_->open.back()->is_current()) {
      log(LogLevel::kError,
          "Scope: scope nesting error: destroyed while a scope that was opened later is still "
          "open");
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
         "' is not open; try reopen()");
  }
  if (!state_->open.back()->is_current()) {
    fail(ErrorCode::kFailedPrecondition,
         "Scope::close: scope nesting error: a scope that was "
         "opened later on this thread (of a strategy or of a variable creator), or one of another "
         "thread; try closing in the reverse order of opening");
  }
  state_->open.pop_back();
  internal::end_orphans();
}

void Scope::reopen() {
  internal::check_not_mixed(*state_->strategy);
  state_->open.push_back(std::make_unique<internal::OpenScope>(*state_->strategy));
}

}  // namespace tutti
