// Hierarchical copy: leaders gather values, combine them in one step, and copy results back down.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a *group* is a run of `group_size` consecutive ranks, its *leader* the first of them;
// the first leader is rank 0. group_size is a power of two, so that every group is a whole subtree
// of the canonical tree (the last, possibly smaller group is the subtree of the remaining ranks).
// Alternatively, one group contains all ranks. Steps: 1. each leader gathers the values of its
// group and combines them along the tree; 2. rank 0 gathers the leaders' values and combines them;
// 3. leaders receive the result; 4. each leader sends it to its group. Values are sent in
// *segments*, each as soon as it is combined.
//
// n ranks, S bytes in K segments, groups of G, L = ceil(n / G) leaders:
// hierarchical_copy (G the largest power of two not above sqrt(n)): 4 steps; a member sends K
//   messages and S bytes, a leader K G and G S (fewer in a smaller last group), rank 0 K (L + G -
//   2) and (L + G - 2) S. In total, 2 (L - 1) S bytes pass between groups.
// reduction_to_one_device (one group): 2 steps; a member sends K messages and S bytes, rank 0
//   K (n-1) and (n-1) S. Each element is combined once.
// reduce: each other rank sends its S bytes directly to the root; then the closing rounds follow.
// In all_reduce, a rank verifies before it sends, so messages from all ranks prove to rank 0 that
// all have verified.
#include "cross_device_ops/algorithms/algorithm.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tutti::internal {
namespace {

/// Builder of a schedule that processes a buffer segment by segment. A rank verifies its
/// neighbour's header before it sends its first message, so a rank that has received messages from
/// all ranks knows that all of them have verified their headers.
class Gathering {
 public:
  explicit Gathering(const CallShape& shape) : shape_(shape) {}

  Schedule schedule;
  std::size_t num_segments() const {
    return internal::num_segments(shape_.count, shape_.segment());
  }
  Range segment(Space space, std::size_t k) const {
    return segment_of({space, 0, shape_.count}, k, shape_.segment());
  }
  void send(int peer, Range range) {
    if (!verified_ && shape_.size > 2) schedule.verify();
    verified_ = true;
    schedule.send(peer, range);
  }
  /// Combines the values of `ranks` (in increasing order) into `result`; this rank's value is in
  /// `own`.
  void gather(const std::vector<int>& ranks, std::size_t k, Range own, Range result) {
    std::vector<Range> from;
    std::size_t place = 0;
    for (const int rank : ranks) {
      from.push_back(own);
      if (rank == shape_.rank) continue;
      from.back() = {Space::kScratch, slot() * (place++ * kGenerations + k % kGenerations),
                     own.count};
      schedule.receive(rank, from.back());
    }
    schedule.scratch_elements = std::max(schedule.scratch_elements, slot() * place * kGenerations);
    if (own.count > 0) schedule.combine(result, from);
  }
  void send_to_all(const std::vector<int>& ranks, Range range) {
    for (const int rank : ranks) {
      if (rank != shape_.rank) send(rank, range);
    }
  }

 private:
  /// Number of segments in scratch memory at a time. Each occupies slot() elements.
  static constexpr std::size_t kGenerations = 2;
  std::size_t slot() const { return std::min(shape_.count, shape_.segment()); }

  const CallShape& shape_;
  bool verified_ = false;
};

std::vector<int> every(int step, int first, int end) {
  std::vector<int> ranks;
  for (int rank = first; rank < end; rank += step) ranks.push_back(rank);
  return ranks;
}

Schedule all_reduce_by_leaders(const CallShape& shape, int group_size) {
  Gathering work(shape);
  const int leader = shape.rank / group_size * group_size;
  const std::vector<int> group = every(1, leader, std::min(leader + group_size, shape.size));
  const std::vector<int> leaders = every(group_size, 0, shape.size);
  const bool leads = shape.rank == leader;
  for (std::size_t k = 0; k < work.num_segments(); ++k) {
    Range value = work.segment(Space::kInput, k);
    const Range result = work.segment(Space::kOutput, k);
    if (leads && group.size() > 1) {
      work.gather(group, k, value, result);
      value = result;
    }
    if (shape.rank != 0) {
      work.send(leads ? 0 : leader, value);
      continue;
    }
    if (leaders.size() > 1) work.gather(leaders, k, value, result);
    work.send_to_all(leaders, result);
    work.send_to_all(group, result);
  }
  for (std::size_t k = 0; shape.rank != 0 && k < work.num_segments(); ++k) {
    const Range result = work.segment(Space::kOutput, k);
    work.schedule.receive(leads ? 0 : leader, result);
    if (leads) work.send_to_all(group, result);
  }
  return std::move(work.schedule);
}

}  // namespace

Schedule hierarchical_all_reduce(const CallShape& shape) {
  const auto root = static_cast<unsigned>(std::sqrt(static_cast<double>(shape.size)));
  return all_reduce_by_leaders(shape, static_cast<int>(std::bit_floor(root)));
}

Schedule one_device_all_reduce(const CallShape& shape) {
  return all_reduce_by_leaders(shape, shape.size);
}

Schedule one_device_reduce(const CallShape& shape) {
  Gathering work(shape);
  const std::vector<int> all = every(1, 0, shape.size);
  for (std::size_t k = 0; k < work.num_segments(); ++k) {
    const Range own = work.segment(Space::kInput, k);
    if (shape.rank == shape.root) {
      work.gather(all, k, own, work.segment(Space::kOutput, k));
    } else {
      work.schedule.send(shape.root, own);
    }
  }
  append_closing(work.schedule, shape);
  return std::move(work.schedule);
}

}  // namespace tutti::internal
