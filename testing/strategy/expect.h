// How a check of the strategy suite says what it expected and what came.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/testing/strategy/suite.h"

namespace tutti::conformance {

/// Thrown by a check outside replicas; no tutti::Error, so that it is never taken for one that a
/// check expects.
class CheckFailed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Numbers = std::vector<double>;

/// Throws CheckFailed: "WHAT: expected [1, 2], got [1, 1]".
void expect_equal(std::string_view what, const Numbers& got, const Numbers& expected);
void expect_equal(std::string_view what, std::string_view got, std::string_view expected);
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) void expect_equal(std::string_view what,
                                                                              A got, B expected) {
  expect_equal(what, Numbers{static_cast<double>(got)}, Numbers{static_cast<double>(expected)});
}
void expect(bool condition, std::string_view what);
/// `action` must throw a tutti::Error of this code whose message has each of `parts`.
void expect_error(std::string_view what, ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& action);

Numbers numbers(const Tensor& tensor);
/// Those of all replicas, one after the other.
Numbers numbers(const PerReplica<Tensor>& tensors);
/// Those of all components.
Numbers components(const Variable& variable);
/// n copies of x.
Numbers copies(double x, std::size_t n);

/// The checks of each file, by name, in the order of running.
struct StrategyCheck {
  std::string name;
  std::function<void(const StrategySubject&, Strategy&)> run;
};
std::vector<StrategyCheck> replica_checks();
std::vector<StrategyCheck> value_checks();
std::vector<StrategyCheck> variable_checks();
std::vector<StrategyCheck> step_checks();

}  // namespace tutti::conformance
