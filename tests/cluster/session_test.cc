// Sessions over several connections: who takes what, any order of arrival, connections that break.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/net/session_receiver.h"
#include "tutti/cluster/net/session_sender.h"

namespace tutti {
namespace session_test {

using internal::FileDescriptor;
using internal::kChunkHeaderBytes;
using internal::kLongestChunk;
using internal::SessionReceiver;
using internal::SessionSender;
using testing::expect_error;

/// Numbers that a seed gives.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::uint64_t operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }

 private:
  std::uint64_t state_;
};

std::vector<std::byte> bytes_of(std::size_t count, std::uint64_t seed) {
  Chance chance(seed);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; i += 4) {
    const std::uint64_t number = chance();
    std::memcpy(&bytes[i], &number, std::min<std::size_t>(4, count - i));
  }
  return bytes;
}

/// One direction of a session over socket pairs.
struct Session {
  explicit Session(std::size_t num_connections)
      : sender(num_connections), receiver(num_connections) {
    near.resize(num_connections);
    far.resize(num_connections);
    for (std::size_t i = 0; i < num_connections; ++i) connect(i);
  }

  void connect(std::size_t connection) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) std::abort();
    near[connection] = FileDescriptor(ends[0]);
    far[connection] = FileDescriptor(ends[1]);
  }

  std::size_t take(std::span<const std::byte> bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return sender.take(std::span(&part, 1));
  }
  void push() {
    std::vector<const FileDescriptor*> sockets;
    for (const FileDescriptor& socket : near) sockets.push_back(&socket);
    sender.push(sockets, 0);
  }
  /// Both ends know; what was on its way is lost.
  void break_connection(std::size_t connection) {
    near[connection] = FileDescriptor();
    far[connection] = FileDescriptor();
    sender.lose(connection);
    receiver.restart(connection);
  }
  std::size_t give() {
    std::vector<std::byte> place(100'000);
    const iovec part{place.data(), place.size()};
    const std::size_t count = receiver.give(std::span(&part, 1));
    arrived.insert(arrived.end(), place.begin(),
                   place.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void give_all() {
    while (give() > 0) {
    }
  }
  bool fill(std::size_t connection) { return receiver.fill(connection, far[connection]); }
  /// Reads connections as chance has it, until nothing comes any more; what sockets did not take
  /// at once follows.
  void receive_all(std::uint64_t seed) {
    Chance chance(seed);
    for (std::size_t idle = 0; idle < 4 * far.size();) {
      push();
      const bool came = fill(chance() % far.size());
      idle = came ? 0 : idle + 1;
      if (chance() % 4 == 0 || !came) receiver.set_aside();
      give_all();
    }
    for (bool came = true; came;) {
      came = receiver.set_aside();
      push();
      for (std::size_t i = 0; i < far.size(); ++i) came = fill(i) || came;
      give_all();
    }
  }
  std::size_t waiting(std::size_t connection) const {
    std::vector<std::byte> bytes(std::size_t{4} << 20);
    const ssize_t count =
        ::recv(far[connection].get(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    return static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  void expect_no_failures() const {
    for (std::size_t i = 0; i < far.size(); ++i) {
      const Error* const failure = receiver.failure(i);
      EXPECT_EQ(failure, nullptr) << i << ": " << (failure ? failure->what() : "");
    }
  }

  std::vector<FileDescriptor> near, far;
  SessionSender sender;
  SessionReceiver receiver;
  std::vector<std::byte> arrived;
};

TEST(Session, FewBytesGoOverTheFirstConnectionAlone) {
  Session session(4);
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{kLongestChunk}}) {
    EXPECT_EQ(session.take(bytes_of(count, count)), count);
    session.push();
    EXPECT_EQ(session.waiting(0), kChunkHeaderBytes + count);
    for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(session.waiting(i), 0u) << i;
    session.receive_all(count);
  }
  session.expect_no_failures();
}

TEST(Session, WhatOnePacketCannotHoldGoesAheadOfALongBody) {
  constexpr std::size_t kPacket = 65'483;  // of a loopback device
  using enum SessionSender::Amount;
  Session session(1);
  const auto front = bytes_of(240, 7);
  auto body = bytes_of(std::size_t{64} << 10, 8);
  const std::vector<iovec> parts{{const_cast<std::byte*>(front.data()), front.size()},
                                 {body.data(), body.size()}};
  const std::size_t ahead = session.sender.lend(parts, 0, kChunk);
  session.push();
  EXPECT_EQ(ahead, 240u + 256u);
  EXPECT_EQ(session.waiting(0), kChunkHeaderBytes + ahead);
  EXPECT_TRUE(session.sender.all_returned(ahead)) << "a short piece is copied";
  EXPECT_EQ(session.sender.lend(parts, ahead, kChunk), front.size() + body.size() - ahead);
  session.push();
  EXPECT_LE(session.waiting(0) - kChunkHeaderBytes - ahead, kPacket);
  EXPECT_FALSE(session.sender.all_returned(front.size() + body.size()));
  session.receive_all(9);
  auto sent = front;
  sent.insert(sent.end(), body.begin(), body.end());
  EXPECT_EQ(session.arrived, sent);
  session.expect_no_failures();
}

TEST(Session, BodiesOfAPacketOrOfSeveralHaveNothingGoAhead) {
  for (const std::size_t count :
       {std::size_t{32} << 10, std::size_t{65'280}, std::size_t{2 * 65'280}}) {
    Session session(1);
    const auto front = bytes_of(240, 7), body = bytes_of(count, 8);
    const std::vector<iovec> parts{{const_cast<std::byte*>(front.data()), front.size()},
                                   {const_cast<std::byte*>(body.data()), body.size()}};
    EXPECT_EQ(session.sender.lend(parts, 0, SessionSender::Amount::kChunk),
              front.size() + std::min<std::size_t>(count, 65'280));
  }
}

TEST(Session, ManyBytesUseAllConnections) {
  Session session(4);
  const auto sent = bytes_of(std::size_t{1} << 20, 1);
  EXPECT_EQ(session.take(sent), sent.size());
  session.push();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_GT(session.waiting(i), kLongestChunk) << i;
  session.receive_all(1);
  EXPECT_TRUE(session.arrived == sent);
}

TEST(Session, ChunksThatArriveInAnyOrderMakeOneStream) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Session session(1 + seed % 5);
    Chance chance(seed);
    std::vector<std::byte> sent;
    for (int message = 0; message < 20; ++message) {
      const auto bytes = bytes_of(chance() % (message % 3 == 0 ? 400'000 : 5'000), chance());
      for (std::span<const std::byte> rest(bytes); !rest.empty();) {
        rest = rest.subspan(session.take(rest));
        session.push();
        if (chance() % 2 == 0 || !session.sender.has_room()) session.receive_all(chance());
        session.sender.forget(session.receiver.received());
      }
      sent.insert(sent.end(), bytes.begin(), bytes.end());
    }
    session.push();
    session.receive_all(seed);
    ASSERT_TRUE(session.arrived == sent) << "seed " << seed;
    EXPECT_EQ(session.receiver.received(), sent.size());
    EXPECT_FALSE(session.receiver.has_gap());
    session.expect_no_failures();
  }
}

TEST(Session, WhatABrokenConnectionCarriedGoesOverTheOthersAtOnce) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Session session(3);
    Chance chance(seed);
    const auto sent = bytes_of(1'500'000, seed);
    ASSERT_EQ(session.take(sent), sent.size());
    session.push();
    // Some of it was read before, some will come twice.
    for (std::uint64_t i = 0; i < seed % 7; ++i) {
      session.fill(chance() % 3);
      session.give();
      if (chance() % 2 == 0) session.receiver.set_aside();
    }
    const std::size_t broken = chance() % 3;
    session.break_connection(broken);
    session.push();
    session.receive_all(seed);
    ASSERT_TRUE(session.arrived == sent) << "seed " << seed;
    session.expect_no_failures();
    session.sender.forget(session.receiver.received());
    EXPECT_FALSE(session.sender.has_pending());
    // It comes back, and takes part again.
    session.connect(broken);
    session.receiver.restart(broken);
    session.sender.restart(broken, session.receiver.received());
    const auto more = bytes_of(1'000'000, seed + 100);
    ASSERT_EQ(session.take(more), more.size());
    session.push();
    EXPECT_GT(session.waiting(broken), 0u);
    session.receive_all(seed);
    EXPECT_TRUE(std::equal(more.begin(), more.end(),
                           session.arrived.end() - static_cast<std::ptrdiff_t>(more.size())));
  }
}

// The sender learns late that the connection broke, so what it wrote there comes twice, or never.
TEST(Session, WhatHadArrivedBeforeTheBreakIsDroppedWhenItComesAgain) {
  Session session(2);
  const auto sent = bytes_of(1'000'000, 5);
  ASSERT_EQ(session.take(sent), sent.size());
  session.push();
  session.receive_all(5);
  ASSERT_TRUE(session.arrived == sent);
  session.break_connection(1);  // nothing was acknowledged
  session.push();
  EXPECT_GT(session.waiting(0), kLongestChunk);
  session.receive_all(5);
  EXPECT_EQ(session.arrived.size(), sent.size());
  session.expect_no_failures();
}

TEST(Session, AllConnectionsMayBreakAtOnce) {
  Session session(3);
  const auto sent = bytes_of(1'200'000, 6);
  ASSERT_EQ(session.take(sent), sent.size());
  session.push();
  session.fill(1);
  session.fill(0);
  session.give();
  for (std::size_t i = 0; i < 3; ++i) session.break_connection(i);
  session.push();
  EXPECT_TRUE(session.sender.has_pending());
  session.connect(2);
  session.sender.restart(2, session.receiver.received());
  session.push();
  session.receive_all(6);
  EXPECT_TRUE(session.arrived == sent);
}

TEST(Session, WhatNobodyMaySendIsRefused) {
  const auto failure_after = [](std::size_t num_connections, std::uint64_t offset) {
    Session session(num_connections);
    const internal::ChunkHeader header{internal::ChunkHeader::Kind::kData, 0, 0, offset, 0};
    const auto bytes = internal::encode(header);
    EXPECT_EQ(::send(session.near[0].get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    session.receive_all(1);
    const Error* const failure = session.receiver.failure(0);
    return failure ? failure->message() : std::string();
  };
  const std::size_t window = internal::session_window(2);
  EXPECT_EQ(failure_after(1, 0), "");
  EXPECT_NE(failure_after(1, 1).find("a chunk is missing; expected byte 0, got 1"),
            std::string::npos);
  EXPECT_EQ(failure_after(2, window), "");
  EXPECT_NE(failure_after(2, window + 1).find("a chunk is missing"), std::string::npos);
  Session session(2);
  EXPECT_EQ(session.take(bytes_of(100, 1)), 100u);
  session.push();
  expect_error(ErrorCode::kDataLoss, {"has 101 bytes; expected 0 to 100"},
               [&] { session.sender.restart(0, 101); });
}

TEST(Session, WhatIsKeptForARankThatDoesNotReadCountsAsReceived) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Session session(1 + seed % 4);
    Chance chance(seed);
    const auto sent = bytes_of(100'000 + chance() % 900'000, seed);
    ASSERT_EQ(session.take(sent), sent.size());
    if (seed % 2 == 0) {  // some of it is being given
      session.push();
      session.fill(0);
      session.give();
    }
    const std::uint64_t given = session.arrived.size();
    for (int i = 0; i < 400; ++i) {
      session.push();
      session.fill(chance() % session.far.size());
      EXPECT_TRUE(session.receiver.keep());
    }
    EXPECT_EQ(session.receiver.received(), sent.size()) << "seed " << seed;
    EXPECT_EQ(session.arrived.size(), given);
    session.sender.forget(session.receiver.received());
    EXPECT_FALSE(session.sender.has_unacknowledged());
    session.give_all();
    EXPECT_TRUE(session.arrived == sent) << "seed " << seed;
    session.expect_no_failures();
  }
}

TEST(Session, NoMoreIsKeptThanAPeerMaySendUnacknowledged) {
  Session session(1);
  const auto sent = bytes_of(internal::session_window(1), 1);
  bool has_room = true;
  for (int i = 0; has_room && i < 1000; ++i) {
    session.take(std::span(sent).first(sent.size() / 2));
    session.push();
    session.fill(0);
    has_room = session.receiver.keep();
    session.sender.forget(session.receiver.received());
  }
  EXPECT_FALSE(has_room);
  EXPECT_GE(session.receiver.received(), internal::session_window(1));
  EXPECT_LE(session.receiver.received(), 2 * internal::session_window(1));
  session.give_all();
  EXPECT_EQ(session.arrived.size(), session.receiver.received());
  EXPECT_TRUE(session.receiver.keep());
}

TEST(Session, AGoodByeIsAcknowledgedAndSaidAgainUntilThen) {
  for (const std::size_t num_connections : {1, 3}) {
    Session session(num_connections);
    EXPECT_EQ(session.take(bytes_of(500'000, 1)), 500'000u);
    session.sender.say_bye();
    session.push();
    for (std::size_t i = 0; i < num_connections; ++i) session.break_connection(i);
    session.connect(num_connections - 1);
    session.sender.restart(num_connections - 1, session.receiver.received());
    session.push();
    session.receive_all(1);
    EXPECT_EQ(session.arrived.size(), 500'000u);
    EXPECT_TRUE(session.receiver.has_said_bye());
    EXPECT_EQ(session.receiver.received(), 500'001u);
    session.sender.forget(500'000);
    EXPECT_FALSE(session.sender.is_bye_heard());
    // The answer is lost; a new connection begins with it.
    session.sender.restart(num_connections - 1, session.receiver.received());
    EXPECT_TRUE(session.sender.is_bye_heard());
    session.sender.say_bye();
    session.connect(num_connections - 1);
    session.push();
    EXPECT_EQ(session.waiting(num_connections - 1), 0u);
    expect_error(ErrorCode::kDataLoss, {"has 500002 bytes"},
                 [&] { session.sender.restart(0, 500'002); });
  }
}

// It goes over a connection that has nothing else to say.
TEST(Session, AGoodByeThatOvertakesOtherBytesWaitsForThem) {
  Session session(2);
  const auto sent = bytes_of(1'000'000, 2);
  ASSERT_EQ(session.take(sent), sent.size());
  session.push();
  session.sender.say_bye();
  // What the second connection brings is lost, and comes behind the good-bye on the first one.
  for (int i = 0; i < 1000 && !session.receiver.is_ending(); ++i) {
    session.push();
    session.fill(0);
    session.receiver.set_aside();
    session.give_all();
  }
  ASSERT_TRUE(session.receiver.is_ending());
  EXPECT_FALSE(session.receiver.has_bye());
  session.break_connection(1);
  session.receive_all(2);
  EXPECT_TRUE(session.arrived == sent);
  EXPECT_TRUE(session.receiver.has_said_bye());
  session.expect_no_failures();
}

TEST(Session, ABeatIsSaidOnConnectionsThatAreSilent) {
  Session session(2);
  std::vector<const FileDescriptor*> sockets{&session.near[0], &session.near[1]};
  session.take(bytes_of(10, 1));
  session.push();
  const std::size_t before = session.waiting(0);
  session.sender.beat(sockets, 0);  // the first one has spoken
  EXPECT_EQ(session.waiting(0), before);
  EXPECT_EQ(session.waiting(1), kChunkHeaderBytes);
  session.sender.beat(sockets, 0);
  EXPECT_EQ(session.waiting(0), before + kChunkHeaderBytes);
  session.receive_all(1);
  EXPECT_EQ(session.arrived.size(), 10u);
  session.expect_no_failures();
}

}  // namespace session_test
}  // namespace tutti
