// A stream of bytes from one process to another through memory that both map.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti::internal {

/// Lies in the writer's segment, in front of the ring's bytes; zeros are an empty ring. Counters
/// never go back.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint32_t> reader_sleeps{0};  // wants the bell when bytes come
  std::atomic<std::uint32_t> is_closed{0};      // the writer has closed it
  alignas(64) std::atomic<std::uint64_t> taken{0};
  std::atomic<std::uint32_t> writer_sleeps{0};  // wants the bell when there is room
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
inline constexpr std::size_t kRingControlBytes = 4096;
static_assert(sizeof(RingControl) <= kRingControlBytes);

/// One side of a ring; its length is a power of two. One thread at a time.
class Ring {
 public:
  Ring(RingControl* control, std::byte* bytes, std::size_t num_bytes)
      : control_(control), bytes_(bytes), num_bytes_(num_bytes) {}

  /// The writer's: copies as much as there is room for. In pieces, each visible at once, so that
  /// the other side copies at the same time.
  std::size_t write(std::span<const iovec> parts);
  /// The reader's: copies what is there. Throws kDataLoss for counters that cannot be.
  std::size_t read(std::span<const iovec> places);

  bool has_bytes() const { return control_->written.load() != control_->taken.load(); }
  bool has_room() const { return control_->written.load() - control_->taken.load() < num_bytes_; }
  RingControl& control() const { return *control_; }

 private:
  void copy_in(std::uint64_t at, const std::byte* from, std::size_t count);
  void copy_out(std::uint64_t at, std::byte* to, std::size_t count) const;

  RingControl* control_;
  std::byte* bytes_;
  std::size_t num_bytes_;
};

}  // namespace tutti::internal
