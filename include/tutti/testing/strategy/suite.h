// The strategy suite: what any Strategy of one process must do, check by check.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/strategy/strategy.h"

namespace tutti::conformance {

/// A strategy under test.
struct StrategySubject {
  std::string name;  // letters, digits and '_': it becomes part of the names of tests
  /// Makes one; every check gets its own. They must be equal, and in one process (num_workers() 1).
  std::function<std::unique_ptr<Strategy>()> make;
  /// True if gradients are summed along the canonical tree, so that training gives the same bits as
  /// on one device that adds the replicas' gradients in that order.
  bool is_canonical = true;
  /// Limit of one check. A check that takes longer has found a replica that waits indefinitely; a
  /// line names it, and the process ends with exit code 1, for a thread cannot be ended.
  Duration limit = std::chrono::seconds(60);
};

/// Returns the names of the checks, in the order of running: "replicas", "reduce", ...
std::vector<std::string> strategy_checks();

/// Runs one check on a new strategy. Returns "" if it passed, else what was expected and what came.
/// Does not throw what the strategy throws. Throws kInvalidArgument, listing the checks, for an
/// unknown one. Not thread-safe.
std::string run_strategy_check(const StrategySubject& subject, const std::string& check);

/// The results of all checks.
struct StrategyReport {
  std::string name;
  std::size_t num_checks = 0;
  std::vector<std::pair<std::string, std::string>> failures;  // check, and what was wrong

  bool passed() const { return failures.empty(); }
  /// "spread: 17 of 17 checks passed", after a line for each failure.
  std::string text() const;
};

/// Runs all checks. If the strategy does not run every replica once, only that is reported: all
/// else would follow from it.
StrategyReport run_strategy_suite(const StrategySubject& subject);

}  // namespace tutti::conformance
