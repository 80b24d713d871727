// What buffers of several replicas must have in common before anything is done with them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "tutti/cross_device_ops/buffer_call.h"

namespace tutti::internal {

// All throw kInvalidArgument; `who` is the operation's name.

void require_mean_is_possible(ReduceOp op, DType dtype);
/// MEAN of floating types, MIN and MAX alone of bool.
void require_reduction(std::string_view who, ReduceOp op, DType dtype);
void require_root(std::string_view who, int root, std::size_t num_members);
/// One or more, of one count and dtype.
void require_equal_buffers(std::string_view who, std::span<const ReplicaBuffer> buffers);
/// One or more, as many outputs as inputs, all of one dtype.
void require_pairs(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs);
/// `what` ("the output of replica 2") has `expected` elements.
void require_count(std::string_view who, std::string_view what, std::size_t expected,
                   std::size_t got);
/// All on CPUs or all on GPUs, and no output overlaps another output, or an input other than as
/// in_place(input, output) says.
void require_apart(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs,
                   const std::function<bool(std::size_t input, std::size_t output)>& in_place);

}  // namespace tutti::internal
