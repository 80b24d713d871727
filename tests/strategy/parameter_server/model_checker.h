// Visits every state of a model breadth first, or walks through the states at random.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/strategy/parameter_server/protocol_model.h"

namespace tutti::testing {

struct ModelCheckResult {
  std::size_t num_states = 0;
  std::size_t num_steps = 0;
  std::size_t depth = 0;  // steps from the initial state to the farthest state
  bool is_exhausted = false;
  /// Violated invariant, or "" if no state violates one. `trace` lists the steps to the violation;
  /// check_model() finds a shortest path.
  std::string violation = {};
  std::vector<std::string> trace = {};
};

/// Visits every reachable state, identified by a 64-bit hash. Stops at the first violation, or
/// after visiting `most_states` states.
ModelCheckResult check_model(const ModelOptions& options, std::size_t most_states);

/// Takes `num_walks` random walks, each until only faults are possible. Ends at the first
/// violation.
ModelCheckResult walk_model(const ModelOptions& options, std::uint64_t seed, int num_walks);

}  // namespace tutti::testing
