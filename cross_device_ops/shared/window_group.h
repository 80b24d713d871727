// Where ranks meet that are threads of a process or processes of one host, and the layout of the
// memory in which they do.
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

/// Hands out the parts of each round once. *Lane* l has the parts from l * parts / lanes up to the
/// next lane's first, and a thread takes those of its core's lane first: a part that is done on the
/// same core round after round finds its memory in that core's cache. Zeros at first, so it may lie
/// in memory that processes share. All calls give equal numbers of parts and lanes. Threads: any.
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

/// What a rank brings to a round. Numbers of addresses are offsets in the rank's place.
struct WindowSeat {
  static constexpr std::uint32_t kIsInline = 1;   // the inputs are copied behind the seat
  static constexpr std::uint32_t kIsShared = 2;   // all buffers lie in the place
  static constexpr std::uint32_t kIsInPlace = 4;  // outputs are the inputs
  // What others wait for and read in every call lies in one cache line.
  alignas(64) std::atomic<std::uint64_t> arrived{0};  // the round; written last
  std::uint64_t fingerprint = 0;
  std::uint32_t flags = 0;
  std::uint64_t first_input = 0;  // offsets of a single buffer are all that others read
  std::uint64_t first_output = 0;
  alignas(64) CollectiveHeader header;
};

/// How far a rank is; each number its own cache line, for others wait for it.
struct WindowProgress {
  alignas(64) std::atomic<std::uint64_t> finished{0};  // the round with parts whose own is done
  alignas(64) std::atomic<std::uint64_t> sent{0};      // steps of staged reductions, see below
  alignas(64) std::atomic<std::uint64_t> reduced{0};
  alignas(64) std::atomic<std::uint64_t> collected{0};
  alignas(64) std::atomic<std::size_t> num_left{0};  // members that will not look at it again
  std::atomic<std::uint64_t> slots{0};               // where they are in the place; 0: not made
};

/// Of the group; that of member 0 counts.
struct WindowBoard {
  static constexpr std::uint32_t kOpen = 0;
  static constexpr std::uint32_t kClosed = 0x80000000u;  // below: 1 + the member that is closing
  static constexpr std::size_t kTextBytes = 3000;
  alignas(64) std::atomic<std::uint32_t> state{kOpen};
  std::uint32_t code = 0;
  std::atomic<std::uint64_t> first_failed_round{0};
  std::array<char, kTextBytes> text{};
  alignas(64) WaitWord wait;
  alignas(64) std::atomic<std::uint64_t> arrivals{0};  // where the group shares parts
  PartLanes parts_taken;
  alignas(64) std::atomic<std::uint64_t> parts_done{0};
};

/// Where the parts of one member's window are. A value; equal on all members.
struct WindowLayout {
  explicit WindowLayout(int num_members);

  /// Of buffers whose offsets are shown, inputs and outputs each; longer lists are staged.
  static constexpr std::size_t kMostBuffers = 512;
  static constexpr std::size_t kInlineBytes = std::size_t{64} << 10;
  /// Rounds of slots of a staged reduction.
  static constexpr std::size_t kDepth = 4;

  std::size_t size;        // members
  std::size_t slot_bytes;  // of a staged reduction: one step of one slice
  std::size_t seats, counts, offsets, inline_data, num_bytes;  // where they begin; the whole
  /// Beside the window, for most groups never need them.
  std::size_t bytes_of_slots() const { return size * kDepth * slot_bytes; }
};

/// One member's window in this process's addresses. Seats, tables and inline data are twofold, for
/// a rank may sit down for the next round before all have left this one.
class Window {
 public:
  Window(std::size_t offset, std::byte* place, const WindowLayout& layout)
      : place_(place), start_(in_place_of_rank(offset)), layout_(&layout) {}
  /// Makes what stands in it, before anybody else looks.
  void make() const;

