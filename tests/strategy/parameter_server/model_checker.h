// Visits every state of a model, breadth first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/strategy/parameter_server/protocol_model.h"

namespace tutti::testing {

struct ModelCheckResult {
  std::size_t num_states = 0;
  std::size_t num_steps = 0;
  std::size_t depth = 0;  // of the state that is farthest from the first
  bool is_exhausted = false;
  /// "" when every state is sound; else what is wrong, and the fewest steps that lead there.
  std::string violation = {};
  std::vector<std::string> trace = {};
};

/// Ends at the first violation, or after `most_states`. States are remembered by 128 bits of hash.
ModelCheckResult check_model(const ModelOptions& options, std::size_t most_states);

}  // namespace tutti::testing
