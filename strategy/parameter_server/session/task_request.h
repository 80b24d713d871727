// Requests of a session's client to the tasks of its cluster, and of these to each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "strategy/parameter_server/session/task_program.h"
#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti::internal {

/// A value of a run on a task.
struct ValueAddress {
  Task task = {};
  std::uint64_t run = 0;
  ValueNumber value = 0;
  auto operator<=>(const ValueAddress&) const = default;
};

/// Begins a session; answered with a TaskWelcome.
struct OpenRequest {
  std::uint64_t milliseconds = 0;  // timeout for values of other tasks
};

/// Runs a program; answered when it has ended.
struct RunRequest {
  std::uint64_t number = 0;  // ascending
  std::string signature = {};
  std::string program = {};  // encode_program(); "" if the task has the one of this signature
  std::vector<std::variant<Tensor, ValueAddress>> arguments = {};
  std::vector<ValueAddress> released = {};     // of this task
  std::vector<std::uint64_t> ended_runs = {};  // on all tasks: values that were sent may go
};

/// Answered with the value, once it is there.
struct FetchRequest {
  ValueAddress address = {};
};

/// Answered with the traffic from other tasks.
struct TransfersRequest {};

/// Another session will follow this one: the server does not end for this time.
struct StayRequest {
  std::uint64_t milliseconds = 0;
};

struct TaskRequest {
  std::uint64_t session = 0;  // random
  std::variant<OpenRequest, RunRequest, FetchRequest, TransfersRequest, StayRequest> request = {};
};

/// The answering task and its devices.
struct TaskWelcome {
  Task task = {};
  std::string cluster = {};  // JSON
  std::vector<std::string> devices = {};
};

/// Returns a message of cluster/proto/session.proto. Throws as encode_nest().
Packet encode(const TaskRequest& request);
/// Throws kDataLoss for packets that encode() does not write.
TaskRequest decode_task_request(const Packet& packet);

/// Answers: encode_nest() and decode_nest().
Nest to_answer(const TaskWelcome& welcome);
TaskWelcome to_welcome(const Nest& answer);

}  // namespace tutti::internal
