// The bytes of a stream that may have to be sent again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

namespace tutti::internal {

/// A window of a stream: most of it copied, some of it *lent*, which means that it lies in the
/// memory of who sends it. A loan ends when its bytes are forgotten, or taken back: copied after
/// all. Offsets count the bytes of the stream from its start. One thread at a time.
class SentBytes {
 public:
  /// `room`: a power of two; more bytes are never held at once.
  explicit SentBytes(std::size_t room) : room_(room) {}

  void copy(std::uint64_t offset, std::span<const std::byte> bytes);
  /// In the order of the stream, as copy().
  void lend(std::uint64_t offset, std::span<const std::byte> bytes);
  /// The two places of a range that is all copied, or all of one loan.
  std::array<std::span<const std::byte>, 2> places(std::uint64_t offset, std::size_t count) const;
  /// No loan has a byte before this one.
  std::uint64_t first_lent() const;
  /// Loans that begin before `end` are copied; their memory is not touched afterwards.
  void take_back(std::uint64_t end);
  /// What is lent of the last bytes before `end`, as many as `to` has, lies in `to` now.
  void move_lent(std::uint64_t end, std::span<const std::byte> to);
  /// Bytes before `end` are not needed any more.
  void forget(std::uint64_t end);

 private:
  struct Loan {
    std::uint64_t begin = 0;
    std::span<const std::byte> bytes;
    std::uint64_t end() const { return begin + bytes.size(); }
  };

  const std::size_t room_;
  std::vector<std::byte> ring_;
  std::deque<Loan> loans_;  // in the order of the stream
};

}  // namespace tutti::internal
