// Visits every state of a model, breadth first, or walks through it at random.
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
  std::size_t depth = 0;  // of the state that is farthest from the first
  bool is_exhausted = false;
  /// Invariant that a state breaks, and the fewest steps to it; "": every state is sound.
  std::string violation = {};
  std::vector<std::string> trace = {};
};

/// Ends at the first violation, or after `most_states`. States are identified by a hash of 64 bits.
ModelCheckResult check_model(const ModelOptions& options, std::size_t most_states);

/// Takes random steps, `num_walks` times until no step is possible. Ends at the first violation.
ModelCheckResult walk_model(const ModelOptions& options, std::uint64_t seed, int num_walks);

}  // namespace tutti::testing
