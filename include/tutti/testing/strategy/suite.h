// The strategy suite: what any Strategy of one process must do, check by check.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/strategy/strategy.h"

namespace tutti::conformance {

/// A strategy under test.
struct StrategySubject {
  std::string name;  // letters, digits and '_': it becomes part of the names of tests
  /// Makes one; every check gets its own. They must be equal, and in one process (num_workers() 1).
  std::function<std::unique_ptr<Strategy>()> make;
  /// Whether gradients are summed along the canonical tree, so that training gives the same bits as
  /// on one device that adds the replicas' gradients in that order.
  bool is_canonical = true;
  /// A check that takes longer has found a replica that waits for ever: a line names it, and the
  /// process ends with exit code 1, for a thread cannot be ended.
  Duration limit = std::chrono::seconds(60);
};

/// What is checked, in the order of running: "replicas", "reduce", "on_write_variables", ...
std::vector<std::string> strategy_checks();

/// Runs one check on a new strategy. Empty when it passed, else what was expected and what came.
/// Never throws for what the strategy does. Throws kInvalidArgument, listing the checks, for one
/// that there is not. Not for several threads at once.
std::string run_strategy_check(const StrategySubject& subject, const std::string& check);

/// A check that failed: what was expected and what came.
struct StrategyFailure {
  std::string check;
  std::string message;
};

/// What came of all checks.
struct StrategyReport {
  std::string name;
  std::size_t num_checks = 0;
  std::vector<StrategyFailure> failures;

  bool passed() const { return failures.empty(); }
  /// "spread: 17 of 17 checks passed", or a line for each failure.
  std::string text() const;
};

/// Runs all checks. If the strategy does not run every replica once, only that is reported: all
/// else would follow from it.
StrategyReport run_strategy_suite(const StrategySubject& subject);

}  // namespace tutti::conformance
