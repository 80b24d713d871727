// A ring of copies, and what is lent beside it.
// SPDX-License-Identifier: Apache-2.0
//
// Every byte has its place in the ring, also while it is lent: so there is always room to take it
// back. What nobody copies costs no memory traffic.
#include "tutti/cluster/tcp/sent_bytes.h"

#include <algorithm>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::internal {

void SentBytes::copy(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (ring_.empty()) ring_.resize(room_);
  const std::size_t begin = offset & (room_ - 1);
  const std::size_t first = std::min(bytes.size(), room_ - begin);
  if (first > 0) std::memcpy(&ring_[begin], bytes.data(), first);
  if (first < bytes.size()) std::memcpy(ring_.data(), &bytes[first], bytes.size() - first);
}

void SentBytes::lend(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (!loans_.empty()) {
    Loan& last = loans_.back();
    if (last.end() == offset && last.bytes.data() + last.bytes.size() == bytes.data()) {
      last.bytes = {last.bytes.data(), last.bytes.size() + bytes.size()};
      return;
    }
  }
  loans_.push_back({offset, bytes});
}

std::array<std::span<const std::byte>, 2> SentBytes::places(std::uint64_t offset,
                                                            std::size_t count) const {
  const auto after = std::ranges::upper_bound(loans_, offset, {}, &Loan::begin);
  if (after != loans_.begin() && offset < std::prev(after)->end()) {
    const Loan& loan = *std::prev(after);
    TUTTI_CHECK(offset + count <= loan.end(), "a chunk reaches beyond what is lent");
    return {loan.bytes.subspan(offset - loan.begin, count), {}};
  }
  const std::size_t begin = offset & (room_ - 1);
  const std::size_t first = std::min(count, room_ - begin);
  const std::span<const std::byte> ring(ring_);
  if (count == 0) return {};
  return {ring.subspan(begin, first), ring.first(count - first)};
}

std::uint64_t SentBytes::first_lent() const {
  return loans_.empty() ? std::numeric_limits<std::uint64_t>::max() : loans_.front().begin;
}

void SentBytes::take_back(std::uint64_t end) {
  while (!loans_.empty() && loans_.front().begin < end) {
    copy(loans_.front().begin, loans_.front().bytes);
    loans_.pop_front();
  }
}

void SentBytes::move_lent(std::uint64_t end, std::span<const std::byte> to) {
  const std::uint64_t begin = end - to.size();
  for (Loan& loan : loans_) {
    if (loan.begin < begin || loan.end() > end) continue;
    loan.bytes = to.subspan(loan.begin - begin, loan.bytes.size());
  }
}

void SentBytes::forget(std::uint64_t end) {
  while (!loans_.empty() && loans_.front().end() <= end) loans_.pop_front();
  if (loans_.empty() || loans_.front().begin >= end) return;
  Loan& loan = loans_.front();
  loan.bytes = loan.bytes.subspan(end - loan.begin);
  loan.begin = end;
}

}  // namespace tutti::internal
