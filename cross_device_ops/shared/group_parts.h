// The parts of a collective that ranks do on each other's memory: what each is, and which rank does
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/cross_device_ops/collective.h"

namespace tutti::internal {

class WindowCalls;

/// A call's buffers, one after the other, are its *elements*. *Part* r of a reduction of n elements
/// is [n * r / size, n * (r + 1) / size), cut at multiples of 64 elements; of a copy it is rank r's
/// result. Reductions go along the canonical tree. One thread.
class GroupParts {
 public:
  GroupParts(const WindowCalls& calls, int size);

  /// Reads and writes all ranks' memory where it lies. `call`: this rank's.
  void do_part(const CollectiveCall& call, int part);
  /// Of an all_to_all: what rank r sends to rank s is as long as s expects. Throws kInvalidArgument
  /// naming both.
  void require_counts_fit() const;

 private:
  void combine_part(const CollectiveCall& call, int part);
  void combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin, std::size_t end);
  void combine_for(const CollectiveCall& call, int rank);
  void gather_for(const CollectiveCall& call, int rank) const;
  void exchange_for(const CollectiveCall& call, int rank) const;

  const WindowCalls& calls_;
  const int size_;
  // Starts of a range in every rank's memory, kept to spare the allocation.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

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
