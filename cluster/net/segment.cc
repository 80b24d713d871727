// Making, mapping and filling segments; handing them over in messages of a local socket
// (SCM_RIGHTS).
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/cluster/net/interruption.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::internal {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // of Linux 5.14; older ones refuse it
#endif
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // of Linux 6.1
#endif

[[noreturn]] void fail_memory(const char* what, std::size_t bytes) {
  const int reason = errno;
  fail(ErrorCode::kResourceExhausted, "shm: ", what, " ", bytes,
       " bytes of shared memory failed: ", std::strerror(reason),
       reason == EFBIG
           ? "; try a larger limit of file sizes (ulimit -f unlimited)"
           : "; try fewer ranks on this host, smaller rings, or a larger limit of memory");
}

union Control {  // cmsghdr wants its alignment
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

/// The descriptor of a received message, if it has one.
FileDescriptor descriptor_in(msghdr& message) {
  cmsghdr* const first = CMSG_FIRSTHDR(&message);
  if (first == nullptr || first->cmsg_level != SOL_SOCKET || first->cmsg_type != SCM_RIGHTS ||
      first->cmsg_len != CMSG_LEN(sizeof(int))) {
    return FileDescriptor();
  }
  int number = -1;
  std::memcpy(&number, CMSG_DATA(first), sizeof(number));
  return FileDescriptor(number);
}

/// Of a peer's segment. What a peer says must not lead outside of its file.
SegmentLayout checked_layout(std::span<const std::byte, sizeof(std::uint64_t)> ring_bytes,
                             const FileDescriptor& file, int rank, int size,
                             const std::string& peer) {
  constexpr std::uint64_t kMostRing = std::uint64_t{1} << 30, kMost = std::uint64_t{1} << 46;
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    fail(ErrorCode::kDataLoss, "shm: ", peer, " has sent its segment without its descriptor");
  }
  SegmentLayout layout{
      .num_bytes = static_cast<std::uint64_t>(status.st_size), .rank = rank, .size = size};
  std::memcpy(&layout.ring_bytes, ring_bytes.data(), ring_bytes.size());
  const bool good = std::has_single_bit(layout.ring_bytes) && layout.ring_bytes >= kPageBytes &&
                    layout.ring_bytes <= kMostRing && layout.num_bytes <= kMost &&
                    layout.num_bytes % kPageBytes == 0;
  if (good && layout.num_bytes >= layout.place_offset()) return layout;
  fail(ErrorCode::kDataLoss, "shm: ", peer, ": a segment of ", layout.num_bytes,
       " bytes with rings of ", layout.ring_bytes, " for ", size,
       " ranks; expected sizes that fit each other");
}

}  // namespace

std::size_t SegmentLayout::ring_offset(int peer) const {
  return kPageBytes + static_cast<std::size_t>(peer) * (kRingControlBytes + ring_bytes);
}

// Where a large page may begin.
std::size_t SegmentLayout::place_offset() const {
  return rounded_up(ring_offset(size), kLargePageBytes);
}

Segment::Segment(const SegmentLayout& layout)
    : layout_(layout), file_(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!file_.is_open()) fail_memory("making", layout.num_bytes);
  if (layout.num_bytes > file_size_limit()) {
    errno = EFBIG;  // where the system would end this process
    fail_memory("making", layout.num_bytes);
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(layout.num_bytes)) != 0) {
    fail_memory("making", layout.num_bytes);
  }
  // A file that shrank under a peer would kill it when it reads.
  ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  map();
  try {
    populate(0, layout.ring_offset(layout.size));
  } catch (...) {
    ::munmap(data_, layout.num_bytes);
    throw;
  }
}

Segment::Segment(const SegmentLayout& layout, FileDescriptor file)
    : layout_(layout), file_(std::move(file)) {
  map();
}

/// At a place where large pages of the file can be large pages of memory.
void Segment::map() {
  const std::size_t bytes = layout_.num_bytes;
  void* const reserved = ::mmap(nullptr, bytes + kLargePageBytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail_memory("mapping", bytes);
  auto* const first = static_cast<std::byte*>(reserved);
  const std::size_t skipped =
      (kLargePageBytes - reinterpret_cast<std::uintptr_t>(first) % kLargePageBytes) %
      kLargePageBytes;
  if (skipped > 0) ::munmap(first, skipped);
  if (skipped < kLargePageBytes) ::munmap(first + skipped + bytes, kLargePageBytes - skipped);
  data_ = first + skipped;
  if (::mmap(data_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             file_.get(), 0) == MAP_FAILED) {
    const int reason = errno;
    ::munmap(data_, bytes);
    errno = reason;
    fail_memory("mapping", bytes);
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
  const std::size_t first = rounded_up(offset, kLargePageBytes);
  const std::size_t end = (offset + bytes) / kLargePageBytes * kLargePageBytes;
  if (first >= end) return;
  for (std::size_t at = first; at < end; at += kLargePageBytes) {
    if (::madvise(data_ + at, kPageBytes, MADV_POPULATE_WRITE) != 0) return;
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
  fail_memory("filling", bytes);
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

void send_segment(const FileDescriptor& socket, const Segment& own, const std::string& peer) {
  std::uint64_t ring_bytes = own.layout().ring_bytes;  // both sides are one machine
  iovec part{&ring_bytes, sizeof(ring_bytes)};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = own.file().get();
  std::memcpy(CMSG_DATA(rights), &number, sizeof(number));
  // So few bytes always fit a new connection.
  if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(sizeof(ring_bytes))) {
    fail(ErrorCode::kUnavailable, "shm: ", peer, " is gone: ", std::strerror(errno));
  }
}

std::shared_ptr<Segment> receive_segment(const FileDescriptor& socket, int peer_rank, int size,
                                         const std::string& peer, TimePoint deadline,
                                         const Interruption* interruption) {
  std::array<std::byte, sizeof(std::uint64_t)> bytes{};
  Control control{};
  FileDescriptor file;
  for (std::size_t filled = 0; filled < bytes.size();) {
    pollfd ready{socket.get(), POLLIN, 0};
    if (poll_unless_interrupted(ready, deadline, interruption) <= 0 &&
        Clock::system().now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "shm: ", peer, " has not sent its segment in time");
    }
    iovec part{bytes.data() + filled, bytes.size() - filled};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    const ssize_t count = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) {
      fail(ErrorCode::kUnavailable, "shm: ", peer, " is gone before it has sent its segment");
    }
    if (!file.is_open()) file = descriptor_in(message);
    filled += static_cast<std::size_t>(count);
  }
  return std::make_shared<Segment>(checked_layout(bytes, file, peer_rank, size, peer),
                                   std::move(file));
}

}  // namespace tutti::internal
