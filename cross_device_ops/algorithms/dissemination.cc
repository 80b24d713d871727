// Barrier by dissemination, and the closing rounds of other calls.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a rank has *verified* when the header of its left neighbour has come and equals its
// own. In closing *round* k a rank sends an empty message to the rank 2^k to its right and waits
// for the one from 2^k to its left. A message tells all that its sender knew when it sent: after
// round k a rank knows that itself and the 2^(k+1) - 1 ranks to its left have verified. n - 1
// verified ranks are enough: equality is then handed on all the way around. That takes ceil(log2(n
// - 1)) rounds; with two ranks none, for each has looked at the other's header itself. That all n
// ranks have received what they expected takes ceil(log2(n)) rounds: nothing hands that on.
//
// Steps: ceil(log2(n - 1)) rounds after the headers. Bytes per rank: none but the header.
// Messages per rank: ceil(log2(n - 1)).
//
// The headers are a round to the right themselves, so a barrier is one message per rank with two
// ranks, and 1 + ceil(log2(n - 1)) with more: at most one more than a barrier that compares
// nothing. Hensgen, Finkel and Manber, Int. J. Parallel Program. 17 (1988).
#include "tutti/cross_device_ops/algorithms/algorithm.h"

namespace tutti::internal {

void append_closing(Schedule& schedule, const CallShape& shape, Closing closing) {
  schedule.verify();
  const int ranks_to_hear_of = closing == Closing::kHeaders ? shape.size - 1 : shape.size;
  for (int distance = 1; distance < ranks_to_hear_of; distance *= 2) {
    schedule.send(shape.peer(distance), {});
    schedule.receive(shape.peer(-distance), {});
  }
}

Schedule dissemination_barrier(const CallShape& shape) {
  Schedule schedule;
  append_closing(schedule, shape);
  return schedule;
}

}  // namespace tutti::internal
