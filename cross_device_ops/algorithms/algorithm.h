// The algorithms by name: which schedule a call has under each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cross_device_ops/algorithms/schedule.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {

using MakeSchedule = Schedule (*)(const CallShape&);

/// One schedule per operation that names differ in; all make broadcast, all_to_all and barrier
/// alike. A schedule depends on its CallShape alone.
struct Algorithm {
  std::string_view name;
  Determinism determinism;
  /// Each element is combined once, with all its contributions at hand: then 16-bit numbers are
  /// rounded once.
  bool combines_once;
  MakeSchedule all_reduce;
  MakeSchedule reduce;
  MakeSchedule all_gather;
  MakeSchedule reduce_scatter;
};

/// canonical, ring, halving_doubling, tree, hierarchical_copy, reduction_to_one_device.
std::span<const Algorithm> algorithms();
/// nullptr: there is none of that name.
const Algorithm* find_algorithm(std::string_view name);

/// What rank shape.rank does. In a group of one: a copy from input to output.
Schedule make_schedule(const Algorithm& algorithm, const CallShape& shape);

// all_reduce
Schedule direct_exchange_all_reduce(const CallShape& shape);
Schedule ring_all_reduce(const CallShape& shape);
Schedule halving_doubling_all_reduce(const CallShape& shape);
Schedule tree_all_reduce(const CallShape& shape);
Schedule hierarchical_all_reduce(const CallShape& shape);
Schedule one_device_all_reduce(const CallShape& shape);
// reduce
Schedule direct_exchange_reduce(const CallShape& shape);
Schedule tree_reduce(const CallShape& shape);
Schedule one_device_reduce(const CallShape& shape);
// all_gather, reduce_scatter
Schedule direct_exchange_all_gather(const CallShape& shape);
Schedule ring_all_gather(const CallShape& shape);
Schedule direct_exchange_reduce_scatter(const CallShape& shape);
Schedule ring_reduce_scatter(const CallShape& shape);
// the others
Schedule binomial_broadcast(const CallShape& shape);
Schedule direct_exchange_all_to_all(const CallShape& shape);
Schedule dissemination_barrier(const CallShape& shape);

/// What a rank has to know of the others before it may leave a call.
enum class Closing {
  kHeaders,   // all headers are equal
  kReceived,  // and every rank has received all that it expected
};
/// Rounds of empty messages after which a rank knows this; ends schedules that some rank could
/// leave earlier. Begins with a kVerify step.
void append_closing(Schedule& schedule, const CallShape& shape,
                    Closing closing = Closing::kHeaders);

}  // namespace tutti::internal
