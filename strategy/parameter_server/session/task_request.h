// What a session asks of the tasks of its cluster, and these of each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/rpc/packet.h"
#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti::internal {

/// A value on a task: what the session's operation number `op` gave there, or the part of it that
/// `path` leads to (places in lists within lists).
struct ValueAddress {
  Task task = {};
  std::uint64_t op = 0;  // from 1; 0: none
  std::vector<int> path = {};
  auto operator<=>(const ValueAddress&) const = default;
};

/// A value, or where it is.
struct TaskArgument {
  ValueAddress from = {};  // op 0: `value`
  Nest value = {};
};

/// kOpen begins a session, and is answered with TaskWelcome. kPut to kUpdate are operations:
/// numbered in the order of the program, done in the order in which they come, one at a time, and
/// answered when they are done. kFetch is answered with a value when it is there; kTransfers with
/// what came from other tasks. kStay: the client has lost a task, and comes back with another
/// session; the server does not end for so many milliseconds (details).
enum class TaskRequestKind : std::uint8_t {
  kOpen,
  kPut,             // arguments: the value
  kRun,             // a step
  kCreateVariable,  // arguments: the initial value
  kReadVariable,
  kAssignVariable,  // arguments: the value; details: AssignOp
  kUpdateVariable,  // arguments: a gradient per replica; details: UpdateDetails
  kFetch,           // arguments: where the value is
  kRelease,         // arguments: values that nobody needs any more
  kTransfers,
  kStay
};

struct TaskRequest {
  TaskRequestKind kind = TaskRequestKind::kOpen;
  std::uint64_t session = 0;  // random
  std::uint64_t op = 0;
  std::string name = {};    // of a step or variable
  std::string device = {};  // of the task, for a step: "/device:CPU:1"; "": any
  std::vector<TaskArgument> arguments = {};
  Nest details = {};
};

/// The answering task and what it has.
struct TaskWelcome {
  Task task = {};
  std::string cluster = {};  // JSON
  std::vector<std::string> devices = {};
  std::string steps = {};  // StepRegistry::text()
};

/// How the server updates a variable with gradients: describe_update_rule(), names of the slots,
/// learning rate, iteration.
using UpdateDetails = std::tuple<std::string, std::vector<std::string>, double, std::int64_t>;

/// A message of cluster/proto/session.proto. Throws as encode_nest().
Packet encode(const TaskRequest& request);
/// Throws kDataLoss for packets that encode() does not write.
TaskRequest decode_task_request(const Packet& packet);

/// Answers: encode_nest() and decode_nest().
Nest to_answer(const TaskWelcome& welcome);
TaskWelcome to_welcome(const Nest& answer);

/// The part of a value. Throws kInvalidArgument naming path and structure when there is none.
Nest part_of(const Nest& value, const std::vector<int>& path);
/// Of tensors and texts.
std::size_t bytes_of(const Nest& nest);

}  // namespace tutti::internal
