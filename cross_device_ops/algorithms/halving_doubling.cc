// Halving and doubling: log2(n) exchanges of ever smaller halves, then of ever larger ones.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: n ranks are split into *blocks* of consecutive ranks, one for each 1 in the binary
// digits of n, largest first. In a block of p = 2^k ranks, *round* d = 0 .. k-1 pairs the ranks
// that differ in bit d of their number in the block: distances 1, 2, 4, ... Each pair shares a
// range; the lower rank keeps the lower half, the other one the upper half. Each sends the half
// that it does not keep and combines the half that it receives. Afterwards a rank holds its
// *piece*, 1/p of the buffer, combined over the block. Then the smallest block sends its pieces to
// the next larger one, which combines them with its own (the smaller block's pieces are unions of
// the larger one's) and sends them on, up to the largest block. The results return the same way,
// and each block exchanges them in rounds k-1 .. 0.
//
// n ranks, S bytes, own block of p ranks, next larger one of q: per rank 2 (p-1)/p S bytes in
// rounds; S/p to the larger block if there is one; S/p back to the smaller one if there is one.
// Messages (of one segment each): 2 log2(p) in rounds, q/p to the larger block, 1 back to the
// smaller. Steps: 2 ceil(log2 n); if n is not a power of two, at most 2 more per further block.
//
// Distances grow from neighbours outward, so every partial result is a node of the canonical tree:
// the tree of n ranks is that of its largest block, combined with the tree of the rest. Hence it is
// canonical for every n. Rabenseifner, ICCS 2004 (binary blocks: Träff and Rabenseifner,
// EuroPVM/MPI 2005, there with distances that shrink).
#include "cross_device_ops/algorithms/algorithm.h"

#include <algorithm>
#include <bit>

namespace tutti::internal {
namespace {

struct RankBlock {
  int first = 0;
  int size = 0;  // 0: no such block
};

// Block of `rank`, and the blocks before and after it.
struct Blocks {
  RankBlock larger, own, smaller;
};

Blocks blocks_around(int size, int rank) {
  Blocks blocks;
  int first = 0;
  for (int bit = static_cast<int>(std::bit_floor(static_cast<unsigned>(size))); bit > 0; bit /= 2) {
    if ((size & bit) == 0) continue;
    const RankBlock block{first, bit};
    first += bit;
    if (blocks.own.size > 0) {
      blocks.smaller = block;
      break;
    }
    (rank < first ? blocks.own : blocks.larger) = block;
  }
  return blocks;
}

class HalvingDoubling {
 public:
  explicit HalvingDoubling(const CallShape& shape)
      : shape_(shape),
        blocks_(blocks_around(shape.size, shape.rank)),
        me_(shape.rank - blocks_.own.first),
        rounds_(std::countr_zero(static_cast<unsigned>(blocks_.own.size))) {}

  Schedule make() {
    for (int d = 0; d < rounds_; ++d) halve(d);
    if (blocks_.smaller.size > 0) from_smaller();
    if (blocks_.larger.size > 0) through_larger();
    if (blocks_.smaller.size > 0) {
      send(blocks_.smaller.first + me_ % blocks_.smaller.size, piece(rounds_, me_));
    }
    for (int d = rounds_ - 1; d >= 0; --d) {
      const int partner = me_ ^ (1 << d);
      send(blocks_.own.first + partner, piece(d + 1, me_));
      receive(blocks_.own.first + partner, piece(d + 1, partner));
    }
    return std::move(schedule_);
  }

 private:
  /// Returns the range that a rank of a block keeps after `rounds` rounds.
  Range piece(int rounds, int rank_in_block, Space space = Space::kOutput) const {
    std::size_t first = 0;
    std::size_t count = shape_.count;
    for (int d = 0; d < rounds; ++d) {
      const std::size_t lines = (count / 2 + shape_.line() - 1) / shape_.line();
      const std::size_t lower = std::min(count, lines * shape_.line());
      if ((rank_in_block >> d & 1) == 0) {
        count = lower;
      } else {
        first += lower;
        count -= lower;
      }
    }
    return {space, first, count};
  }

  void halve(int d) {
    const int partner = me_ ^ (1 << d);
    const Space space = d == 0 ? Space::kInput : Space::kOutput;
    if (d == 1) schedule_.verify();
    send(blocks_.own.first + partner, piece(d + 1, partner, space));
    combine(blocks_.own.first + partner, piece(d + 1, me_), space,
            me_ < partner ? StepKind::kReceiveOnRight : StepKind::kReceiveOnLeft);
    if (d == 0 && rounds_ == 1) schedule_.verify();
  }
  void from_smaller() {
    combine(blocks_.smaller.first + me_ % blocks_.smaller.size, piece(rounds_, me_), Space::kOutput,
            StepKind::kReceiveOnRight);
  }
  void through_larger() {
    const int larger_rounds = std::countr_zero(static_cast<unsigned>(blocks_.larger.size));
    const Space space = rounds_ == 0 ? Space::kInput : Space::kOutput;
    if (rounds_ == 0) schedule_.verify();
    for (int other = me_; other < blocks_.larger.size; other += blocks_.own.size) {
      send(blocks_.larger.first + other, piece(larger_rounds, other, space));
    }
    for (int other = me_; other < blocks_.larger.size; other += blocks_.own.size) {
      receive(blocks_.larger.first + other, piece(larger_rounds, other));
    }
  }

  void send(int rank, Range range) {
    for_segments(range, [&](Range segment) { schedule_.send(rank, segment); });
  }
  void receive(int rank, Range range) {
    for_segments(range, [&](Range segment) { schedule_.receive(rank, segment); });
  }
  void combine(int rank, Range range, Space own, StepKind side) {
    for_segments(range, [&](Range segment) {
      schedule_.receive_and_combine(rank, segment, {own, segment.first, segment.count}, side);
    });
  }
  template <class Body>
  void for_segments(Range range, const Body& body) {
    const std::size_t segment = shape_.segment();
    for (std::size_t k = 0; k < num_segments(range.count, segment); ++k) {
      body(segment_of(range, k, segment));
    }
  }

  const CallShape& shape_;
  const Blocks blocks_;
  const int me_;
  const int rounds_;
  Schedule schedule_;
};

}  // namespace

Schedule halving_doubling_all_reduce(const CallShape& shape) {
  return HalvingDoubling(shape).make();
}

}  // namespace tutti::internal
