// Handing out ranges of the own place.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <utility>

#include "cluster/net/segment.h"
#include "cross_device_ops/shared/host_memory.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

/// First fit; large ranges begin where a large page can.
class ShmMemory final : public HostMemory {
 public:
  ShmMemory(int rank, std::vector<std::shared_ptr<Segment>> segments)
      : rank_(rank), segments_(std::move(segments)) {
    MutexLock lock(mutex_);
    free_[kPlaceBegin] = own().num_bytes() - kPlaceBegin;
  }

  int rank() const override { return rank_; }
  std::byte* place(int rank) const override { return segment(rank).data(); }
  std::size_t place_bytes(int rank) const override { return segment(rank).num_bytes(); }

  std::size_t allocate(std::size_t bytes, Use use) override {
    const std::size_t wanted = rounded_up(std::max<std::size_t>(bytes, 1), kPageBytes);
    MutexLock lock(mutex_);
    release_waiting();
    const std::size_t offset =
        take(wanted, wanted >= kLargePageBytes ? kLargePageBytes : kPageBytes);
    try {
      own().populate(offset, wanted);
    } catch (...) {
      give_back(offset, wanted);
      throw;
    }
    taken_[offset] = {wanted, use};
    return offset;
  }

  void release(std::size_t offset) noexcept override {
    MutexLock lock(mutex_);
    release_locked(offset);
  }

  void release_when(std::size_t offset, std::function<bool()> may_go) override {
    MutexLock lock(mutex_);
    waiting_.emplace_back(offset, std::move(may_go));
    release_waiting();
  }

  void detach() noexcept override {
    MutexLock lock(mutex_);
    if (is_detached_.exchange(true)) return;
    for (const auto& [offset, range] : taken_) {
      if (range.use == Use::kBuffers) own().detach(offset, range.bytes);
    }
  }
  bool is_detached() const override { return is_detached_.load(); }

 private:
  Segment& segment(int rank) const { return *segments_[static_cast<std::size_t>(rank)]; }
  Segment& own() const { return segment(rank_); }

  struct Range {
    std::size_t bytes = 0;
    Use use = Use::kBuffers;
  };

  void release_locked(std::size_t offset) TUTTI_REQUIRES(mutex_) {
    const auto found = taken_.find(offset);
    if (found == taken_.end()) return;
    const Range range = found->second;
    taken_.erase(found);
    // Detached addresses are no longer the file's: they are not handed out again.
    if (is_detached_ && range.use == Use::kBuffers) return;
    own().discard(offset, range.bytes);
    give_back(offset, range.bytes);
  }

  void release_waiting() TUTTI_REQUIRES(mutex_) {
    std::erase_if(waiting_, [this](const auto& entry) TUTTI_REQUIRES(mutex_) {
      if (!entry.second()) return false;
      release_locked(entry.first);
      return true;
    });
  }

  std::size_t take(std::size_t bytes, std::size_t unit) TUTTI_REQUIRES(mutex_) {
    for (const auto& [begin, length] : free_) {
      const std::size_t offset = rounded_up(begin, unit);
      if (offset - begin > length || bytes > length - (offset - begin)) continue;
      const std::size_t end = begin + length, start = begin;
      free_.erase(start);
      if (offset > start) free_[start] = offset - start;
      if (offset + bytes < end) free_[offset + bytes] = end - (offset + bytes);
      return offset;
    }
    fail(ErrorCode::kResourceExhausted, "shm: rank ", rank_, " has no ", bytes,
         " bytes left of its ", own().num_bytes(), "; try a larger ConnectOptions::place_bytes");
  }

  void give_back(std::size_t offset, std::size_t bytes) TUTTI_REQUIRES(mutex_) {
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

  const int rank_;
  const std::vector<std::shared_ptr<Segment>> segments_;
  std::atomic<bool> is_detached_{false};
  Mutex mutex_;
  std::map<std::size_t, std::size_t> free_ TUTTI_GUARDED_BY(mutex_);  // begin, length
  std::map<std::size_t, Range> taken_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::pair<std::size_t, std::function<bool()>>> waiting_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<HostMemory> shm_memory(int rank, std::vector<std::shared_ptr<Segment>> segments) {
  return std::make_shared<ShmMemory>(rank, std::move(segments));
}

}  // namespace tutti::internal
