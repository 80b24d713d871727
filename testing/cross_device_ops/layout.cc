// Where the elements of a case lie, and what each must become.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/layout.h"

#include "tutti/core/random.h"

namespace tutti::conformance {
namespace {

/// `count` in `world` parts; uneven ones are random, and some are empty.
std::vector<std::size_t> parts_of(const Case& c, std::uint64_t row) {
  const auto world = static_cast<std::size_t>(c.world);
  if (!c.uneven) return std::vector<std::size_t>(world, (c.count + world - 1) / world);
  const RandomStream random(RandomKey{c.seed, kUserPurpose, 3, row, c.count});
  std::vector<std::size_t> weights(world);
  std::size_t sum = 0;
  for (std::size_t r = 0; r < world; ++r) sum += weights[r] = random.below(r, 4);
  std::vector<std::size_t> parts(world);
  std::size_t rest = c.count;
  for (std::size_t r = 0; r < world && sum > 0; ++r) rest -= parts[r] = c.count * weights[r] / sum;
  parts[random.below(world, world)] += rest;
  return parts;
}

std::vector<std::size_t> starts_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> starts{0};
  for (const std::size_t count : counts) starts.push_back(starts.back() + count);
  return starts;
}

Layout of_whole_buffers(const Case& c) {
  Layout layout;
  for (int r = 0; r < c.world; ++r) {
    RankLayout rank{c.count, c.count, 0, 0, c.in_place, {}};
    const bool reads = c.collective != Collective::kBroadcast;
    const bool writes = c.collective != Collective::kReduce || r == c.variant;
    if (!writes) rank.output_count = 0;
    rank.shares_memory = !reads || (c.in_place && writes);
    if (writes) {
      rank.segments.push_back({0, c.count, reads ? Segment::kCombination : c.variant, 0});
    }
    layout.ranks.push_back(rank);
  }
  return layout;
}

Layout of_all_gather(const Case& c) {
  Layout layout;
  layout.counts = parts_of(c, 0);
  const std::vector<std::size_t> starts = starts_of(layout.counts);
  for (std::size_t r = 0; r < layout.counts.size(); ++r) {
    RankLayout rank{layout.counts[r], starts.back(), c.in_place ? starts[r] : 0, 0, c.in_place, {}};
    for (std::size_t s = 0; s < layout.counts.size(); ++s) {
      rank.segments.push_back({starts[s], layout.counts[s], static_cast<int>(s), 0});
    }
    layout.ranks.push_back(rank);
  }
  return layout;
}

Layout of_reduce_scatter(const Case& c) {
  Layout layout;
  layout.counts = parts_of(c, 0);
  const std::vector<std::size_t> starts = starts_of(layout.counts);
  for (std::size_t r = 0; r < layout.counts.size(); ++r) {
    RankLayout rank{starts.back(), layout.counts[r], 0, c.in_place ? starts[r] : 0, c.in_place, {}};
    rank.segments.push_back({0, layout.counts[r], Segment::kCombination, starts[r]});
    layout.ranks.push_back(rank);
  }
  return layout;
}

Layout of_all_to_all(const Case& c) {
  Layout layout;
  const auto world = static_cast<std::size_t>(c.world);
  layout.ranks.resize(world);
  for (std::size_t r = 0; r < world; ++r) {
    const std::vector<std::size_t> sent = parts_of(c, r);
    const std::vector<std::size_t> starts = starts_of(sent);
    layout.counts.insert(layout.counts.end(), sent.begin(), sent.end());
    layout.ranks[r].input_count = starts.back();
    for (std::size_t s = 0; s < world; ++s) {
      RankLayout& receiver = layout.ranks[s];
      receiver.segments.push_back({receiver.output_count, sent[s], static_cast<int>(r), starts[s]});
      receiver.output_count += sent[s];
    }
  }
  return layout;
}

}  // namespace

Layout layout_of(const Case& c) {
  switch (c.collective) {
    case Collective::kAllGather:
      return of_all_gather(c);
    case Collective::kReduceScatter:
      return of_reduce_scatter(c);
    case Collective::kAllToAll:
      return of_all_to_all(c);
    case Collective::kBarrier:
      return {std::vector<RankLayout>(static_cast<std::size_t>(c.world)), {}};
    default:
      return of_whole_buffers(c);
  }
}

}  // namespace tutti::conformance