  WindowBoard& board() const { return *at<WindowBoard>(0); }
  WindowProgress& progress() const { return *at<WindowProgress>(sizeof(WindowBoard)); }
  WindowSeat& seat(std::uint64_t round) const { return at<WindowSeat>(layout_->seats)[round % 2]; }
  /// counts and receive_counts, [2 * members].
  std::uint64_t* counts(std::uint64_t round) const {
    return at<std::uint64_t>(layout_->counts) + round % 2 * 2 * layout_->size;
  }
  /// Of inputs, then of outputs, [2 * kMostBuffers]; those of the first buffers stand in the seat.
  std::uint64_t* offsets(std::uint64_t round) const {
    return at<std::uint64_t>(layout_->offsets) + round % 2 * 2 * WindowLayout::kMostBuffers;
  }
  std::byte* inline_data(std::uint64_t round) const {
    return start_ + layout_->inline_data + round % 2 * WindowLayout::kInlineBytes;
  }
  /// What this member contributes to member `to`'s slice in a step; `to` itself: its results.
  std::byte* slot(std::size_t to, std::uint64_t step) const {
    return in_place_of_rank(progress().slots.load()) +
           (to * WindowLayout::kDepth + step % WindowLayout::kDepth) * layout_->slot_bytes;
  }
  /// As numbers, for the place of a thread begins at 0.
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

/// One member's side. A *round* is one collective: every rank arrives, showing its call; then it
/// may read what the others show until it arrives at the next round but one. Either all ranks see a
/// round as complete, or none does, but for ranks that die within it: one that gives up closes the
/// group for this and all later rounds, unless the last one arrived before. Threads: close() any,
/// the rest one.
class WindowGroup {
 public:
  WindowGroup(RankLink link, std::shared_ptr<HostMemory> memory);
  /// Says that this rank has left, and why if its transport was aborted.
  ~WindowGroup();
  WindowGroup(const WindowGroup&) = delete;
  WindowGroup& operator=(const WindowGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint64_t round() const { return round_; }
  const WindowLayout& layout() const { return layout_; }
  bool of_threads() const { return of_threads_; }
  /// Where others find this memory; nothing: they cannot reach it.
  std::optional<std::uint64_t> offset_of(const std::byte* data, std::size_t bytes) const {
    if (of_threads_) return reinterpret_cast<std::uintptr_t>(data);
    return memory_->offset_of(data, bytes);
  }
  /// This rank's window before it arrives, and everybody's afterwards.
  const Window& window(int member) const { return windows_[static_cast<std::size_t>(member)]; }
  const Window& own() const { return window(rank()); }
  /// With more processes than cores any rank may do any part.
  bool shares_parts() const { return shares_parts_; }

  /// The first time it makes this rank's window and finds the others'.
  void begin_round(const CollectiveHeader& header, TimePoint deadline);
  /// After the seat was filled: waits for all. Throws the reason for which the group is closed, or
  /// closes it with kDeadlineExceeded naming the ranks that did not come, kUnavailable or kAborted.
  void arrive(const CollectiveHeader& header, TimePoint deadline);
  /// Makes the slots of this rank's window, if there are none. Throws kResourceExhausted.
  void need_slots();
  /// Waits for something that peers do in this round, which fails when one of them dies, and closes
  /// the group.
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

  /// Before the parts of a round that has them, on all ranks.
  void begin_parts() { ++part_round_; }
  /// A part that nobody has taken; -1: none is left.
  int take_part();
  void finish_part();
  /// Waits until all parts are done: never long, for nothing in a part waits; threads always do.
  /// When that fails, buffers in HostMemory are detached: a process that was stopped may go on with
  /// its part one day.
  void leave(TimePoint deadline);

  /// Ends arrivals, running and later, with this reason. The first one counts.
  void close(const Error& reason) noexcept { close_from(reason, std::nullopt); }
  /// Why the group is closed, if it is: by a member that has left, too. Beside all else, once there
  /// was a round.
  std::optional<Error> failure() { return is_closed() ? std::optional(reason()) : std::nullopt; }

 private:
  void connect(const CollectiveHeader& header, TimePoint deadline);
  struct Introduction {
    std::uint64_t offset = 0;               // of the window in the place
    std::array<std::uint64_t, 16> cores{};  // that the process may use, a bit each
  };
  bool all_arrived(std::uint64_t round) const;
  /// Counts up what each member does once a round; returns true for the last of the round.
  bool is_last(std::atomic<std::uint64_t>& count, std::uint64_t round) const {
    return count.fetch_add(1) + 1 == round * static_cast<std::uint64_t>(size());
  }
  std::string missing(std::uint64_t round) const;
  bool is_closed() const { return board_ != nullptr && board_->state.load() != WindowBoard::kOpen; }
  bool has_failed(std::uint64_t round) const {
    return board_->state.load() == WindowBoard::kClosed &&
           board_->first_failed_round.load() <= round;
  }
  /// This round cannot be completed: a peer has died or stopped in the middle of it.
  void close_broken(const Error& reason) noexcept;
  void close_from(const Error& reason, std::optional<std::uint64_t> first_failed) noexcept;
  void close_late(const char* what) noexcept;
  Error reason();
  /// Throws when the transport was aborted or a member is gone.
  void probe() const;
  Error why_it_leaves() const;

  const RankLink link_;
  const std::shared_ptr<HostMemory> memory_;
  const bool of_threads_;
  const int rank_, size_;
  const WindowLayout layout_;
  bool shares_parts_ = false;
  int num_lanes_ = 1;
  std::uint64_t round_ = 0;
  std::uint64_t part_round_ = 0;  // rounds with parts are told apart by how many were taken
  std::size_t own_offset_ = 0;
  bool is_connected_ = false;
  std::vector<Window> windows_;
  WindowBoard* board_ = nullptr;
  std::optional<ProcessWait> wait_;
  std::vector<std::unique_ptr<Work>> probes_;  // end when the member does

  Mutex mutex_;
  std::optional<Error> own_reason_ TUTTI_GUARDED_BY(mutex_);  // where the board has none
};

}  // namespace tutti::internal
