// A rank's segment: a file without a name that it and all ranks of its host map, with a ring of
// bytes to each of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/cluster/net/socket.h"

namespace tutti {
class HostMemory;
class Interruption;
}  // namespace tutti

namespace tutti::internal {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;
inline std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// Of a stream of bytes from one process to another. Lies in the writer's segment, in front of the
/// ring's bytes; zeros are an empty ring. Counters never go back.
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

/// What lies where. Behind a first page lie the rings, one per rank (each with its control), then
/// the place (HostMemory).
struct SegmentLayout {
  std::uint64_t num_bytes = 0;   // of the whole
  std::uint64_t ring_bytes = 0;  // a power of two
  std::int32_t rank = 0;         // the owner
  std::int32_t size = 0;

  std::size_t ring_offset(int peer) const;
  std::size_t place_offset() const;
};

/// A mapped segment. Peers learn of it by its descriptor, so there is nothing that a killed process
/// could leave behind.
class Segment {
 public:
  /// A new one; the rings are present, the place is not. Throws kResourceExhausted with the
  /// system's reason.
  explicit Segment(const SegmentLayout& layout);
  /// A peer's, in its file.
  Segment(const SegmentLayout& layout, FileDescriptor file);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const SegmentLayout& layout() const { return layout_; }
  const FileDescriptor& file() const { return file_; }
  std::byte* data() const { return data_; }
  Ring ring_to(int peer) const;

  /// Makes a range of the file present: afterwards touching it cannot fail. Where the system can,
  /// in large pages, which all who map the file have then. Throws kResourceExhausted.
  void populate(std::size_t offset, std::size_t bytes);
  /// Gives a range back to the system; it reads as zeros afterwards.
  void discard(std::size_t offset, std::size_t bytes) noexcept;
  /// Private memory with the same content stands in for a range from now on.
  void detach(std::size_t offset, std::size_t bytes) noexcept;

 private:
  void map();
  /// Large pages where whole ones fit; what it leaves out, populate() makes of small ones.
  void populate_large(std::size_t offset, std::size_t bytes) noexcept;

  const SegmentLayout layout_;
  FileDescriptor file_;
  std::byte* data_ = nullptr;
};

/// Sends the descriptor of `own`, and how long its rings are, over a new local connection.
void send_segment(const FileDescriptor& socket, const Segment& own, const std::string& peer);
/// The segment that rank `peer_rank` of `size` has sent. Throws kDeadlineExceeded and kUnavailable
/// naming the peer, kDataLoss for sizes that do not fit each other, and what `interruption` says;
/// may be null.
std::shared_ptr<Segment> receive_segment(const FileDescriptor& socket, int peer_rank, int size,
                                         const std::string& peer, TimePoint deadline,
                                         const Interruption* interruption = nullptr);

/// The places of all ranks of a host. `segments` by rank.
std::shared_ptr<HostMemory> shm_memory(int rank, std::vector<std::shared_ptr<Segment>> segments);

}  // namespace tutti::internal
