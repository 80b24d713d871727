// Who does which part of a round when any rank may do any.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti::internal {

/// Hands out the parts of each round once. *Lane* l has the parts from l * parts / lanes up to the
/// next lane's first, and a thread takes those of its core's lane first: a part that is done on the
/// same core round after round finds its memory in that core's cache. Zeros at first, so it may lie
/// in memory that processes share; all calls say the same numbers of parts and lanes. Threads: any.
class PartLanes {
 public:
  static constexpr int kMost = 16;
  static int num_lanes(int parts, int cores) {
    return std::clamp(std::min(parts, cores), 1, kMost);
  }

  /// A part of the round (from 1) that nobody has taken; -1: none is left.
  int take(std::uint64_t round, int parts, int lanes) {
    const int own = std::max(::sched_getcpu(), 0) % lanes;
    for (int i = 0; i < lanes; ++i) {
      const int part = take_from((own + i) % lanes, round, parts, lanes);
      if (part >= 0) return part;
    }
    return -1;
  }
  /// Takes this very part, in a round in which every rank does so with its own.
  void take_part(int part, int parts, int lanes) {
    int lane = 0;
    while (first_part(lane + 1, parts, lanes) <= part) ++lane;
    ++lanes_[static_cast<std::size_t>(lane)].taken;
  }

 private:
  struct alignas(64) Lane {
    std::atomic<std::uint64_t> taken{0};  // in all rounds; tells them apart
  };

  static int first_part(int lane, int parts, int lanes) { return lane * parts / lanes; }
  int take_from(int lane, std::uint64_t round, int parts, int lanes) {
    const int first = first_part(lane, parts, lanes);
    const auto size = static_cast<std::uint64_t>(first_part(lane + 1, parts, lanes) - first);
    std::atomic<std::uint64_t>& taken = lanes_[static_cast<std::size_t>(lane)].taken;
    std::uint64_t next = taken.load();
    while (next < round * size) {
      if (!taken.compare_exchange_weak(next, next + 1)) continue;
      const std::uint64_t place = next % size;
      // Every other round backwards: what was done last is still in the cache.
      return first + static_cast<int>(round % 2 == 0 ? place : size - 1 - place);
    }
    return -1;
  }

  std::array<Lane, kMost> lanes_;
};

}  // namespace tutti::internal
