// Table of algorithms; schedules for broadcast, barrier and the closing rounds of other calls.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/algorithm.h"

#include <algorithm>
#include <bit>

#include "core/names.h"
#include "cross_device_ops/collective_engine.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

constexpr Algorithm kAlgorithms[] = {
    {"canonical", Determinism::kCanonical, true, direct_exchange_all_reduce, direct_exchange_reduce,
     direct_exchange_all_gather, direct_exchange_reduce_scatter},
    {"ring", Determinism::kRunToRun, false, ring_all_reduce, direct_exchange_reduce,
     ring_all_gather, ring_reduce_scatter},
    {"hierarchical_copy", Determinism::kCanonical, false, hierarchical_all_reduce,
     direct_exchange_reduce, direct_exchange_all_gather, direct_exchange_reduce_scatter},
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

std::vector<std::string> message_algorithms() { return names_of(algorithms(), &Algorithm::name); }

const Algorithm& find_algorithm(std::string_view name) {
  const auto found = std::ranges::find(kAlgorithms, name, &Algorithm::name);
  if (found != std::end(kAlgorithms)) return *found;
  fail(ErrorCode::kNotFound, "there is no algorithm '", name,
       "' that uses messages; expected one of ", join(message_algorithms()));
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
  fail(ErrorCode::kInternal, "make_schedule: expected a known collective, got another value");
}

// Broadcast down a binomial tree.
//
// Vocabulary: ranks are counted from the root, which is rank 0. The *children* of rank r are the
// ranks r + 1, r + 2, r + 4, ..., where the power of two is less than the lowest set bit of r (the
// root has no such limit); r is their *parent*. A *segment* is sent down as soon as it is received.
// Each rank sends its bytes to each child; closing rounds follow.
Schedule binomial_broadcast(const CallShape& shape) {
  Schedule schedule;
  const int own = (shape.rank - shape.root + shape.size) % shape.size;
  const int parent = own & (own - 1), end = own == 0 ? shape.size : own & -own;
  const auto first = static_cast<int>(std::bit_ceil(static_cast<unsigned>(end)) / 2);
  const auto rank_of = [&](int number) { return (number + shape.root) % shape.size; };
  for (std::size_t k = 0; k < num_segments(shape.count, shape.segment()); ++k) {
    const Range range = segment_of({Space::kOutput, 0, shape.count}, k, shape.segment());
    if (own != 0) schedule.receive(rank_of(parent), range);
    for (int distance = first; distance > 0; distance /= 2) {
      if (own + distance < shape.size) schedule.send(rank_of(own + distance), range);
    }
  }
  append_closing(schedule, shape);
  return schedule;
}

// Barrier by dissemination, and the closing rounds of other calls.
//
// Vocabulary: a rank has *verified* when the header of its left neighbour has arrived and equals
// its own. In closing *round* k, a rank sends an empty message to the rank 2^k to its right and
// waits for the message of the rank 2^k to its left. A message conveys all that its sender knew
// when it sent the message: after round k a rank knows that it and the 2^(k+1) - 1 ranks to its
// left have verified. n - 1 verified ranks are enough, because equality then holds all the way
// around the ring. That takes ceil(log2(n - 1)) rounds; two ranks need none, since each has
// compared the other's header itself. Knowing that all n ranks have received all their messages
// takes ceil(log2(n)) rounds, because receipt, unlike equality, cannot be inferred.
//
// Steps: ceil(log2(n - 1)) rounds after the headers. Bytes per rank: only the header. Messages per
// rank: ceil(log2(n - 1)).
//
// Each header is sent to the right neighbour, so a barrier takes one message per rank with two
// ranks, and 1 + ceil(log2(n - 1)) messages with more. A barrier that compares no headers would
// take at most one message less.
// Hensgen, Finkel and Manber, Int. J. Parallel Program. 17 (1988).
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
