// Ring: every rank communicates only with its two neighbours.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: the buffer is split into n *chunks*, chunk c being elements [c * count / n, (c + 1) *
// count / n) (all_gather and reduce_scatter: the callers' parts), and a chunk into *segments*. Rank
// r's *right neighbour* is r + 1 (mod n). Reduce-scatter: in *step* s = 0 .. n-2, rank r sends
// chunk r - s (mod n) to its right neighbour, which combines it with its own values; afterwards,
// rank r holds the complete result of chunk r + 1 (mod n). All-gather: in n-1 further steps, the
// finished chunks are passed around. A segment is forwarded as soon as it is combined, before the
// next segment is received.
//
// n ranks, S bytes, chunks in K segments:
// all_reduce: 2 (n-1) steps; per rank 2 (n-1) K messages and 2 S (n-1) / n bytes, the least
// possible.
// reduce_scatter: n-1 steps; S minus the rank's own part.
// all_gather: n-1 steps; S minus the right neighbour's part.
//
// The sum of chunk c starts at rank c (in reduce_scatter, at c + 1), so its order of additions
// depends on c: results are bit-identical in every run, but differ from those of all other
// algorithms. A message of step s + 1 implies that its sender has verified the message of step s,
// so after n-1 steps, a rank knows that n-1 ranks have verified their messages.
//
// Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009).
#include "cross_device_ops/algorithms/algorithm.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cross_device_ops/buffer_call.h"

namespace tutti::internal {
namespace {

class Ring {
 public:
  Ring(const CallShape& shape, std::vector<std::size_t> cuts)
      : shape_(shape), cuts_(std::move(cuts)), segment_(shape.segment()) {
    for (int c = 0; c < shape.size; ++c)
      largest_ = std::max(largest_, chunk(Space::kInput, c).count);
    num_segments_ = internal::num_segments(largest_, segment_);
  }

  Schedule schedule;
  std::size_t largest_chunk() const { return largest_; }

  /// Returns the chunk of the rank that is `distance` ranks to the right of this rank.
  Range chunk(Space space, int distance) const {
    const auto c = static_cast<std::size_t>(shape_.peer(distance));
    return {space, cuts_[c], cuts_[c + 1] - cuts_[c]};
  }

  void send_all(Range chunk) {
    for (std::size_t k = 0; k < num_segments_; ++k) send(chunk, k);
  }
  void send(Range chunk, std::size_t k) {
    const Range range = segment_of(chunk, k, segment_);
    if (travels(range, k)) schedule.send(shape_.peer(1), range);
  }

  /// Receives a chunk from the left neighbour, combines it with `own` if that is set, and forwards
  /// it to the right neighbour if `onward` is true.
  void pass(Range into, bool onward, std::optional<Range> own = std::nullopt) {
    for (std::size_t k = 0; k < num_segments_; ++k) {
      const Range range = segment_of(into, k, segment_);
      if (!travels(range, k)) break;
      if (own) {
        schedule.receive_and_combine(shape_.peer(-1), range, segment_of(*own, k, segment_));
      } else {
        schedule.receive(shape_.peer(-1), range);
      }
      if (!std::exchange(verified_, true)) schedule.verify();
      if (onward) send(into, k);
    }
  }

 private:
  const CallShape& shape_;
  std::vector<std::size_t> cuts_;
  std::size_t segment_;
  std::size_t largest_ = 0;
  std::size_t num_segments_ = 1;
  bool verified_ = false;
};

}  // namespace

Schedule ring_all_reduce(const CallShape& shape) {
  std::vector<std::size_t> cuts;
  for (int c = 0; c <= shape.size; ++c) {
    cuts.push_back(static_cast<std::size_t>(c) * shape.count /
                   static_cast<std::size_t>(shape.size));
  }
  Ring ring(shape, std::move(cuts));
  ring.send_all(ring.chunk(Space::kInput, 0));
  for (int s = 0; s + 1 < shape.size; ++s) {
    ring.pass(ring.chunk(Space::kOutput, -1 - s), true, ring.chunk(Space::kInput, -1 - s));
  }
  for (int s = 0; s + 1 < shape.size; ++s) {
    ring.pass(ring.chunk(Space::kOutput, -s), s + 2 < shape.size);
  }
  return std::move(ring.schedule);
}

Schedule ring_reduce_scatter(const CallShape& shape) {
  Ring ring(shape, cuts_of(shape.counts));
  ring.schedule.scratch_elements = 2 * ring.largest_chunk();
  ring.send_all(ring.chunk(Space::kInput, -1));
  for (int s = 0; s + 1 < shape.size; ++s) {
    const Range own = ring.chunk(Space::kInput, -2 - s);
    const bool onward = s + 2 < shape.size;
    const Range passing{Space::kScratch, static_cast<std::size_t>(s % 2) * ring.largest_chunk(),
                        own.count};
    ring.pass(onward ? passing : Range{Space::kOutput, 0, own.count}, onward, own);
  }
  return std::move(ring.schedule);
}

Schedule ring_all_gather(const CallShape& shape) {
  Ring ring(shape, cuts_of(shape.counts));
  const Range own = ring.chunk(Space::kOutput, 0);
  const Range input{Space::kInput, 0, own.count};
  ring.send_all(input);
  ring.schedule.copy(own, input);
  for (int s = 0; s + 1 < shape.size; ++s) {
    ring.pass(ring.chunk(Space::kOutput, -1 - s), s + 2 < shape.size);
  }
  return std::move(ring.schedule);
}

}  // namespace tutti::internal
