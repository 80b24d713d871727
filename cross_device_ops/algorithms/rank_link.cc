// A rank of a group and its links to the other ranks.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/rank_link.h"

#include <algorithm>
#include <string>

#include "cross_device_ops/collective_header.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::internal {
namespace {

std::uint64_t tag_of(std::uint64_t group, Purpose purpose) {
  return group << 16 | static_cast<std::uint64_t>(purpose);
}

// Mixes `value` into `hash` with the finalizer of MurmurHash3.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15u;
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDu;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53u;
  return hash ^ (hash >> 33);
}

}  // namespace

std::unique_ptr<Work> RankLink::send(int peer, Purpose purpose, std::span<const std::byte> head,
                                     std::span<const std::byte> body) const {
  return transport->send(ranks[static_cast<std::size_t>(peer)], tag_of(group, purpose), head, body);
}

std::unique_ptr<Work> RankLink::recv(int peer, Purpose purpose, std::span<std::byte> head,
                                     std::span<std::byte> body) const {
  return transport->recv(ranks[static_cast<std::size_t>(peer)], tag_of(group, purpose), head, body);
}

namespace {

/// Waits for the work; returns false if the deadline passes first.
bool ends_in_time(Work& work, TimePoint deadline) {
  try {
    work.wait(deadline);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    return false;
  }
}

}  // namespace

void RankLink::exchange_bytes(Purpose purpose, std::span<std::byte> values, TimePoint deadline,
                              std::string_view who) const {
  const std::size_t bytes = values.size() / ranks.size();
  const auto value_of = [&](int r) {
    return values.subspan(static_cast<std::size_t>(r) * bytes, bytes);
  };
  // The message has one byte per rank (1: the rank did not join), then the values.
  std::vector<std::byte> message(ranks.size() + values.size());
  std::vector<std::string> late;
  const TimePoint end = deadline_after(deadline, durations::kLinger);
  if (rank == 0) {
    std::vector<std::unique_ptr<Work>> greetings, given, taken;  // one per rank except rank 0
    for (int r = 1; r < size(); ++r) {
      greetings.push_back(send(r, purpose, {}, {}));
      given.push_back(recv(r, purpose, {}, value_of(r)));
    }
    for (std::size_t r = 1; r < ranks.size();) {
      const TimePoint next = deadline_after(Clock::system().now(), durations::kTryAgain);
      if (ends_in_time(*given[r - 1], std::min(deadline, next))) {
        ++r;
        continue;
      }
      // test() throws if a rank has exited, so the exchange ends even if another rank is late.
      for (const auto& value : given) (void)value->test();
      if (Clock::system().now() < deadline) continue;
      message[r] = std::byte{1};
      late.push_back(concat("rank ", r++));
    }
    given.clear();
    std::ranges::copy(values, message.begin() + size());
    for (int r = 1; r < size(); ++r) taken.push_back(send(r, purpose, {}, message));
    for (int r = 1; r < size(); ++r) {
      const auto place = static_cast<std::size_t>(r);
      // Ranks that joined get the values, even if this rank throws because a rank is missing.
      if (message[place] != std::byte{0} || ends_in_time(*taken[place - 1], end)) continue;
      if (late.empty()) late.push_back(concat("rank ", r));
    }
  } else {
    const std::vector<std::byte> own(value_of(rank).begin(), value_of(rank).end());
    const auto greeting = recv(0, purpose, {}, {}), all = recv(0, purpose, {}, message);
    const auto given = send(0, purpose, {}, own);
    if (!ends_in_time(*greeting, deadline)) {
      late.push_back("rank 0");
    } else if (!ends_in_time(*all, end)) {
      late.push_back("a rank that rank 0 waits for");
    }
    std::copy(message.begin() + size(), message.end(), values.begin());
    for (int r = 1; r < size(); ++r) {
      if (message[static_cast<std::size_t>(r)] != std::byte{0}) late.push_back(concat("rank ", r));
    }
  }
  if (!late.empty()) {
    fail(ErrorCode::kDeadlineExceeded, who, ": expected all ", size(), " ranks to take part",
         kMissing, join(late), " did not join");
  }
}

RankLink RankLink::subgroup(const std::vector<int>& members, std::uint32_t number) const {
  RankLink link{.transport = transport, .ranks = {}, .group = mixed(group, number)};
  for (const int member : members) {
    link.ranks.push_back(ranks[static_cast<std::size_t>(member)]);
    link.group = mixed(link.group, static_cast<std::uint64_t>(member));
  }
  link.group >>= 16;
  const auto own = std::ranges::find(members, rank);
  TUTTI_CHECK(own != members.end(), "subgroup: rank ", rank, " is not a member");
  link.rank = static_cast<int>(own - members.begin());
  return link;
}

RankLink link_all(std::shared_ptr<Transport> transport) {
  RankLink link{.transport = transport, .ranks = {}, .rank = transport->rank()};
  for (int r = 0; r < transport->size(); ++r) link.ranks.push_back(r);
  return link;
}

}  // namespace tutti::internal
