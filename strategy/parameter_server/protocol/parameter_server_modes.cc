// Names of update modes and of variable placements.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/parameter_server_modes.h"

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr UpdateMode kModes[] = {UpdateMode::kSync, UpdateMode::kAsync, UpdateMode::kSyncReplicas};

}  // namespace

std::string_view to_string(UpdateMode mode) {
  switch (mode) {
    case UpdateMode::kSync:
      return "sync";
    case UpdateMode::kAsync:
      return "async";
    case UpdateMode::kSyncReplicas:
      return "sync_replicas";
  }
  return "?";
}

UpdateMode parse_update_mode(std::string_view text) {
  for (const UpdateMode mode : kModes) {
    if (text == to_string(mode)) return mode;
  }
  fail(ErrorCode::kInvalidArgument, "update mode: expected sync, async or sync_replicas, got '",
       text, "'");
}

std::ostream& operator<<(std::ostream& out, VariablePlacement placement) {
  return out << (placement == VariablePlacement::kRoundRobin ? "round_robin" : "least_bytes");
}

}  // namespace tutti
