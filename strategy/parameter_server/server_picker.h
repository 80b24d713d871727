// Which parameter server gets the next shard.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "tutti/strategy/parameter_server/variable_placement.h"

namespace tutti::internal {

/// Threads: one at a time.
class ServerPicker {
 public:
  /// Throws kInvalidArgument for no servers.
  ServerPicker(VariablePlacement placement, int num_servers);
  /// For a shard of that many bytes.
  int next(std::size_t num_bytes);

 private:
  VariablePlacement placement_;
  std::vector<std::size_t> bytes_;  // per server
  int next_ = 0;
};

}  // namespace tutti::internal
