// A rank's segment: a file without a name that it and all ranks of its host map.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tutti/cluster/net/ring.h"
#include "tutti/cluster/net/socket.h"

namespace tutti::internal {

/// What stands at the start of a segment, and is said of it when it is handed over. Then come the
/// rings, one per rank (each with its control), then the place (HostMemory).
struct SegmentLayout {
  std::uint64_t num_bytes = 0;   // of the whole
  std::uint64_t ring_bytes = 0;  // a power of two
  std::int32_t rank = 0;         // the owner
  std::int32_t size = 0;
  bool operator==(const SegmentLayout&) const = default;

  std::size_t ring_offset(int peer) const;
  std::size_t place_offset() const;
};
inline constexpr std::size_t kLayoutBytes = 48;
std::array<std::byte, kLayoutBytes> encode(const SegmentLayout& layout);
/// Throws kDataLoss for what is none: magic, version, sizes that do not fit each other.
SegmentLayout decode_layout(std::span<const std::byte, kLayoutBytes> bytes);

/// A mapped segment. Peers learn of it by its descriptor, so there is nothing that a killed process
/// could leave behind.
class Segment {
 public:
  /// A new one; the rings are present, the place is not. `folder`: where the file would lie if it
  /// had a name; empty: nowhere (memfd). Throws kResourceExhausted with the system's reason.
  Segment(const SegmentLayout& layout, const std::string& folder);
  /// A peer's. Throws kDataLoss when the file is not what `layout` says.
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
  const std::string folder_;
  FileDescriptor file_;
  std::byte* data_ = nullptr;
};

}  // namespace tutti::internal
