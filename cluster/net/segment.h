// A rank's segment: a file without a name that it and all ranks of its host map.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cluster/net/socket.h"

namespace tutti {
class HostMemory;
}  // namespace tutti

namespace tutti::internal {

inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kLargePageBytes = std::size_t{2} << 20;
/// Where the first range of a place may begin: a large page can lie there, and 0 stands for none.
inline constexpr std::size_t kPlaceBegin = kLargePageBytes;
inline std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/// A mapped segment. Peers get its descriptor over their local sockets, so there is nothing that a
/// killed process could leave behind.
class Segment {
 public:
  /// A new one of which nothing is present yet. Throws kResourceExhausted with the system's reason.
  explicit Segment(std::size_t num_bytes);
  /// `peer`'s. Throws kDataLoss naming it for what is no segment.
  Segment(FileDescriptor file, const std::string& peer);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::size_t num_bytes() const { return num_bytes_; }
  const FileDescriptor& file() const { return file_; }
  std::byte* data() const { return data_; }

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

  FileDescriptor file_;
  std::size_t num_bytes_ = 0;
  std::byte* data_ = nullptr;
};

/// The places of all ranks of a host. `segments` by rank.
std::shared_ptr<HostMemory> shm_memory(int rank, std::vector<std::shared_ptr<Segment>> segments);

}  // namespace tutti::internal
