// The table of algorithms, the barrier, and the closing rounds of other calls.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/algorithm.h"

#include <algorithm>
#include <limits>

#include "cross_device_ops/collective_engine.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"

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
// Vocabulary: a rank has *verified* when the header of its left neighbour has arrived and equals
// its own. In closing *round* k a rank sends an empty message to the rank 2^k to its right and
// waits for the one from 2^k to its left. A message carries all knowledge that its sender had when
// it sent: after round k a rank knows that itself and the 2^(k+1) - 1 ranks to its left have
// verified. n - 1 verified ranks are enough, because equality then holds all the way around the
// ring. That takes ceil(log2(n - 1)) rounds; two ranks need none, since each has compared the
// other's header itself. Knowing that all n ranks have received all their messages takes
// ceil(log2(n)) rounds, because this does not follow from the neighbours.
//
// Steps: ceil(log2(n - 1)) rounds after the headers. Bytes per rank: only the header. Messages per
// rank: ceil(log2(n - 1)).
//
// The headers themselves are a round to the right, so a barrier takes one message per rank with two
// ranks, and 1 + ceil(log2(n - 1)) with more: at most one more than a barrier without comparison.
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

namespace tutti {

namespace {

constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
constexpr int kAnySize = std::numeric_limits<int>::max();

struct Row {
  Medium medium;
  int up_to_ranks;
  std::size_t up_to_bytes;
  std::string_view name;
  std::string_view why = {};  // reason for a call that was not measured
};

constexpr std::size_t kKiB = 1024;

// The first matching row applies. Measured with benchmarks/all_reduce_algorithms (local 2 3 4 8;
// tcp with 2, 3 and 4 processes over loopback) on two cores of a virtual machine (AMD EPYC),
// float32, with other programs running: more than two ranks share cores. A difference below about a
// tenth is noise and does not make a row. Microseconds of the chosen algorithm against canonical:
// local 2 ranks 16 MiB 1528 / 2782; tcp 4 ranks 32 KiB 117 / 258, 256 KiB 257 / 435. Two ranks over
// tcp: canonical, 6.3 for 4 bytes (tree 9.9, ring 11.4); above 1 MiB all are within a fifth.
constexpr Row kTable[] = {
    {Medium::kLocal, 4, 32 * kKiB, "canonical"},
    {Medium::kLocal, kAnySize, 128 * kKiB, "canonical"},
    {Medium::kLocal, kAnySize, kAny, "halving_doubling"},
    {Medium::kNetwork, 2, kAny, "canonical"},
    {Medium::kNetwork, kAnySize, 256 * kKiB, "tree"},
    {Medium::kNetwork, kAnySize, kAny, "canonical"},
};

const Row& row_for(const internal::CallShape& call, DType dtype, Medium medium) {
  static constexpr Row kOther{Medium::kLocal, kAnySize, kAny, "canonical",
                              "it has no alternative worth a choice"};
  // Only an algorithm that combines all values at once rounds these once.
  static constexpr Row kHalf{Medium::kLocal, kAnySize, kAny, "canonical",
                             "16-bit numbers are combined in one go"};
  if (call.collective != Collective::kAllReduce) return kOther;
  if (is_half(dtype)) return kHalf;
  for (const Row& row : kTable) {
    if (row.medium == medium && call.size <= row.up_to_ranks &&
        call.num_bytes() <= row.up_to_bytes) {
      return row;
    }
  }
  fail(ErrorCode::kInternal, "auto: the table has no row for ", call.size, " ranks");
}

/// Returns "all_reduce of 4096 bytes among 4 ranks (network): measured fastest for ...".
std::string why(const Row& row, const internal::CallShape& call, Medium medium) {
  const std::string what =
      concat(tutti::to_string(call.collective), " of ", call.num_bytes(), " bytes among ",
             call.size, " ranks (", medium == Medium::kLocal ? "one thread" : "network", "): ");
  if (!row.why.empty()) return concat(what, row.why);
  const std::string ranks = row.up_to_ranks == kAnySize
                                ? "any number of ranks"
                                : concat("up to ", row.up_to_ranks, " ranks");
  const std::string bytes =
      row.up_to_bytes == kAny ? "any size" : concat("up to ", row.up_to_bytes, " bytes");
  return concat(what, "measured fastest for ", ranks, " and ", bytes);
}

}  // namespace

std::vector<std::string> internal::message_algorithms() {
  std::vector<std::string> names;
  for (const Algorithm& algorithm : algorithms()) names.emplace_back(algorithm.name);
  names.emplace_back("auto");
  return names;
}

internal::NamedAlgorithm::NamedAlgorithm(std::string_view name) : fixed_(find_algorithm(name)) {
  if (fixed_ != nullptr || name == "auto") return;
  fail(ErrorCode::kNotFound, "no algorithm '", name, "' that works with messages; expected one of ",
       join(message_algorithms()));
}

const internal::Algorithm& internal::NamedAlgorithm::choose(const CallShape& call, DType dtype,
                                                            Medium medium) {
  if (fixed_ != nullptr) return *fixed_;
  const Row& row = row_for(call, dtype, medium);
  const Algorithm& algorithm = *find_algorithm(row.name);
  if (last_.exchange(&algorithm) != &algorithm) {
    log_debug(concat("auto: ", row.name, " for ", why(row, call, medium)));
  }
  return algorithm;
}

}  // namespace tutti
