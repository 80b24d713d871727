// What one task does in a run of a session: the program, and its form on the wire.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {

/// Number of a value in a run, on whichever task it is made.
using ValueNumber = std::uint32_t;

/// One operation, with the numbers of the values that it takes and makes.
struct ProgramOperation {
  enum class Kind : std::uint8_t {
    kCompute,  // dispatch(): op is an OpId; dropout takes its key as one more input
    kCreate,   // a variable: inputs are its initial value, or OneHotAttributes::on fills it
    kRead,
    kAssign,   // op is an AssignOp; inputs: the value
    kScatter,  // op is a ScatterOp; inputs: values, indices
    kUpdate    // inputs: scalars_tensor(), then a gradient, or its values and indices
  };
  Kind kind = Kind::kCompute;
  std::uint32_t op = 0;
  Attributes attributes = {};
  std::vector<ValueNumber> inputs = {};
  std::vector<ValueNumber> outputs = {};
  std::vector<TensorSpec> specs = {};  // of the outputs; kCreate: of the variable
  std::string device = {};             // of the task: "/device:CPU:1"; "": its default
  std::string where = {};              // "matmul at train.cc:41"
  std::string variable = {};
  std::vector<std::string> slots = {};  // names of variables
  std::string rule = {};                // describe_update_rule()
};

/// The part of a run that one task executes, in order.
struct TaskProgram {
  std::vector<ValueNumber> arguments = {};                  // sent with each run
  std::vector<std::pair<ValueNumber, Task>> received = {};  // from other tasks
  std::vector<ProgramOperation> operations = {};
  std::vector<ValueNumber> kept = {};  // after the run, until the client releases them
  std::vector<ValueNumber> sent = {};  // to other tasks; kept until the run has ended everywhere
};

/// Returns the message TaskProgram of cluster/proto/session.proto; equal programs give equal bytes.
/// Throws kResourceExhausted for one that is too long for a call.
std::string encode_program(const TaskProgram& program);
/// Throws kDataLoss for bytes that encode_program() does not write: unknown operations, wrong
/// attributes, values that are used before they are made, or made twice.
TaskProgram decode_program(std::span<const std::byte> bytes);

/// For each operation the values that no later one takes.
std::vector<std::vector<ValueNumber>> last_uses(const TaskProgram& program);

}  // namespace tutti::internal
