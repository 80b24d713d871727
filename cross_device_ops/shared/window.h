// What a rank shows the ranks of its host: the layout of memory that their processes map.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tutti/cross_device_ops/collective_header.h"
#include "tutti/cross_device_ops/shared/part_lanes.h"
#include "tutti/cross_device_ops/shared/process_wait.h"

namespace tutti::internal {

/// What a rank brings to a round. Numbers of addresses are offsets in the rank's place.
struct WindowSeat {
  static constexpr std::uint32_t kIsInline = 1;   // the inputs are copied behind the seat
  static constexpr std::uint32_t kIsShared = 2;   // all buffers lie in the place
  static constexpr std::uint32_t kIsInPlace = 4;  // outputs are the inputs
  // What others wait for and read in every call lies in one cache line.
  alignas(64) std::atomic<std::uint64_t> arrived{0};  // the round; written last
  std::uint64_t fingerprint = 0;
  std::uint32_t flags = 0;
  alignas(64) CollectiveHeader header;
};

/// How far a rank is; each number its own cache line, for others wait for it.
struct WindowProgress {
  alignas(64) std::atomic<std::uint64_t> finished{0};  // the round with parts whose own is done
  alignas(64) std::atomic<std::uint64_t> sent{0};      // steps of staged reductions, see below
  alignas(64) std::atomic<std::uint64_t> reduced{0};
  alignas(64) std::atomic<std::uint64_t> collected{0};
  alignas(64) std::atomic<std::uint32_t> has_left{0};  // nobody will look at the window again
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
  std::size_t seats, counts, offsets, inline_data, slots, num_bytes;  // where they begin; the whole
};

/// One member's window in this process's addresses. Seats, tables and inline data are twofold, for
/// a rank may sit down for the next round before all have left this one.
class Window {
 public:
  Window(std::byte* start, std::byte* place, const WindowLayout& layout)
      : start_(start), place_(place), layout_(&layout) {}

  WindowBoard& board() const { return *at<WindowBoard>(0); }
  WindowProgress& progress() const { return *at<WindowProgress>(sizeof(WindowBoard)); }
  WindowSeat& seat(std::uint64_t round) const { return at<WindowSeat>(layout_->seats)[round % 2]; }
  /// counts and receive_counts, [2 * members].
  std::uint64_t* counts(std::uint64_t round) const {
    return at<std::uint64_t>(layout_->counts) + round % 2 * 2 * layout_->size;
  }
  /// Of inputs, then of outputs, [2 * kMostBuffers].
  std::uint64_t* offsets(std::uint64_t round) const {
    return at<std::uint64_t>(layout_->offsets) + round % 2 * 2 * WindowLayout::kMostBuffers;
  }
  std::byte* inline_data(std::uint64_t round) const {
    return start_ + layout_->inline_data + round % 2 * WindowLayout::kInlineBytes;
  }
  /// What this member contributes to member `to`'s slice in a step; `to` itself: its results.
  std::byte* slot(std::size_t to, std::uint64_t step) const {
    return start_ + layout_->slots +
           (to * WindowLayout::kDepth + step % WindowLayout::kDepth) * layout_->slot_bytes;
  }
  std::byte* in_place_of_rank(std::uint64_t offset) const { return place_ + offset; }

 private:
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(start_ + offset);
  }
  std::byte* start_;
  std::byte* place_;
  const WindowLayout* layout_;
};

}  // namespace tutti::internal
