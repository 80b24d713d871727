// Members of a job, and what the control server has found out about one, or between two of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti {

/// A task of the cluster: "worker 2" at the address that TF_CONFIG gives it.
struct MemberTask {
  std::string job = "worker";  // chief, worker, ps, evaluator; 1 to 15 lower-case letters
  int index = 0;
  std::string address = {};  // "host:port"; for messages
  /// "worker 2".
  std::string to_string() const;
  bool same_task(const MemberTask& other) const { return job == other.job && index == other.index; }
  bool operator==(const MemberTask&) const = default;
};

/// A process that has joined as a task.
struct Member {
  MemberTask task = {};
  std::uint64_t incarnation = 0;  // restarts of the task before this process
  std::string host = {};          // name of its machine
  std::int64_t pid = 0;
  bool is_here = false;  // joined, and neither gone nor given up
  /// "worker 2 (127.0.0.1:4713, pid 812)"; the machine's name too when it is not this one.
  std::string to_string() const;
  bool operator==(const Member&) const = default;
};

enum class VerdictKind : std::uint8_t {
  kDead = 1,          // its connection closed and it did not come back
  kStopped = 2,       // it is there and says nothing
  kStuck = 3,         // it says something, but does not come where the others wait
  kFailed = 4,        // it reported an error of its own
  kLeft = 5,          // it left in good order
  kJoined = 6,        // it came, or came back as a new process
  kDisconnected = 7,  // it lost its connection to another member; both are here
};
std::string_view to_string(VerdictKind kind);

/// One finding. Every member gets all of them, in the order of their numbers.
struct Verdict {
  std::uint64_t number = 0;  // 1, 2, 3, ... per job
  VerdictKind kind = VerdictKind::kDead;
  Member who;
  /// Whether the collectives of a group with this member end. A warning that it is stuck, joining
  /// and leaving end none.
  bool is_fatal = false;
  ErrorCode code = ErrorCode::kUnavailable;
  /// "worker 2 (127.0.0.1:4713, pid 812) died: its connection closed and the process is gone".
  std::string message;
  /// Whether a group can go on only without this member, or with a new process of its task. A
  /// connection that broke is fatal, too, but its ends are well.
  bool loses_member() const { return is_fatal && kind != VerdictKind::kDisconnected; }
  bool operator==(const Verdict&) const = default;
};

/// What to give to Transport::abort().
Error to_error(const Verdict& verdict);

}  // namespace tutti
