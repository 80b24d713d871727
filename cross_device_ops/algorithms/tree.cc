// Binomial trees: up along the canonical tree, down to all ranks.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: rank r has the *children* r + 1, r + 2, r + 4, ... as long as these powers of two are
// below the lowest 1 of r (for 0: without limit) and the child is a rank; r is their *parent*. This
// is the canonical tree: the value from child r + 2^d is the node of 2^d ranks (or fewer, at the
// end) that the tree combines with r's node in round d. A *segment* is sent up as soon as those of
// all children have arrived, and down as soon as it is received.
//
// n ranks, S bytes in K segments, c children:
// all_reduce: up to rank 0 and down. 2 ceil(log2 n) steps for the first segment, then one segment
//   after the other; K (c + 1) messages, (c + 1) S bytes per rank; rank 0: K c and c S.
// reduce: up to rank 0, to the root if that is another one, closing rounds. S bytes per rank, rank
//   0 only if it is not the root.
// broadcast: down from the root (ranks counted from it), closing rounds. c S bytes.
// Reductions are canonical. A rank verifies before it sends anything, so that rank 0 knows of all
// ranks once it has received from its children; in broadcast the root sends at once.
#include "cross_device_ops/algorithms/algorithm.h"

namespace tutti::internal {
namespace {

int lowest_one(int rank, int size) { return rank == 0 ? size : rank & -rank; }

/// Returns the children, nearest first.
std::vector<int> children_of(int rank, int size) {
  std::vector<int> children;
  const int end = lowest_one(rank, size);
  for (int distance = 1; distance < end && rank + distance < size; distance *= 2) {
    children.push_back(rank + distance);
  }
  return children;
}

int parent_of(int rank) { return rank & (rank - 1); }

class Tree : public SegmentedSchedule {
 public:
  explicit Tree(const CallShape& shape)
      : SegmentedSchedule(shape), children_(children_of(shape.rank, shape.size)) {}

  /// Returns a segment in scratch, whose room is reused for segment k + 2.
  Range scratch_segment(std::size_t k) {
    schedule.scratch_elements = kGenerations * slot();
    return {Space::kScratch, k % kGenerations * slot(), segment(Space::kInput, k).count};
  }

  /// Combines the children's values with this rank's; returns the range of the result.
  Range up(std::size_t k, Range into) {
    Range own = segment(Space::kInput, k);
    for (const int child : children_) {
      schedule.receive_and_combine(child, into, own, StepKind::kReceiveOnRight);
      own = into;
    }
    return own;
  }
  void down(std::size_t k) {
    for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
      send(*child, segment(Space::kOutput, k));
    }
  }

 private:
  std::vector<int> children_;
};

}  // namespace

Schedule tree_all_reduce(const CallShape& shape) {
  Tree tree(shape);
  const bool top = shape.rank == 0;
  for (std::size_t k = 0; k < tree.num_segments(); ++k) {
    const Range combined = tree.up(k, tree.segment(Space::kOutput, k));
    if (top) {
      tree.down(k);
    } else {
      tree.send(parent_of(shape.rank), combined);
    }
  }
  for (std::size_t k = 0; !top && k < tree.num_segments(); ++k) {
    tree.schedule.receive(parent_of(shape.rank), tree.segment(Space::kOutput, k));
    tree.down(k);
  }
  return std::move(tree.schedule);
}

Schedule tree_reduce(const CallShape& shape) {
  Tree tree(shape);
  const bool at_top = shape.root == 0;
  const bool gets_result = !at_top && shape.rank == shape.root;
  // The root receives results while it still sends. Rank 0 reuses its scratch memory, so it must
  // not wait for a root that waits for it.
  constexpr std::size_t kBehind = 1;
  const auto result = [&](std::size_t k) {
    tree.schedule.receive(0, tree.segment(Space::kOutput, k));
  };
  for (std::size_t k = 0; k < tree.num_segments(); ++k) {
    const bool keeps = shape.rank == 0 && at_top;
    const Range combined =
        tree.up(k, keeps ? tree.segment(Space::kOutput, k) : tree.scratch_segment(k));
    if (shape.rank != 0) tree.send(parent_of(shape.rank), combined);
    if (shape.rank == 0 && !at_top) tree.send(shape.root, combined);
    if (gets_result && k >= kBehind) result(k - kBehind);
  }
  const std::size_t end = tree.num_segments();
  for (std::size_t k = end - std::min(end, kBehind); gets_result && k < end; ++k) result(k);
  append_closing(tree.schedule, shape);
  return std::move(tree.schedule);
}

Schedule binomial_broadcast(const CallShape& shape) {
  Schedule schedule;
  const int from_root = (shape.rank - shape.root + shape.size) % shape.size;
  const std::vector<int> children = children_of(from_root, shape.size);
  const auto rank_of = [&](int number) { return (number + shape.root) % shape.size; };
  for (std::size_t k = 0; k < num_segments(shape.count, shape.segment()); ++k) {
    const Range range = segment_of({Space::kOutput, 0, shape.count}, k, shape.segment());
    if (from_root != 0) schedule.receive(rank_of(parent_of(from_root)), range);
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      schedule.send(rank_of(*child), range);
    }
  }
  append_closing(schedule, shape);
  return schedule;
}

}  // namespace tutti::internal
