// Copying into and out of a ring.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/ring.h"

#include <algorithm>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

// Fits the second-level cache beside what the other side reads.
constexpr std::size_t kPiece = std::size_t{32} << 10;

}  // namespace

void Ring::copy_in(std::uint64_t at, const std::byte* from, std::size_t count) {
  const std::size_t place = at & (num_bytes_ - 1);
  const std::size_t first = std::min(count, num_bytes_ - place);
  std::memcpy(bytes_ + place, from, first);
  std::memcpy(bytes_, from + first, count - first);
}

void Ring::copy_out(std::uint64_t at, std::byte* to, std::size_t count) const {
  const std::size_t place = at & (num_bytes_ - 1);
  const std::size_t first = std::min(count, num_bytes_ - place);
  std::memcpy(to, bytes_ + place, first);
  std::memcpy(to + first, bytes_, count - first);
}

std::size_t Ring::write(std::span<const iovec> parts) {
  std::uint64_t at = control_->written.load(std::memory_order_relaxed);
  std::size_t total = 0;
  for (const iovec& part : parts) {
    const auto* const from = static_cast<const std::byte*>(part.iov_base);
    for (std::size_t done = 0; done < part.iov_len;) {
      const std::uint64_t used = at - control_->taken.load();
      if (used > num_bytes_) {
        fail(ErrorCode::kDataLoss, "shm: a ring of ", num_bytes_, " bytes says that ", used,
             " are in it");
      }
      const std::size_t count = std::min({kPiece, part.iov_len - done, num_bytes_ - used});
      if (count == 0) return total;
      copy_in(at, from + done, count);
      at += count;
      done += count;
      total += count;
      // Sequentially consistent: see RingStream, where sleepers are woken.
      control_->written.store(at);
    }
  }
  return total;
}

std::size_t Ring::read(std::span<const iovec> places) {
  std::uint64_t at = control_->taken.load(std::memory_order_relaxed);
  std::size_t total = 0;
  for (const iovec& place : places) {
    auto* const to = static_cast<std::byte*>(place.iov_base);
    for (std::size_t done = 0; done < place.iov_len;) {
      const std::uint64_t there = control_->written.load() - at;
      if (there > num_bytes_) {
        fail(ErrorCode::kDataLoss, "shm: a ring of ", num_bytes_, " bytes says that ", there,
             " are in it");
      }
      const std::size_t count = std::min<std::size_t>({kPiece, place.iov_len - done, there});
      if (count == 0) return total;
      copy_out(at, to + done, count);
      at += count;
      done += count;
      total += count;
      control_->taken.store(at);
    }
  }
  return total;
}

}  // namespace tutti::internal
