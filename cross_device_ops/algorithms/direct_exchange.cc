// Direct exchange: every rank sends each other rank only the data that the receiver needs.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: *slice* r is the part of the buffer whose result rank r computes. all_reduce and
// reduce split the buffer into n slices at multiples of 64 bytes, reduce_scatter at the caller's
// counts. A *contribution* is one rank's values for another rank's slice. Slices are processed in
// *segments*; messages of segment k + 1 are sent before segment k is combined. A rank combines the
// n contributions of a segment together along the canonical tree, so the result is canonical for
// every n, and 16-bit numbers are rounded only once.
//
// n ranks, S bytes, slices in K segments:
// all_reduce: contributions, then results to all. 2 steps; per rank 2 (n-1) K messages, (n-1)/n S
//   bytes twice. With two ranks and S up to kOneShotBytes, each rank sends its whole buffer and
//   computes the whole result: 1 step, 1 message, S bytes.
// reduce: contributions, then results to the root. 2 steps and the closing rounds; S bytes, the
//   root (n-1)/n S.
// reduce_scatter: headers, then contributions. 2 steps; n-1 messages per segment, S minus the
//   rank's own part.
// all_gather: headers, then one message to each other rank. 2 steps, n-1 messages; (n-1) times the
//   rank's own part.
// all_to_all: one message to each other rank, then the closing rounds, because a length on which
//   two ranks disagree is visible to only one of them. 1 + ceil(log2 n) steps; S minus the rank's
//   own part.
// If headers are sent first, a rank verifies before it sends data. Data from all other ranks then
// proves that all have verified, without closing rounds. Two ranks need not send headers first.
#include "cross_device_ops/algorithms/algorithm.h"

#include <algorithm>

#include "cross_device_ops/buffer_call.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kOneShotBytes = 64 * 1024;
constexpr std::size_t kLongSegmentBytes = 64 * 1024;

// Returns n + 1 offsets: slice r is [cuts[r], cuts[r + 1]).
std::vector<std::size_t> even_cuts(const CallShape& shape) {
  std::vector<std::size_t> cuts;
  for (int r = 0; r <= shape.size; ++r) {
    const std::size_t place = shape.count * static_cast<std::size_t>(r) / shape.size;
    cuts.push_back(std::min(shape.count, (place + shape.line() - 1) / shape.line() * shape.line()));
  }
  return cuts;
}

Range part(Space space, const std::vector<std::size_t>& cuts, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return {space, cuts[r], cuts[r + 1] - cuts[r]};
}

/// Builder of a schedule that exchanges contributions and distributes results.
class Exchange {
 public:
  Exchange(const CallShape& shape, std::vector<std::size_t> cuts)
      : shape_(shape), cuts_(std::move(cuts)), own_(part(Space::kInput, cuts_, shape.rank)) {
    std::size_t largest = 0;
    for (int r = 0; r < shape.size; ++r) largest = std::max(largest, slice(r).count);
    segment_ = shape.segment();
    num_segments_ = internal::num_segments(largest, segment_);
    const std::size_t last = largest - (num_segments_ - 1) * segment_;
    // A short last segment shortens the final phase, in which nothing overlaps. With more than 2
    // ranks, its messages cost more time than this saves. Measured over TCP at 1 MiB: 2 ranks take
    // 272 us with it and 284 us without, 4 ranks 990 us with it and 840 us without.
    const bool is_short = num_segments_ > 1 && last <= segment_ / 8;
    if (is_short && shape.size > 2 && shape.segment_bytes >= kLongSegmentBytes) {
      --num_segments_;
    }
    const std::size_t longest = largest - (num_segments_ - 1) * segment_;
    slot_ = std::min(std::max(segment_, longest), largest);
    slot_ = (slot_ + shape.line() - 1) / shape.line() * shape.line();
    schedule.scratch_elements = kGenerations * slot_ * static_cast<std::size_t>(shape.size);
  }

  Schedule schedule;
  std::size_t num_segments() const { return num_segments_; }
  Range slice(int rank, Space space = Space::kInput) const { return part(space, cuts_, rank); }
  /// Returns segment k. The last segment may be an eighth longer than the others.
  Range segment(Range run, std::size_t k) const {
    Range range = segment_of(run, k, segment_);
    if (k + 1 == num_segments_) range.count = run.count - (range.first - run.first);
    return range;
  }

  /// Sends segment `k` to each rank, first to the right neighbour (with the header). If `all`,
  /// sends the first segment even if it is empty.
  void contribute(std::size_t k, bool all) {
    for (int d = 1; d < shape_.size; ++d) {
      const Range range = segment(slice(shape_.peer(d)), k);
      if (range.count > 0 || (k == 0 && (all || d == 1))) schedule.send(shape_.peer(d), range);
    }
  }
  void gather(std::size_t k, bool all) {
    for (int d = 1; d < shape_.size; ++d) {
      const Range range = staged(shape_.peer(-d), k);
      if (range.count > 0 || (k == 0 && (all || d == 1))) schedule.receive(shape_.peer(-d), range);
    }
  }
  void combine(std::size_t k, Range result) {
    if (result.count == 0) return;
    std::vector<Range> from;
    for (int r = 0; r < shape_.size; ++r) {
      from.push_back(r == shape_.rank ? segment(own_, k) : staged(r, k));
    }
    schedule.combine(result, from);
  }
  /// Returns the scratch range for this rank's result for segment k, which is used if this rank has
  /// no output.
  Range result_in_scratch(std::size_t k) const { return staged(shape_.rank, k); }

