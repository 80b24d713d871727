// Long chunks that are read to where their receiver wants them: damaged, torn, moved, twice.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tutti/cluster/net/session_receiver.h"
#include "tutti/cluster/net/session_sender.h"
#include "tutti/core/crc32c.h"

namespace tutti {
namespace session_landing_test {

using internal::ChunkHeader;
using internal::FileDescriptor;
using internal::kChunkHeaderBytes;
using internal::SessionReceiver;
using internal::SessionSender;
using Bytes = std::vector<std::byte>;

constexpr std::byte kUntouched{0xEE};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::size_t below(std::size_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % limit;
  }

 private:
  std::uint64_t state_;
};

Bytes payload_of(std::size_t count, std::uint64_t seed) {
  Dice dice(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.below(256));
  return bytes;
}

Bytes chunk_of(std::span<const std::byte> payload, std::uint64_t offset) {
  const auto length = static_cast<std::uint32_t>(payload.size());
  const auto header =
      encode(ChunkHeader{ChunkHeader::Kind::kData, length, internal::crc32c_of(payload), offset});
  Bytes bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

/// A receiver with its connections, whose other ends the test writes to.
struct Reader {
  explicit Reader(std::size_t num_connections = 1)
      : receiver(num_connections), near(num_connections), far(num_connections) {
    for (std::size_t i = 0; i < num_connections; ++i) connect(i);
  }
  void connect(std::size_t connection) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) std::abort();
    near[connection] = FileDescriptor(ends[0]);
    far[connection] = FileDescriptor(ends[1]);
  }
  void write(std::span<const std::byte> bytes, std::size_t connection = 0) {
    const ssize_t count = ::send(near[connection].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    ASSERT_EQ(count, static_cast<ssize_t>(bytes.size()));
  }
  /// As a session reads for a place: all that its sockets have, or until something is given.
  std::size_t read_in_place(std::span<std::byte> place) {
    receiver.aim(place);
    const std::size_t count = read(place);
    receiver.aim({});
    return count;
  }
  std::size_t read(std::span<std::byte> place) {
    const iovec part{place.data(), place.size()};
    std::size_t count = receiver.give(std::span(&part, 1));
    for (bool came = true; came && count == 0;) {
      came = false;
      for (std::size_t i = 0; i < far.size(); ++i) came = receiver.fill(i, far[i]) || came;
      count = receiver.give(std::span(&part, 1));
    }
    return count;
  }
  void replace_connection(std::size_t connection) {
    connect(connection);
    receiver.restart(connection);
  }

  SessionReceiver receiver;
  std::vector<FileDescriptor> near, far;
};

bool is_untouched(std::span<const std::byte> place) {
  return std::ranges::all_of(place, [](std::byte byte) { return byte == kUntouched; });
}

TEST(SessionLanding, ALongChunkIsReadToItsPlaceAndCountsWhenItIsWhole) {
  Reader reader;
  const Bytes sent = payload_of(40'000, 1), chunk = chunk_of(sent, 0);
  Bytes place(50'000, kUntouched);
  reader.write(std::span(chunk).first(10'000));
  EXPECT_EQ(reader.read_in_place(place), 0u);
  // It is there, and nobody is told.
  EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + 10'000 - kChunkHeaderBytes, place.begin()));
  EXPECT_EQ(reader.receiver.received(), 0u);
  reader.write(std::span(chunk).subspan(10'000));
  EXPECT_EQ(reader.read_in_place(place), sent.size());
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), place.begin()));
  EXPECT_TRUE(is_untouched(std::span(place).subspan(sent.size())));
  EXPECT_EQ(reader.receiver.received(), sent.size());
}

TEST(SessionLanding, WhatFollowsTheChunkIsNotLost) {
  Reader reader;
  const Bytes first = payload_of(60'000, 2), second = payload_of(300, 3), third = payload_of(50, 4);
  for (const auto& chunk :
       {chunk_of(first, 0), chunk_of(second, 60'000), chunk_of(third, 60'300)}) {
    reader.write(chunk);
  }
  Bytes place(60'000), rest(1000);
  EXPECT_EQ(reader.read_in_place(place), 60'000u);
  EXPECT_TRUE(place == first);
  std::size_t count = 0;
  while (const std::size_t more = reader.read(std::span(rest).subspan(count))) count += more;
  ASSERT_EQ(count, 350u);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), rest.begin()));
  EXPECT_TRUE(std::equal(third.begin(), third.end(), rest.begin() + 300));
}

TEST(SessionLanding, ADamagedChunkIsNeverGivenAndTheRightOneTakesItsPlace) {
  for (const std::size_t flipped : {kChunkHeaderBytes, std::size_t{20'000}, std::size_t{40'035}}) {
    Reader reader;
    const Bytes sent = payload_of(40'000, 5);
    Bytes damaged = chunk_of(sent, 0);
    damaged[flipped] ^= std::byte{4};
    Bytes place(40'000, kUntouched);
    reader.write(damaged);
    EXPECT_EQ(reader.read_in_place(place), 0u);
    const Error* const failure = reader.receiver.failure(0);
    ASSERT_NE(failure, nullptr);
    EXPECT_EQ(failure->code(), ErrorCode::kDataLoss);
    EXPECT_NE(failure->message().find("a chunk of 40000 bytes was damaged"), std::string::npos);
    EXPECT_EQ(reader.receiver.received(), 0u);
    reader.replace_connection(0);
    reader.write(chunk_of(sent, 0));
    EXPECT_EQ(reader.read_in_place(place), sent.size());
    EXPECT_TRUE(place == sent);
  }
}

TEST(SessionLanding, ATornChunkLandsAgainOverAnotherConnection) {
  Reader reader;
  const Bytes sent = payload_of(40'000, 6), chunk = chunk_of(sent, 0);
  Bytes place(40'000, kUntouched);
  reader.write(std::span(chunk).first(30'000));
  EXPECT_EQ(reader.read_in_place(place), 0u);
  reader.near[0] = FileDescriptor();
  EXPECT_EQ(reader.read_in_place(place), 0u);
  ASSERT_NE(reader.receiver.failure(0), nullptr);
  EXPECT_EQ(reader.receiver.failure(0)->code(), ErrorCode::kUnavailable);
  reader.replace_connection(0);
  reader.write(std::span(chunk).first(20'000));  // the tail of the first attempt must not count
  EXPECT_EQ(reader.read_in_place(place), 0u);
  reader.write(std::span(chunk).subspan(20'000));
  EXPECT_EQ(reader.read_in_place(place), sent.size());
  EXPECT_TRUE(place == sent);
}

TEST(SessionLanding, AfterLeaveThePlaceIsNotTouchedAndNothingIsLost) {
  const Bytes sent = payload_of(40'000, 7), chunk = chunk_of(sent, 0);
  // Torn apart before, within and after the payload; and verified by who looks after the session.
  for (const std::size_t cut : {std::size_t{40}, std::size_t{9'000}, chunk.size()}) {
    for (const bool is_looked_after : {false, true}) {
      Reader reader;
      Bytes left(40'000, kUntouched), place(40'000, kUntouched);
      reader.write(std::span(chunk).first(cut));
      reader.receiver.aim(left);
      while (reader.receiver.fill(0, reader.far[0])) {
        if (cut < chunk.size()) reader.read(std::span(left).first(0));
      }
      if (is_looked_after) reader.receiver.set_aside();
      reader.receiver.leave();
      std::ranges::fill(left, kUntouched);
      if (cut < chunk.size()) reader.write(std::span(chunk).subspan(cut));
      EXPECT_EQ(reader.read_in_place(place), sent.size()) << cut;
      EXPECT_TRUE(place == sent) << cut;
      EXPECT_TRUE(is_untouched(left)) << cut;
    }
  }
}

TEST(SessionLanding, NothingLandsWhereItDoesNotFit) {
  Reader reader;
  const Bytes sent = payload_of(40'000, 8), chunk = chunk_of(sent, 0);
  Bytes place(39'999, kUntouched), rest(10, kUntouched);
  reader.write(std::span(chunk).first(30'000));
  EXPECT_EQ(reader.read_in_place(place), 0u);
  EXPECT_TRUE(is_untouched(place));
  reader.write(std::span(chunk).subspan(30'000));
  EXPECT_EQ(reader.read_in_place(place), place.size());
  EXPECT_TRUE(std::equal(place.begin(), place.end(), sent.begin()));
  EXPECT_EQ(reader.read(rest), 1u);
  EXPECT_EQ(rest[0], sent.back());
  EXPECT_TRUE(is_untouched(std::span(rest).subspan(1)));
}

// The peer thought that the first connection was broken, and this rank does not know yet.
TEST(SessionLanding, WhatAnotherConnectionBroughtMeanwhileIsNotOverwritten) {
  Reader reader(2);
  const Bytes sent = payload_of(40'000, 9);
  Bytes slow = chunk_of(sent, 0);
  slow[35'000] ^= std::byte{1};
  Bytes place(40'000, kUntouched);
  reader.write(std::span(slow).first(20'000), 0);
  EXPECT_EQ(reader.read_in_place(place), 0u);
  reader.write(chunk_of(sent, 0), 1);
  EXPECT_EQ(reader.read_in_place(place), sent.size());
  EXPECT_TRUE(place == sent);
  reader.write(std::span(slow).subspan(20'000), 0);
  Bytes next(100);
  EXPECT_EQ(reader.read(next), 0u);
  EXPECT_TRUE(place == sent);
  ASSERT_NE(reader.receiver.failure(0), nullptr);  // it was damaged, though nobody needs it
}

/// One rank that sends messages, and one that reads them as an inbox does.
struct Pair {
  Pair(std::size_t num_connections, std::uint64_t seed)
      : sender(num_connections), reader(num_connections), dice(seed), lends(seed % 2 == 0) {}

  void push() {
    std::vector<const FileDescriptor*> sockets;
    for (const FileDescriptor& socket : reader.near) sockets.push_back(&socket);
    sender.forget(reader.receiver.received());
    sender.push(sockets, 0);
  }
  /// Some of what is left of a message of two parts; a rank's first part is short.
  void send_some(std::span<const std::byte> front, std::span<const std::byte> body,
                 std::size_t& written) {
    const iovec parts[] = {{const_cast<std::byte*>(front.data()), front.size()},
                           {const_cast<std::byte*>(body.data()), body.size()}};
    using Amount = SessionSender::Amount;
    const Amount amount = dice.below(3) == 0 ? Amount::kAll : Amount::kChunk;
    written += lends ? sender.lend(parts, written, amount) : sender.take(parts, written, amount);
    push();
  }
  void disturb() {
    const std::size_t connection = dice.below(reader.far.size());
    reader.connect(connection);
    sender.lose(connection);
    reader.receiver.restart(connection);
    sender.restart(connection, reader.receiver.received());
    push();
  }
  /// The sender wants to use its memory for something else.
  void reclaim(Bytes& memory) {
    sender.take_back(~std::uint64_t{0});
    std::ranges::fill(memory, kUntouched);
  }
  /// The place may be changed for another one, in the middle.
  void receive(Bytes& place, std::size_t& count) {
    const bool lands = dice.below(4) > 0;
    const auto rest = std::span(place).subspan(count);
    count += lands ? reader.read_in_place(rest) : (reader.receiver.leave(), reader.read(rest));
    if (dice.below(5) == 0) reader.receiver.set_aside();
    if (dice.below(6) > 0) return;
    reader.receiver.leave();
    Bytes other(place.size(), kUntouched);
    std::copy_n(place.begin(), count, other.begin());
    place = std::move(other);
  }

  SessionSender sender;
  Reader reader;
  Dice dice;
  const bool lends;
};

TEST(SessionLanding, MessagesArriveWholeWhateverIsCutMovedAndBroken) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Pair pair(1 + seed % 3, seed);
    for (int message = 0; message < 6; ++message) {
      const Bytes front = payload_of(20 + pair.dice.below(200), seed + 1);
      const Bytes body = payload_of(pair.dice.below(400'000), seed + 2);
      Bytes memory = body;  // the sender's
      const std::size_t total = front.size() + body.size();
      Bytes place_of_front(front.size()), place_of_body(body.size(), kUntouched);
      std::size_t written = 0, in_front = 0, in_body = 0;
      for (int turns = 0; in_front + in_body < total; ++turns) {
        ASSERT_LT(turns, 100'000) << "seed " << seed;
        if (written < total) pair.send_some(front, memory, written);
        if (written == total && pair.dice.below(30) == 0) pair.reclaim(memory);
        if (pair.dice.below(40) == 0) pair.disturb();
        pair.push();
        if (in_front < front.size()) {
          in_front += pair.reader.read(std::span(place_of_front).subspan(in_front));
        } else {
          pair.receive(place_of_body, in_body);
        }
        pair.reader.receiver.set_aside();
      }
      ASSERT_TRUE(place_of_front == front) << "seed " << seed;
      ASSERT_TRUE(place_of_body == body) << "seed " << seed;
      pair.push();  // the peer has said that it has all
      ASSERT_TRUE(pair.sender.all_returned(pair.reader.receiver.received())) << "seed " << seed;
    }
  }
}

}  // namespace session_landing_test
}  // namespace tutti
