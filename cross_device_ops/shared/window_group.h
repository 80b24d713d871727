// Synchronisation of ranks that are threads of one process or processes on one host, and the layout
// of the shared memory used for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cross_device_ops/algorithms/rank_link.h"
#include "cross_device_ops/collective_header.h"
#include "cross_device_ops/shared/host_memory.h"
#include "cross_device_ops/shared/process_wait.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Assigns each part of a round to one rank. *Lane* l contains the parts from l * parts / lanes up
/// to the next lane's first part. A thread first takes parts from its core's lane, because a part
/// that runs on the same core in every round finds its memory in that core's cache. The state is
/// initially zero, so processes may share it. All calls must pass equal `parts` and `lanes`.
/// Thread-safe.
class PartLanes {
 public:
  static constexpr int kMost = 16;
  static int num_lanes(int parts, int cores) {
    return std::clamp(std::min(parts, cores), 1, kMost);
  }

  /// Assigns a part of the round to the caller and returns its index, or -1 if none is left. Rounds
  /// are numbered from 1.
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
    std::atomic<std::uint64_t> taken{0};  // total number of parts taken, over all rounds
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
      // Odd rounds assign parts in reverse order, because the last parts of the previous round are
      // still in the cache.
      return first + static_cast<int>(round % 2 == 0 ? place : size - 1 - place);
    }
    return -1;
  }

  std::array<Lane, kMost> lanes_;
};

/// Per-rank slot for one round in shared memory. Addresses are offsets into the rank's memory.
struct WindowEntry {
  static constexpr std::uint32_t kIsInline = 1;   // inputs are copied to the window
  static constexpr std::uint32_t kIsShared = 2;   // all buffers are in shared memory
  static constexpr std::uint32_t kIsInPlace = 4;  // outputs are the inputs
  // One cache line holds everything that other ranks wait for and read in every call.
  alignas(64) std::atomic<std::uint64_t> arrived{0};  // number of the round; written last
  std::uint64_t fingerprint = 0;
  std::uint32_t flags = 0;
  std::uint64_t first_input = 0;  // offset of inputs[0]; see offsets() for further inputs
  std::uint64_t first_output = 0;
  alignas(64) CollectiveHeader header;
};

/// Progress of a rank; each number has its own cache line, because other ranks wait for it.
struct WindowProgress {
  alignas(64) std::atomic<std::uint64_t> finished{0};  // number of finished rounds that had parts
  alignas(64) std::atomic<std::uint64_t> sent{0};      // number of steps; see StagedReduction
  alignas(64) std::atomic<std::uint64_t> reduced{0};
  alignas(64) std::atomic<std::uint64_t> collected{0};
  alignas(64) std::atomic<std::size_t> num_left{0};  // members that no longer use the window
  std::atomic<std::uint64_t> slots{0};               // offset in this rank's memory; 0: no slots
};

/// Header of the group's shared state. Each window has one; only member 0's is used.
struct WindowHeader {
  static constexpr std::uint32_t kOpen = 0;
  // A value between kOpen and kClosed is 1 + the index of the member that is closing the group.
  static constexpr std::uint32_t kClosed = 0x80000000u;
  static constexpr std::size_t kTextBytes = 3000;
  alignas(64) std::atomic<std::uint32_t> state{kOpen};
  std::uint32_t code = 0;
  std::atomic<std::uint64_t> first_failed_round{0};
  std::array<char, kTextBytes> text{};
  alignas(64) WaitWord wait;
  alignas(64) std::atomic<std::uint64_t> arrivals{0};  // used if shares_parts()
  PartLanes parts_taken;
  alignas(64) std::atomic<std::uint64_t> parts_done{0};
};

/// Layout of one member's window. A value type; equal on all members.
struct WindowLayout {
  explicit WindowLayout(int num_members);

  /// Maximum number of inputs, and likewise of outputs, whose offsets can be published. Calls with
  /// longer lists are staged.
  static constexpr std::size_t kMostBuffers = 512;
  static constexpr std::size_t kInlineBytes = std::size_t{64} << 10;
  /// Number of slots per slice of a staged reduction.
  static constexpr std::size_t kDepth = 4;

