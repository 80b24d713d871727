// Says of failures of servers, and of the way to them, that they are that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/closure_context.h"

namespace tutti::internal {

/// Whether the server or the way to it failed, and not what was asked.
inline bool is_of_infrastructure(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded ||
         code == ErrorCode::kDataLoss;
}

/// Calls `wait`; failures of servers say so.
template <class Wait>
auto from_server(const Wait& wait) {
  try {
    return wait();
  } catch (const Error& error) {
    if (!is_of_infrastructure(error.code())) throw;
    throw OriginError(ErrorOrigin::kServer, error.code(), error.message());
  }
}

}  // namespace tutti::internal
