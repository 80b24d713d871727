// The arena: one mapping, closed by mprotect while no work runs.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_simulation/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::cuda_simulation {
namespace {

constexpr std::size_t kAlignment = 256, kFence = 256, kPage = 4096;
constexpr int kFenceByte = 0xFB, kPoison = 0xCD;
constexpr std::size_t kPoisoned = std::size_t{4} << 20;  // of large blocks only the beginning

}  // namespace

Arena::Arena(int num_gpus, std::size_t bytes_each, bool guard)
    : bytes_each_(bytes_each),
      bytes_(bytes_each * static_cast<std::size_t>(std::max(num_gpus, 1))),
      guard_(guard),
      used_(static_cast<std::size_t>(num_gpus)) {
  void* const base = mmap(nullptr, bytes_, guard ? PROT_NONE : PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TUTTI_CHECK(base != MAP_FAILED, "simulated GPUs: the system has no ", bytes_, " addresses left");
  base_ = static_cast<std::byte*>(base);
}

Arena::~Arena() { munmap(base_, bytes_); }

void Arena::protect(bool closed) {
  if (guard_) mprotect(base_, bytes_, closed ? PROT_NONE : PROT_READ | PROT_WRITE);
}

void* Arena::allocate(int gpu, std::size_t bytes) {
  if (bytes > bytes_each_) return nullptr;
  const std::size_t span = (bytes + kAlignment - 1) / kAlignment * kAlignment + kFence;
  const std::size_t first = bytes_each_ * static_cast<std::size_t>(gpu);
  std::size_t offset = first;
  for (auto block = blocks_.lower_bound(first); block != blocks_.end(); ++block) {
    if (block->first >= offset + span) break;
    offset = std::max(offset, block->first + block->second.span);
  }
  if (offset + span > first + bytes_each_) return nullptr;
  blocks_[offset] = {bytes, span};
  used_[static_cast<std::size_t>(gpu)] += span;
  const Opened opened(*this);
  std::memset(base_ + offset, kPoison, std::min(bytes, kPoisoned));
  std::memset(base_ + offset + bytes, kFenceByte, span - bytes);
  return base_ + offset;
}

Arena::Freed Arena::release(void* data) {
  const auto* const address = static_cast<std::byte*>(data);
  if (address < base_ || address >= base_ + bytes_) return Freed::kNoBlock;
  const auto found = blocks_.find(static_cast<std::size_t>(address - base_));
  if (found == blocks_.end()) return Freed::kNoBlock;
  const auto [offset, block] = *found;
  blocks_.erase(found);
  used_[offset / bytes_each_] -= block.span;
  const Opened opened(*this);
  std::byte* const begin = base_ + offset;
  const bool whole = std::all_of(begin + block.bytes, begin + block.span,
                                 [](std::byte b) { return b == std::byte{kFenceByte}; });
  std::memset(begin, kPoison, std::min(block.span, kPoisoned));
  if (block.span > kPoisoned + kPage) {  // the rest back to the system
    const std::size_t rest = (offset + kPoisoned + kPage - 1) / kPage * kPage;
    const std::size_t end = (offset + block.span) / kPage * kPage;
    if (end > rest) madvise(base_ + rest, end - rest, MADV_DONTNEED);
  }
  return whole ? Freed::kYes : Freed::kOverrun;
}

int Arena::gpu_of(const void* data, std::size_t bytes) const {
  const auto* const address = static_cast<const std::byte*>(data);
  if (address < base_ || address >= base_ + bytes_) return kHost;
  const auto offset = static_cast<std::size_t>(address - base_);
  auto block = blocks_.upper_bound(offset);
  if (block == blocks_.begin()) return kNowhere;
  --block;
  if (offset + bytes > block->first + block->second.bytes) return kNowhere;
  return static_cast<int>(offset / bytes_each_);
}

}  // namespace tutti::cuda_simulation