  std::size_t size;        // members
  std::size_t slot_bytes;  // size of a staged reduction's slot: one step of one slice
  std::size_t entries, counts, offsets, inline_data;  // offsets in the window
  std::size_t num_bytes;                              // size of the window
  /// Size of the slots, which are allocated separately, because most groups never need them.
  std::size_t bytes_of_slots() const { return size * kDepth * slot_bytes; }
};

/// One member's window, at the addresses where this process maps it. Entries, tables and inline
/// data are double-buffered, because a rank may enter the next round before all ranks have left
/// this one.
class Window {
 public:
  Window(std::size_t offset, std::byte* place, const WindowLayout& layout)
      : place_(place), start_(in_place_of_rank(offset)), layout_(&layout) {}
  /// Constructs the window's content. Must be called before any other rank accesses it.
  void make() const;

  WindowHeader& shared_header() const { return *at<WindowHeader>(0); }
  WindowProgress& progress() const { return *at<WindowProgress>(sizeof(WindowHeader)); }
  WindowEntry& entry(std::uint64_t round) const {
    return at<WindowEntry>(layout_->entries)[round % 2];
  }
  /// Returns a pointer to 2 * members numbers: the counts, then the receive_counts.
  std::uint64_t* counts(std::uint64_t round) const {
    return at<std::uint64_t>(layout_->counts) + round % 2 * 2 * layout_->size;
  }
  /// Returns [2 * kMostBuffers] offsets, first of inputs, then of outputs. The offsets of the first
  /// input and the first output are stored in the call's entry instead.
  std::uint64_t* offsets(std::uint64_t round) const {
    return at<std::uint64_t>(layout_->offsets) + round % 2 * 2 * WindowLayout::kMostBuffers;
  }
  std::byte* inline_data(std::uint64_t round) const {
    return start_ + layout_->inline_data + round % 2 * WindowLayout::kInlineBytes;
  }
  /// Returns the slot for this member's contribution to the slice of member `to`. If `to` is this
  /// member, returns the slot for this member's results.
  std::byte* slot(std::size_t to, std::uint64_t step) const {
    return in_place_of_rank(progress().slots.load()) +
           (to * WindowLayout::kDepth + step % WindowLayout::kDepth) * layout_->slot_bytes;
  }
  /// Adds the offset as an integer, because place_ is null if the ranks are threads.
  std::byte* in_place_of_rank(std::uint64_t offset) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(place_) + offset);
  }

 private:
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(start_ + offset);
  }
  std::byte* place_;
  std::byte* start_;
  const WindowLayout* layout_;
};

