// A rank of a group and its links to the other ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// Purpose of a group's messages: the lowest 16 bits of their tags.
enum class Purpose : std::uint16_t {
  kData = 0,  // headers, with the data in the same message, if any
  kQuery = 1,
  kAnswer = 2,
  kNothing = 3,
  kWindow = 4,
  kIntroduction = 5,
  kNonce = 6,
  kDataOf = 16,           // start of a range indexed by Collective: data without a header
  kOfOperation = 0x8000,  // start of a range: tags of a CrossDeviceOps that spans processes
};

/// Group of ranks of a transport, renumbered from 0. A value type.
///
/// A tag consists of the group (48 bits) and the purpose (16 bits). Tags contain no call number,
/// because all messages of a call are received within the call, so the order of sending identifies
/// them. A rank that is one call behind therefore causes a mismatch instead of a timeout.
struct RankLink {
  std::shared_ptr<Transport> transport;
  std::vector<int> ranks;   // ranks in the transport, indexed by rank in the group
  int rank = 0;             // this rank's number in the group
  std::uint64_t group = 0;  // 48 bits, equal on all members

  int size() const { return static_cast<int>(ranks.size()); }
  int right() const { return (rank + 1) % size(); }
  int left() const { return (rank + size() - 1) % size(); }
  std::unique_ptr<Work> send(int peer, Purpose purpose, std::span<const std::byte> head,
                             std::span<const std::byte> body) const;
  std::unique_ptr<Work> recv(int peer, Purpose purpose, std::span<std::byte> head,
                             std::span<std::byte> body) const;
  /// Sends `own`, which is trivially copyable, to every other rank and returns the values of all
  /// ranks, by rank. The values are sent through rank 0, which first greets each rank: three
  /// messages per other rank. Throws kDeadlineExceeded on all ranks, with a message that begins
  /// with `who` and names the ranks that did not join: at the deadline if rank 0 did not join,
  /// otherwise up to kLinger later, because rank 0 waits until its own deadline. Throws
  /// kUnavailable if rank 0 exited, and on rank 0 if any rank exited.
  template <class T>
  std::vector<T> exchange(Purpose purpose, const T& own, TimePoint deadline,
                          std::string_view who) const {
    std::vector<T> all(ranks.size(), own);
    exchange_bytes(purpose, std::as_writable_bytes(std::span(all)), deadline, who);
    return all;
  }
  void exchange_bytes(Purpose purpose, std::span<std::byte> values, TimePoint deadline,
                      std::string_view who) const;
  /// Returns the group of `members`; see CollectiveEngine::subgroup.
  RankLink subgroup(const std::vector<int>& members, std::uint32_t number) const;
};

/// Returns the group of all ranks of a transport.
RankLink link_all(std::shared_ptr<Transport> transport);

}  // namespace tutti::internal
