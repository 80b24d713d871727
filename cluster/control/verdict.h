// What the control server has found out about a member.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/cluster/control/member.h"
#include "tutti/core/error.h"

namespace tutti {

enum class VerdictKind : std::uint8_t {
  kDead = 1,     // its connection closed and it did not come back
  kStopped = 2,  // it is there and says nothing
  kStuck = 3,    // it says something, but does not come where the others wait
  kFailed = 4,   // it reported an error of its own
  kLeft = 5,     // it said good-bye
  kJoined = 6,   // it came, or came back as a new process
};
std::string_view to_string(VerdictKind kind);

/// One finding. Every member gets all of them, in the order of their numbers.
struct Verdict {
  std::uint64_t number = 0;  // 1, 2, 3, ... per job
  VerdictKind kind = VerdictKind::kDead;
  Member who;
  /// Whether a group with this member cannot go on. A warning that it is stuck, joining and leaving
  /// are not.
  bool is_fatal = false;
  ErrorCode code = ErrorCode::kUnavailable;
  /// "worker 2 (127.0.0.1:4713, pid 812) died: its connection closed and the process is gone".
  std::string message;
  bool operator==(const Verdict&) const = default;
};

/// What to give to Transport::abort().
Error to_error(const Verdict& verdict);

}  // namespace tutti
