// In whose name the calling thread changes values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

struct UpdateOrigin {
  UpdateStream stream = {};
  /// Of the closure: an earlier attempt may still run in this process, and counts for itself.
  int attempt = 0;
  std::uint64_t term = 0;
  std::uint64_t finished_below = 0;

  /// Whether both are of one client, or of one attempt at a closure, on whatever replica.
  bool is_with(const UpdateOrigin& other) const {
    return stream.kind == other.stream.kind && stream.id == other.stream.id &&
           attempt == other.attempt;
  }
};

/// Of a closure that this thread runs; else of the client `client`, where each replica of a running
/// step counts for itself.
UpdateOrigin current_update_origin(std::uint64_t client);

}  // namespace tutti::internal
