// Who takes part in a job: a task of the cluster as a running process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace tutti