 private:
  static constexpr std::size_t kGenerations = 2;  // number of segments staged at a time

  Range staged(int from, std::size_t k) const {
    const auto place =
        (k % kGenerations) * static_cast<std::size_t>(shape_.size) + static_cast<std::size_t>(from);
    return {Space::kScratch, place * slot_, segment(own_, k).count};
  }

  const CallShape& shape_;
  std::vector<std::size_t> cuts_;
  Range own_;
  std::size_t segment_ = 1;
  std::size_t num_segments_ = 1;
  std::size_t slot_ = 0;
};

Schedule one_shot(const CallShape& shape) {
  Schedule schedule;
  const int other = 1 - shape.rank;
  const Range own{Space::kInput, 0, shape.count};
  const Range theirs{Space::kScratch, 0, shape.count};
  schedule.scratch_elements = shape.count;
  schedule.send(other, own);
  schedule.receive(other, theirs);
  if (shape.count > 0) {
    schedule.combine({Space::kOutput, 0, shape.count},
                     shape.rank == 0 ? std::vector{own, theirs} : std::vector{theirs, own});
  }
  return schedule;
}

/// Exchanges contributions, then sends each rank's result to all ranks (`to_all`) or to the root.
Schedule exchange_and_return(const CallShape& shape, bool to_all) {
  Exchange exchange(shape, even_cuts(shape));
  Schedule& schedule = exchange.schedule;
  const auto gets_results = [&](int rank) { return to_all || rank == shape.root; };
  const auto result = [&](int rank, std::size_t k) {
    return exchange.segment(exchange.slice(rank, Space::kOutput), k);
  };
  const auto is_sent = [&](const Range& range, std::size_t k) {
    return to_all ? travels(range, k) : range.count > 0;
  };
  const auto collect = [&](std::size_t k) {
    for (int d = 1; gets_results(shape.rank) && d < shape.size; ++d) {
      const int peer = shape.peer(-d);
      if (is_sent(result(peer, k), k)) schedule.receive(peer, result(peer, k));
    }
  };
  exchange.contribute(0, false);
  for (std::size_t k = 0; k < exchange.num_segments(); ++k) {
    if (k + 1 < exchange.num_segments()) exchange.contribute(k + 1, false);
    exchange.gather(k, false);
    const Range own =
        gets_results(shape.rank) ? result(shape.rank, k) : exchange.result_in_scratch(k);
    exchange.combine(k, own);
    if (to_all && k == 0) schedule.verify();
    for (int d = 1; d < shape.size; ++d) {
      const int peer = shape.peer(d);
      if (gets_results(peer) && is_sent(own, k)) schedule.send(peer, own);
    }
    if (k > 0) collect(k - 1);
  }
  collect(exchange.num_segments() - 1);
  if (!to_all) append_closing(schedule, shape);
  return std::move(exchange.schedule);
}

}  // namespace

Schedule direct_exchange_all_reduce(const CallShape& shape) {
  if (shape.size == 2 && shape.count * shape.element_bytes <= kOneShotBytes) return one_shot(shape);
  return exchange_and_return(shape, true);
}

Schedule direct_exchange_reduce(const CallShape& shape) {
  return exchange_and_return(shape, false);
}

Schedule direct_exchange_reduce_scatter(const CallShape& shape) {
  Exchange exchange(shape, cuts_of(shape.counts));
  if (shape.size > 2) exchange.schedule.verify();
  const Range own{Space::kOutput, 0, shape.counts[static_cast<std::size_t>(shape.rank)]};
  exchange.contribute(0, true);
  for (std::size_t k = 0; k < exchange.num_segments(); ++k) {
    if (k + 1 < exchange.num_segments()) exchange.contribute(k + 1, true);
    exchange.gather(k, true);
    exchange.combine(k, exchange.segment(own, k));
  }
  return std::move(exchange.schedule);
}

Schedule direct_exchange_all_gather(const CallShape& shape) {
  Schedule schedule;
  const std::vector<std::size_t> cuts = cuts_of(shape.counts);
  const Range own = part(Space::kOutput, cuts, shape.rank);
  const Range input{Space::kInput, 0, own.count};
  if (shape.size > 2) schedule.verify();
  for (int d = 1; d < shape.size; ++d) schedule.send(shape.peer(d), input);
  schedule.copy(own, input);
  for (int d = 1; d < shape.size; ++d) {
    schedule.receive(shape.peer(-d), part(Space::kOutput, cuts, shape.peer(-d)));
  }
  return schedule;
}

Schedule direct_exchange_all_to_all(const CallShape& shape) {
  Schedule schedule;
  const std::vector<std::size_t> sends = cuts_of(shape.counts);
  const std::vector<std::size_t> receives = cuts_of(shape.receive_counts);
  for (int d = 1; d < shape.size; ++d) {
    schedule.send(shape.peer(d), part(Space::kInput, sends, shape.peer(d)));
  }
  schedule.copy(part(Space::kOutput, receives, shape.rank), part(Space::kInput, sends, shape.rank));
  for (int d = 1; d < shape.size; ++d) {
    schedule.receive(shape.peer(-d), part(Space::kOutput, receives, shape.peer(-d)));
  }
  append_closing(schedule, shape, Closing::kReceived);
  return schedule;
}

}  // namespace tutti::internal
