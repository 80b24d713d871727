// Memory that the ranks of one host share: processes map each other's segments, while threads
// share one address space.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "tensor/buffer_allocator.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/buffer.h"

namespace tutti {
namespace internal {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;
/// Offset of the first range in a rank's segment: one large page, not 0, because offset 0 means
/// that there is no range.
inline constexpr std::size_t kPlaceBegin = kLargePageBytes;
inline std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// A mapped segment of shared memory. Peers receive its descriptor over their local sockets, so a
/// killed process leaves nothing behind.
class Segment {
 public:
  /// Creates a segment. None of its pages is present in memory yet; see populate(). Throws
  /// kResourceExhausted with the system's reason.
  explicit Segment(std::size_t num_bytes);
  /// Maps a segment of `peer`. Throws kDataLoss naming the peer if the file is not a segment.
  Segment(FileDescriptor file, const std::string& peer);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::size_t num_bytes() const { return num_bytes_; }
  const FileDescriptor& file() const { return file_; }
  std::byte* data() const { return data_; }

  /// Allocates the memory of a range of the file, so that accesses cannot fail. Uses large pages if
  /// the system supports them; all processes that map the file share these pages. Throws
  /// kResourceExhausted.
  void populate(std::size_t offset, std::size_t bytes);
  /// Returns a range to the system; it reads as zeros afterwards.
  void discard(std::size_t offset, std::size_t bytes) noexcept;
  /// Replaces a range with private memory that has the same contents.
  void detach(std::size_t offset, std::size_t bytes) noexcept;

 private:
  void map();
  /// Allocates large pages wherever an entire one fits into the range; populate() allocates small
  /// pages for the remaining bytes.
  void populate_large(std::size_t offset, std::size_t bytes) noexcept;

  FileDescriptor file_;
  std::size_t num_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace internal

/// Memory shared by the ranks of one host. Every rank has a *place*: a range of memory that is
/// mapped by all ranks of the transport. Each rank maps it at a different address, so messages
/// contain offsets from its start. If the ranks are threads, each rank's place is the entire memory
/// of the process, at offset 0. Thread-safe.
class HostMemory {
 public:
  /// Creates the memory for ranks that are processes. segments[r] is the segment of rank r.
  HostMemory(int rank, std::vector<std::shared_ptr<internal::Segment>> segments);
  /// Creates the memory for ranks that are threads of this process; they share this object.
  HostMemory() = default;

  int rank() const { return rank_; }
  bool is_of_threads() const { return segments_.empty(); }
  /// Returns the address of a rank's memory in this process; valid while this object exists.
  std::byte* place(int rank) const { return is_of_threads() ? nullptr : segment(rank).data(); }
  std::size_t place_bytes(int rank) const {
    return is_of_threads() ? SIZE_MAX : segment(rank).num_bytes();
  }

  enum class Use {
    kBuffers,  // buffers of the program
    kWindow,   // window or slots of a group
  };
  /// Allocates `bytes` zero-filled bytes; returns their offset in this rank's place. All pages are
  /// populated, so accesses cannot fail. In a segment, uses the first free range that is large
  /// enough; the offset is a multiple of the page size, or of the large page size if `bytes` is at
  /// least that size. Throws kResourceExhausted if there is not enough memory.
  std::size_t allocate(std::size_t bytes, Use use);
  void release(std::size_t offset) noexcept;
  /// Releases the ranges once `may_go()` returns true; this and later calls of allocate() and
  /// release_when() check it. Never blocks.
  void release_when(std::vector<std::size_t> offsets, std::function<bool()> may_go);

  /// Replaces this rank's buffers in shared memory with private memory that has the same content
  /// and addresses, so later writes by peers do not affect it. Called by a rank that leaves a
  /// collective early.
  void detach() noexcept;
  bool is_detached() const { return is_detached_.load(); }

  /// Returns the offset of `data` within this rank's memory; nullopt if it is elsewhere or
  /// detached.
  std::optional<std::size_t> offset_of(const std::byte* data, std::size_t bytes) const;

 private:
  struct Range {
    std::size_t bytes = 0;
    Use use = Use::kBuffers;
  };

  internal::Segment& segment(int rank) const { return *segments_[static_cast<std::size_t>(rank)]; }
  internal::Segment& own() const { return segment(rank_); }
  void release_locked(std::size_t offset) TUTTI_REQUIRES(mutex_);
  void release_waiting() TUTTI_REQUIRES(mutex_);
  std::size_t take(std::size_t bytes, std::size_t unit) TUTTI_REQUIRES(mutex_);
  void give_back(std::size_t offset, std::size_t bytes) TUTTI_REQUIRES(mutex_);

  const int rank_ = 0;
  const std::vector<std::shared_ptr<internal::Segment>> segments_ = {};
  std::atomic<bool> is_detached_{false};
  Mutex mutex_;
  std::map<std::size_t, std::size_t> free_ TUTTI_GUARDED_BY(mutex_);  // begin -> length
  std::map<std::size_t, Range> taken_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::size_t, BufferRef> of_threads_ TUTTI_GUARDED_BY(mutex_);  // keyed by address
  std::vector<std::pair<std::vector<std::size_t>, std::function<bool()>>> waiting_
      TUTTI_GUARDED_BY(mutex_);
};

/// Returns an allocator of buffers in this rank's segment, which collectives access without a copy;
/// nullptr if ranks are threads, which can access all memory.
std::shared_ptr<BufferAllocator> allocator_in(std::shared_ptr<HostMemory> memory);

}  // namespace tutti
