// Making, mapping and filling segments.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::internal {
namespace {

constexpr std::uint64_t kMagic = 0x4D685369747475;  // "uttiShM"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // of Linux 5.14; older ones refuse it
#endif
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // of Linux 6.1
#endif

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

[[noreturn]] void fail_memory(const std::string& folder, const char* what, std::size_t bytes) {
  const int reason = errno;
  fail(ErrorCode::kResourceExhausted, "shm: ", what, " ", bytes, " bytes of shared memory ",
       folder.empty() ? std::string("failed") : concat("in '", folder, "' failed"), ": ",
       std::strerror(reason),
       reason == EFBIG
           ? "; try a larger limit of file sizes (ulimit -f unlimited)"
           : "; try fewer ranks on this host, smaller rings, or a larger limit of memory");
}

FileDescriptor make_file(const std::string& folder) {
  if (folder.empty()) {
    return FileDescriptor(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  return FileDescriptor(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

}  // namespace

std::size_t SegmentLayout::ring_offset(int peer) const {
  return kPage + static_cast<std::size_t>(peer) * (kRingControlBytes + ring_bytes);
}

// Where a large page may begin.
std::size_t SegmentLayout::place_offset() const { return rounded_up(ring_offset(size), kHugePage); }

std::array<std::byte, kLayoutBytes> encode(const SegmentLayout& layout) {
  std::array<std::byte, kLayoutBytes> bytes{};
  const std::uint64_t numbers[] = {kMagic,
                                   kVersion,
                                   layout.num_bytes,
                                   layout.ring_bytes,
                                   static_cast<std::uint64_t>(layout.rank),
                                   static_cast<std::uint64_t>(layout.size)};
  static_assert(sizeof(numbers) == kLayoutBytes);
  std::memcpy(bytes.data(), numbers, sizeof(numbers));  // both sides are one machine
  return bytes;
}

SegmentLayout decode_layout(std::span<const std::byte, kLayoutBytes> bytes) {
  std::array<std::uint64_t, kLayoutBytes / 8> numbers{};
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  if (numbers[0] != kMagic || numbers[1] != kVersion) {
    fail(ErrorCode::kDataLoss, "shm: no segment of this version; expected ", kMagic, " and ",
         kVersion, ", got ", numbers[0], " and ", numbers[1]);
  }
  constexpr std::uint64_t kMostRanks = 4096, kMostRing = std::uint64_t{1} << 30;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 46;
  SegmentLayout layout;
  layout.num_bytes = numbers[2];
  layout.ring_bytes = numbers[3];
  const bool good = numbers[5] >= 1 && numbers[5] <= kMostRanks && numbers[4] < numbers[5] &&
                    std::has_single_bit(layout.ring_bytes) && layout.ring_bytes >= kPage &&
                    layout.ring_bytes <= kMostRing && layout.num_bytes <= kMost &&
                    layout.num_bytes % kPage == 0;
  if (good) {
    layout.rank = static_cast<std::int32_t>(numbers[4]);
    layout.size = static_cast<std::int32_t>(numbers[5]);
  }
  if (!good || layout.num_bytes < layout.place_offset()) {
    fail(ErrorCode::kDataLoss, "shm: a segment of ", layout.num_bytes, " bytes with rings of ",
         layout.ring_bytes, " of rank ", numbers[4], " of ", numbers[5],
         "; expected sizes that fit each other");
  }
  return layout;
}

Segment::Segment(const SegmentLayout& layout, const std::string& folder)
    : layout_(layout), folder_(folder), file_(make_file(folder)) {
  if (!file_.is_open()) fail_memory(folder, "making", layout.num_bytes);
  if (layout.num_bytes > file_size_limit()) {
    errno = EFBIG;  // where the system would end this process
    fail_memory(folder, "making", layout.num_bytes);
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(layout.num_bytes)) != 0) {
    fail_memory(folder, "making", layout.num_bytes);
  }
  // A file that shrank under a peer would kill it when it reads; one with a folder cannot be
  // sealed.
  if (folder.empty()) ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  map();
  try {
    populate(0, layout.ring_offset(layout.size));
  } catch (...) {
    ::munmap(data_, layout.num_bytes);
    throw;
  }
  const auto bytes = encode(layout);
  std::memcpy(data_, bytes.data(), bytes.size());
}

Segment::Segment(const SegmentLayout& layout, FileDescriptor file)
    : layout_(layout), file_(std::move(file)) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != layout.num_bytes) {
    fail(ErrorCode::kDataLoss, "shm: the segment of rank ", layout.rank, "; expected ",
         layout.num_bytes, " bytes, got ", status.st_size);
  }
  map();
  std::array<std::byte, kLayoutBytes> bytes{};
  std::memcpy(bytes.data(), data_, bytes.size());
  if (bytes == encode(layout)) return;
  ::munmap(data_, layout.num_bytes);
  fail(ErrorCode::kDataLoss, "shm: the segment of rank ", layout.rank, " is another one");
}

/// At a place where large pages of the file can be large pages of memory.
void Segment::map() {
  const std::size_t bytes = layout_.num_bytes;
  void* const reserved = ::mmap(nullptr, bytes + kHugePage, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail_memory(folder_, "mapping", bytes);
  auto* const first = static_cast<std::byte*>(reserved);
  const std::size_t skipped =
      (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
  if (skipped > 0) ::munmap(first, skipped);
  if (skipped < kHugePage) ::munmap(first + skipped + bytes, kHugePage - skipped);
  data_ = first + skipped;
  if (::mmap(data_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             file_.get(), 0) == MAP_FAILED) {
    const int reason = errno;
    ::munmap(data_, bytes);
    errno = reason;
    fail_memory(folder_, "mapping", bytes);
  }
  ::madvise(data_, bytes, MADV_HUGEPAGE);
  ::madvise(data_, bytes, MADV_DONTDUMP);
}

Segment::~Segment() { ::munmap(data_, layout_.num_bytes); }

Ring Segment::ring_to(int peer) const {
  std::byte* const start = data_ + layout_.ring_offset(peer);
  return Ring(reinterpret_cast<RingControl*>(start), start + kRingControlBytes, layout_.ring_bytes);
}

// The system makes a large page only where there is a small one, whose content it takes over.
void Segment::populate_large(std::size_t offset, std::size_t bytes) noexcept {
  const std::size_t first = rounded_up(offset, kHugePage);
  const std::size_t end = (offset + bytes) / kHugePage * kHugePage;
  if (first >= end) return;
  for (std::size_t at = first; at < end; at += kHugePage) {
    if (::madvise(data_ + at, kPage, MADV_POPULATE_WRITE) != 0) return;
  }
  ::madvise(data_ + first, end - first, MADV_COLLAPSE);
}

void Segment::populate(std::size_t offset, std::size_t bytes) {
  populate_large(offset, bytes);
  if (bytes == 0 || ::madvise(data_ + offset, bytes, MADV_POPULATE_WRITE) == 0) return;
  // Where the system does not know that, the file gets its pages instead.
  if (errno == EINVAL &&
      ::fallocate(file_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) {
    return;
  }
  if (errno == EFAULT) errno = ENOSPC;  // what touching it would have died of
  fail_memory(folder_, "filling", bytes);
}

void Segment::discard(std::size_t offset, std::size_t bytes) noexcept {
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

void Segment::detach(std::size_t offset, std::size_t bytes) noexcept {
  void* const copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy == MAP_FAILED) return;
  std::memcpy(copy, data_ + offset, bytes);
  ::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + offset);
}

}  // namespace tutti::internal