/// One member's view of a group. A *round* is one collective: every rank publishes its call and
/// arrives. Once all ranks have arrived, each may read the other ranks' data until it arrives at
/// the next round. Either all ranks see a round as complete or none does, except ranks that die
/// during the round. A rank that gives up closes the group for this and all later rounds, unless
/// the last rank has already arrived. Not thread-safe, except close() and failure().
class WindowGroup {
 public:
  WindowGroup(RankLink link, std::shared_ptr<HostMemory> memory);
  /// Publishes that this rank has left, with the reason if its transport was aborted.
  ~WindowGroup();
  WindowGroup(const WindowGroup&) = delete;
  WindowGroup& operator=(const WindowGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint64_t round() const { return round_; }
  const WindowLayout& layout() const { return layout_; }
  bool of_threads() const { return of_threads_; }
  /// Stores the offset at which other ranks access this memory in `offset`. Returns false if they
  /// cannot. A std::optional would stall the processor for each buffer of a call.
  bool find_offset(const std::byte* data, std::size_t bytes, std::uint64_t& offset) const {
    if (of_threads_) {
      offset = reinterpret_cast<std::uintptr_t>(data);
      return true;
    }
    const std::optional<std::size_t> found = memory_->offset_of(data, bytes);
    if (found) offset = *found;
    return found.has_value();
  }
  /// Returns a member's window. Before all ranks have arrived, only this rank's may be used.
  const Window& window(int member) const { return windows_[static_cast<std::size_t>(member)]; }
  const Window& own() const { return window(rank()); }
  /// Returns true if any rank may process any part, because there are more processes than cores.
  bool shares_parts() const { return shares_parts_; }

  /// Starts a round. The first call creates this rank's window and finds the other ranks' windows.
  void begin_round(const CollectiveHeader& header, TimePoint deadline);
  /// Waits for all ranks. Requires: the caller has filled in its entry. If the group is closed,
  /// throws the error that closed it. On a failure, closes the group with kUnavailable or kAborted;
  /// on a timeout, with kDeadlineExceeded, naming the ranks that did not join.
  void arrive(const CollectiveHeader& header, TimePoint deadline);
  /// Allocates the slots of this rank's window if it has none. Throws kResourceExhausted if that
  /// fails.
  void need_slots();
  /// Waits for peers' progress in this round; if a peer dies, closes the group and throws.
  template <class Ready>
  void wait_for(const char* what, TimePoint deadline, const Ready& ready) {
    const auto ready_or_failed = [&] { return ready() || has_failed(round_); };
    try {
      const bool in_time = wait_->wait_until(deadline, ready_or_failed, [this] { probe(); });
      if (ready()) return;
      if (!in_time) close_late(what);
    } catch (const Error& error) {
      close_broken(error);
    }
    throw reason();
  }
  void notify() noexcept { wait_->notify(); }

  /// Begins a round that is processed in parts. All ranks must call it.
  void begin_parts() { ++part_round_; }
  /// Returns an unassigned part, or -1 if there is none.
  int take_part();
  void finish_part();
  /// Waits until all parts are processed. The wait is short, because processing a part never
  /// blocks. Ranks that are threads wait without a deadline. On failure, buffers in HostMemory are
  /// detached, because a suspended process may resume its part later.
  void leave(TimePoint deadline);

  /// Ends pending and later calls of arrive() with this reason. Only the first reason is kept.
  void close(const Error& reason) noexcept { close_from(reason, std::nullopt); }
  /// Returns the reason why the group is closed (a member that left may have closed it); nullopt if
  /// it is open. May be called concurrently with the other functions, after the first round.
  std::optional<Error> failure() { return is_closed() ? std::optional(reason()) : std::nullopt; }

 private:
  void connect(const CollectiveHeader& header, TimePoint deadline);
  struct Introduction {
    std::uint64_t offset = 0;               // offset of the window in this rank's memory
    std::array<std::uint64_t, 16> cores{};  // bit mask of the process's allowed cores
  };
  bool all_arrived(std::uint64_t round) const;
  /// Counts an event that occurs once per member and round; returns true for the last one of the
  /// round.
  bool is_last(std::atomic<std::uint64_t>& count, std::uint64_t round) const {
    return count.fetch_add(1) + 1 == round * static_cast<std::uint64_t>(size());
  }
  std::string missing(std::uint64_t round) const;
  bool is_closed() const {
    return shared_header_ != nullptr && shared_header_->state.load() != WindowHeader::kOpen;
  }
  bool has_failed(std::uint64_t round) const {
    return shared_header_->state.load() == WindowHeader::kClosed &&
           shared_header_->first_failed_round.load() <= round;
  }
  /// Closes the group in a round that cannot complete because a peer died or stopped.
  void close_broken(const Error& reason) noexcept;
  void close_from(const Error& reason, std::optional<std::uint64_t> first_failed) noexcept;
  void close_late(const char* what) noexcept;
  Error reason();
  /// Throws if the transport was aborted or a member exited.
  void probe() const;
  Error reason_to_leave() const;

  const RankLink link_;
  const std::shared_ptr<HostMemory> memory_;
  const bool of_threads_;
  const int rank_, size_;
  const WindowLayout layout_;
  bool shares_parts_ = false;
  int num_lanes_ = 1;
  std::uint64_t round_ = 0;
  std::uint64_t part_round_ = 0;  // number of begin_parts() calls so far
  std::size_t own_offset_ = 0;
  bool is_connected_ = false;
  std::vector<Window> windows_;
  WindowHeader* shared_header_ = nullptr;
  std::optional<ProcessWait> wait_;
  std::vector<std::unique_ptr<Work>> probes_;  // receives from peers; each ends when its peer exits

  Mutex mutex_;
  std::optional<Error> own_reason_ TUTTI_GUARDED_BY(mutex_);  // used if the header has no reason
};

}  // namespace tutti::internal
