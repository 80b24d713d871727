// The strategy suite: checks that every single-process Strategy must pass.
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
  std::string name;  // letters, digits and '_'; part of the tests' names
  /// Creates a strategy for each check. All strategies must have the same configuration and a
  /// single worker (num_workers() 1).
  std::function<std::unique_ptr<Strategy>()> make;
  /// True if gradients are summed in the canonical tree order, so that results are bit-identical to
  /// those of one device that adds the replicas' gradients in that order.
  bool is_canonical = true;
  /// Time limit for one check. If a check exceeds it, one of its replicas waits indefinitely.
  /// Because a thread cannot be killed, the process then prints a line that names the check and
  /// exits with code 1.
  Duration limit = std::chrono::seconds(60);
};

/// Returns the names of the checks in order of execution: "replicas", "reduce", ...
std::vector<std::string> strategy_checks();

/// Runs one check on a new strategy. Returns "" if it passed, otherwise the expected and the actual
/// result; does not throw the strategy's errors. Throws kInvalidArgument, listing the checks, for
/// an unknown name. Not thread-safe.
std::string run_strategy_check(const StrategySubject& subject, const std::string& check);

/// The results of all checks.
struct StrategyReport {
  std::string name;
  std::size_t num_checks = 0;
  std::vector<std::pair<std::string, std::string>> failures;  // check and error

  bool passed() const { return failures.empty(); }
  /// Returns text such as "spread: 18 of 18 checks passed", preceded by one line for each failure.
  std::string text() const;
};

/// Runs all checks. If the strategy does not run every replica exactly once, reports only that,
/// because it causes the other failures.
StrategyReport run_strategy_suite(const StrategySubject& subject);

}  // namespace tutti::conformance
