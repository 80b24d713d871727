// The table of algorithms.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/algorithms/algorithm.h"

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

}  // namespace tutti::internal
