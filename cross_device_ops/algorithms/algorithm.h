// Registry of algorithms by name; an algorithm creates the schedule for each call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cross_device_ops/algorithms/schedule.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

using MakeSchedule = Schedule (*)(const CallShape&);

/// Schedules of the collectives that differ between algorithms; broadcast, all_to_all and barrier
/// are the same in all algorithms. A schedule depends only on its CallShape.
struct Algorithm {
  std::string_view name;
  Determinism determinism;
  /// True if all contributions to an element are combined in one step, which rounds 16-bit numbers
  /// only once.
  bool combines_once;
  MakeSchedule all_reduce;
  MakeSchedule reduce;
  MakeSchedule all_gather;
  MakeSchedule reduce_scatter;

  /// Returns true if the algorithm supports `op` for this type. It does not support 16-bit types if
  /// it combines values in several steps, each of which rounds.
  bool supports(ReduceOp op, DType dtype) const {
    return can_combine(op, dtype) && (combines_once || !is_half(dtype));
  }
};

/// Returns the algorithms canonical, ring, hierarchical_copy and reduction_to_one_device.
std::span<const Algorithm> algorithms();
/// Returns the algorithm with that name; throws kNotFound, listing the names, if there is none.
const Algorithm& find_algorithm(std::string_view name);

/// Returns the schedule of rank shape.rank. In a group of one rank, the schedule copies the input
/// to the output.
Schedule make_schedule(const Algorithm& algorithm, const CallShape& shape);

// all_reduce
Schedule direct_exchange_all_reduce(const CallShape& shape);
Schedule ring_all_reduce(const CallShape& shape);
Schedule hierarchical_all_reduce(const CallShape& shape);
Schedule one_device_all_reduce(const CallShape& shape);
// reduce
Schedule direct_exchange_reduce(const CallShape& shape);
Schedule one_device_reduce(const CallShape& shape);
// all_gather, reduce_scatter
Schedule direct_exchange_all_gather(const CallShape& shape);
Schedule ring_all_gather(const CallShape& shape);
Schedule direct_exchange_reduce_scatter(const CallShape& shape);
Schedule ring_reduce_scatter(const CallShape& shape);
// other collectives
Schedule binomial_broadcast(const CallShape& shape);
Schedule direct_exchange_all_to_all(const CallShape& shape);
Schedule dissemination_barrier(const CallShape& shape);

/// Information that a rank needs about the other ranks before it may leave a call.
enum class Closing {
  kHeaders,   // all headers are equal
  kReceived,  // all headers are equal, and every rank has received all its messages
};
/// Appends a kVerify step and rounds of empty messages, after which the rank knows what `closing`
/// states. Needed by schedules in which a rank could otherwise leave the call too early.
void append_closing(Schedule& schedule, const CallShape& shape,
                    Closing closing = Closing::kHeaders);

}  // namespace tutti::internal

namespace tutti {

/// Returns the operation `algorithm` (one of algorithms()) for the replicas of a process. One
/// thread runs the schedules of all replicas. Ranks in separate processes use the same schedules,
/// so their results are bit-identical. Throws kNotFound for an unknown algorithm.
std::unique_ptr<CrossDeviceOps> scheduled_ops(std::string_view algorithm);

}  // namespace tutti
