// The table of algorithms, the barrier, the closing rounds of other calls.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/algorithm.h"

#include <algorithm>

namespace tutti::internal {
namespace {

constexpr Algorithm kAlgorithms[] = {
    {"canonical", Determinism::kCanonical, true, direct_exchange_all_reduce, direct_exchange_reduce,
     direct_exchange_all_gather, direct_exchange_reduce_scatter},
    {"ring", Determinism::kRunToRun, false, ring_all_reduce, tree_reduce, ring_all_gather,
     ring_reduce_scatter},
    {"halving_doubling", Determinism::kCanonical, false, halving_doubling_all_reduce, tree_reduce,
     direct_exchange_all_gather, direct_exchange_reduce_scatter},
    {"tree", Determinism::kCanonical, false, tree_all_reduce, tree_reduce,
     direct_exchange_all_gather, direct_exchange_reduce_scatter},
    {"hierarchical_copy", Determinism::kCanonical, false, hierarchical_all_reduce, tree_reduce,
     direct_exchange_all_gather, direct_exchange_reduce_scatter},
    {"reduction_to_one_device", Determinism::kCanonical, true, one_device_all_reduce,
     one_device_reduce, direct_exchange_all_gather, direct_exchange_reduce_scatter},
};

Schedule alone(const CallShape& shape) {
  Schedule schedule;
  if (shape.collective != Collective::kBroadcast && shape.collective != Collective::kBarrier) {
    const std::size_t count =
        shape.collective == Collective::kAllToAll ? shape.counts[0] : shape.count;
    schedule.copy({Space::kOutput, 0, count}, {Space::kInput, 0, count});
  }
  return schedule;
}

}  // namespace

std::span<const Algorithm> algorithms() { return kAlgorithms; }

const Algorithm* find_algorithm(std::string_view name) {
  const auto found = std::ranges::find(kAlgorithms, name, &Algorithm::name);
  return found == std::end(kAlgorithms) ? nullptr : found;
}

Schedule make_schedule(const Algorithm& algorithm, const CallShape& shape) {
  if (shape.size == 1) return alone(shape);
  switch (shape.collective) {
    case Collective::kAllReduce:
      return algorithm.all_reduce(shape);
    case Collective::kReduce:
      return algorithm.reduce(shape);
    case Collective::kBroadcast:
      return binomial_broadcast(shape);
    case Collective::kAllGather:
      return algorithm.all_gather(shape);
    case Collective::kReduceScatter:
      return algorithm.reduce_scatter(shape);
    case Collective::kAllToAll:
      return direct_exchange_all_to_all(shape);
    case Collective::kBarrier:
      return dissemination_barrier(shape);
  }
  fail(ErrorCode::kInternal, "make_schedule: no such collective");
}

// Barrier by dissemination, and the closing rounds of other calls.
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
