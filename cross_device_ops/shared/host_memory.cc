// Creation, mapping and population of segments; allocation of ranges and buffers in this rank's
// segment.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "core/file.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // since Linux 5.14; otherwise EINVAL
#endif
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1
#endif

[[noreturn]] void fail_memory(const char* what, std::size_t bytes) {
  const int reason = errno;
  fail(ErrorCode::kResourceExhausted, "shm: ", what, " ", bytes,
       " bytes of shared memory failed: ", std::strerror(reason),
       reason == EFBIG ? "; try a larger file size limit (ulimit -f unlimited)"
                       : "; try fewer ranks on this host, or a larger memory limit");
}

}  // namespace

Segment::Segment(std::size_t num_bytes)
    : file_(::memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING)), num_bytes_(num_bytes) {
  if (!file_.is_open()) fail_memory("creating", num_bytes);
  if (num_bytes > file_size_limit()) {
    errno = EFBIG;  // otherwise SIGXFSZ would kill this process
    fail_memory("creating", num_bytes);
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(num_bytes)) != 0) {
    fail_memory("creating", num_bytes);
  }
  // Forbids resizing, because a peer that reads beyond the end of a shrunk file would be killed.
  ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  map();
}

Segment::Segment(FileDescriptor file, const std::string& peer) : file_(std::move(file)) {
  constexpr off_t kMost = off_t{1} << 46;
  struct stat status {};
  const bool is_good = file_.is_open() && ::fstat(file_.get(), &status) == 0 &&
                       status.st_size >= static_cast<off_t>(kPlaceBegin) &&
                       status.st_size <= kMost && status.st_size % kPageBytes == 0;
  if (!is_good) {
    fail(ErrorCode::kDataLoss, "shm: expected a shared-memory segment from ", peer,
         ", got a file descriptor of another kind or size");
  }
  num_bytes_ = static_cast<std::size_t>(status.st_size);
  map();
}

/// Maps the file at a multiple of the large page size, so that the kernel can use large pages.
void Segment::map() {
  const std::size_t bytes = num_bytes_;
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

Segment::~Segment() { ::munmap(data_, num_bytes_); }

// The kernel collapses pages only if at least one small page is present, so populate one first.
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
  // Falls back to allocating the file's pages if the kernel does not support MADV_POPULATE_WRITE.
  if (errno == EINVAL &&
      ::fallocate(file_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) {
    return;
  }
  if (errno == EFAULT) errno = ENOSPC;  // EFAULT means out of memory; touching a page would crash
  fail_memory("populating", bytes);
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

namespace tutti {
namespace {

using internal::kLargePageBytes;
using internal::kPageBytes;
using internal::kPlaceBegin;
using internal::rounded_up;
using internal::Segment;

MemorySource place_of(const std::shared_ptr<HostMemory>& memory) {
  return {.allocate = [memory](std::size_t size) -> std::byte* {
            try {
              return memory->place(memory->rank()) +
                     memory->allocate(size, HostMemory::Use::kBuffers);
            } catch (const Error&) {
              return nullptr;
            }
          },
          .release =
              [memory](std::byte* data) {
                memory->release(static_cast<std::size_t>(data - memory->place(memory->rank())));
              }};
}

}  // namespace

HostMemory::HostMemory(int rank, std::vector<std::shared_ptr<Segment>> segments)
    : rank_(rank), segments_(std::move(segments)) {
  MutexLock lock(mutex_);
  free_[kPlaceBegin] = own().num_bytes() - kPlaceBegin;
}

std::size_t HostMemory::allocate(std::size_t bytes, Use use) {
  const std::size_t wanted = rounded_up(std::max<std::size_t>(bytes, 1), kPageBytes);
  MutexLock lock(mutex_);
  release_waiting();
  if (is_of_threads()) {
    const BufferRef buffer = BufferRef::allocate(wanted);
    std::memset(buffer->data(), 0, wanted);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer->data());
    of_threads_.emplace(address, buffer);
    return address;
  }
  const std::size_t offset = take(wanted, wanted >= kLargePageBytes ? kLargePageBytes : kPageBytes);
  try {
    own().populate(offset, wanted);
  } catch (...) {
    give_back(offset, wanted);
    throw;
  }
  taken_[offset] = {wanted, use};
  return offset;
}

void HostMemory::release(std::size_t offset) noexcept {
  MutexLock lock(mutex_);
  release_locked(offset);
}

void HostMemory::release_when(std::vector<std::size_t> offsets, std::function<bool()> may_go) {
  MutexLock lock(mutex_);
  waiting_.emplace_back(std::move(offsets), std::move(may_go));
  release_waiting();
}

void HostMemory::detach() noexcept {
  MutexLock lock(mutex_);
  if (is_detached_.exchange(true)) return;
  for (const auto& [offset, range] : taken_) {
    if (range.use == Use::kBuffers) own().detach(offset, range.bytes);
  }
}

std::optional<std::size_t> HostMemory::offset_of(const std::byte* data, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const auto begin = reinterpret_cast<std::uintptr_t>(place(rank_));
  if (at < begin || at - begin > place_bytes(rank_) || bytes > place_bytes(rank_) - (at - begin) ||
      is_detached()) {
    return std::nullopt;
  }
  return at - begin;
}

void HostMemory::release_locked(std::size_t offset) {
  of_threads_.erase(offset);
  const auto found = taken_.find(offset);
  if (found == taken_.end()) return;
  const Range range = found->second;
  taken_.erase(found);
  // Detached addresses no longer belong to the file, so they are not reused.
  if (is_detached_ && range.use == Use::kBuffers) return;
  own().discard(offset, range.bytes);
  give_back(offset, range.bytes);
}

void HostMemory::release_waiting() {
  std::erase_if(waiting_, [this](const auto& entry) TUTTI_REQUIRES(mutex_) {
    if (!entry.second()) return false;
    for (const std::size_t offset : entry.first) release_locked(offset);
    return true;
  });
}

std::size_t HostMemory::take(std::size_t bytes, std::size_t unit) {
  for (const auto& [begin, length] : free_) {
    const std::size_t offset = rounded_up(begin, unit);
    if (offset - begin > length || bytes > length - (offset - begin)) continue;
    const std::size_t end = begin + length, start = begin;
    free_.erase(start);
    if (offset > start) free_[start] = offset - start;
    if (offset + bytes < end) free_[offset + bytes] = end - (offset + bytes);
    return offset;
  }
  fail(ErrorCode::kResourceExhausted, "shm: rank ", rank_, ": expected ", bytes,
       " contiguous free bytes in its segment of ", own().num_bytes(),
       " bytes, got fewer; try a larger ConnectOptions::place_bytes");
}

void HostMemory::give_back(std::size_t offset, std::size_t bytes) {
  const auto next = free_.find(offset + bytes);
  if (next != free_.end()) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

std::shared_ptr<BufferAllocator> allocator_in(std::shared_ptr<HostMemory> memory) {
  if (memory->is_of_threads()) return nullptr;
  return std::make_shared<BufferAllocator>(
      place_of(memory),
      BufferAllocatorOptions{.name = "memory shared between processes",
                             .advice = "try fewer ranks on this host, or more memory for them",
                             .granularity = kPageBytes});
}

}  // namespace tutti
