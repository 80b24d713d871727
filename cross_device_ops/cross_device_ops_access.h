// The functions that operations implement, for engines that call them with checked buffers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

/// What CrossDeviceOps keeps from its users: no checks, no MEAN, no fallback.
struct CrossDeviceOpsAccess {
  using Buffers = std::span<const ReplicaBuffer>;
  using Counts = std::span<const std::size_t>;

  static void all_reduce(CrossDeviceOps& ops, ReduceOp op, Buffers buffers) {
    ops.all_reduce_buffers(op, buffers);
  }
  static void reduce(CrossDeviceOps& ops, ReduceOp op, Buffers inputs, const ReplicaBuffer* output,
                     int root) {
    ops.reduce_buffers(op, inputs, output, root);
  }
  static void broadcast(CrossDeviceOps& ops, Buffers buffers, int root) {
    ops.broadcast_buffers(buffers, root);
  }
  static void all_gather(CrossDeviceOps& ops, Buffers inputs, Buffers outputs, Counts counts) {
    ops.all_gather_buffers(inputs, outputs, counts);
  }
  static void reduce_scatter(CrossDeviceOps& ops, ReduceOp op, Buffers inputs, Buffers outputs,
                             Counts counts) {
    ops.reduce_scatter_buffers(op, inputs, outputs, counts);
  }
  static void all_to_all(CrossDeviceOps& ops, Buffers inputs, Buffers outputs, Counts counts) {
    ops.all_to_all_buffers(inputs, outputs, counts);
  }
};

}  // namespace tutti::internal
