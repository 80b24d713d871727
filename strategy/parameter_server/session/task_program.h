// Session programs and requests as messages of cluster/proto/session.proto.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "session.pb.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/rpc/packet.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

using v1::TaskProgram;
using ProgramOperation = TaskProgram::Operation;
/// Number that identifies a value in a run, whichever task computes the value.
using ValueNumber = std::uint32_t;

void put_attributes(Attributes attributes, ProgramOperation& out);
/// Throws kDataLoss for contents that put_attributes() cannot have written; get_specs() does
/// likewise for put_specs().
Attributes get_attributes(const ProgramOperation& in);
void put_specs(const std::vector<TensorSpec>& specs, ProgramOperation& out);
std::vector<TensorSpec> get_specs(const ProgramOperation& in);

/// Parses a program. Throws kDataLoss if it uses a value before defining it, or defines one twice.
TaskProgram parse_program(const std::string& bytes);
/// Returns, for each operation, those of its inputs and outputs that no later operation uses.
std::vector<std::vector<ValueNumber>> last_uses(const TaskProgram& program);

using ValueAddress = v1::SessionRequest::ValueAddress;
ValueAddress value_address(const Task& task, std::uint64_t run, ValueNumber value);
inline Task task_of(const ValueAddress& address) { return {address.job(), address.index()}; }

/// Request to a task: a message, and the tensors of its arguments, in order.
struct TaskRequest {
  v1::SessionRequest message = {};
  std::vector<Tensor> tensors = {};

  void add_argument(const Tensor& tensor);
};
/// Reply to a request that opens a session, as a nest: the task's job and index, the cluster as
/// JSON, and the task's devices.
using TaskDescription = std::tuple<std::string, int, std::string, std::vector<std::string>>;

/// Throws the same errors as serialized() in protocol/message.h.
Packet encode(const TaskRequest& request);
/// Throws kDataLoss for packets that encode() cannot have produced.
TaskRequest decode_task_request(const Packet& packet);

}  // namespace tutti::internal
