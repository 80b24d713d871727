// Messages whose bodies are sent from, and received to, the memory of the ranks themselves.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <vector>

#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/net/sent_bytes.h"
#include "tutti/cluster/net/tcp_transport.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/in_process/in_process_store.h"

namespace tutti {
namespace lent_messages_test {

using internal::SentBytes;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kLong = std::size_t{700} << 10;  // less than a session sends unacknowledged
constexpr std::byte kOther{0xA5};

TimePoint by(Duration duration) { return deadline_after(Clock::system().now(), duration); }

Bytes counted(std::size_t count, unsigned first) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((first + i + i / 251) % 251);
  }
  return bytes;
}

Bytes at(const SentBytes& sent, std::uint64_t offset, std::size_t count) {
  Bytes bytes;
  for (const auto place : sent.places(offset, count)) {
    bytes.insert(bytes.end(), place.begin(), place.end());
  }
  return bytes;
}

TEST(SentBytes, CopiesAndLoansAreOneStreamAroundTheEndOfTheRing) {
  SentBytes sent(64);
  const Bytes all = counted(150, 1);
  Bytes memory(all.begin() + 50, all.begin() + 90);
  sent.copy(0, std::span(all).first(50));
  EXPECT_EQ(sent.first_lent(), ~std::uint64_t{0});
  sent.forget(45);
  sent.lend(50, std::span(memory).first(25));
  sent.lend(75, std::span(memory).subspan(25));  // goes on in the same memory
  EXPECT_EQ(sent.first_lent(), 50u);
  sent.copy(90, std::span(all).subspan(90, 10));
  EXPECT_EQ(at(sent, 45, 5), Bytes(all.begin() + 45, all.begin() + 50));
  EXPECT_EQ(at(sent, 60, 30), Bytes(all.begin() + 60, all.begin() + 90));
  EXPECT_EQ(sent.places(60, 30)[0].data(), memory.data() + 10);  // not a copy
  EXPECT_EQ(at(sent, 90, 10), Bytes(all.begin() + 90, all.begin() + 100));
  sent.forget(70);
  EXPECT_EQ(sent.first_lent(), 70u);
  sent.take_back(71);
  std::ranges::fill(memory, kOther);
  EXPECT_EQ(sent.first_lent(), ~std::uint64_t{0});
  EXPECT_EQ(at(sent, 70, 20), Bytes(all.begin() + 70, all.begin() + 90));
  EXPECT_EQ(at(sent, 90, 10), Bytes(all.begin() + 90, all.begin() + 100));
}

TEST(SentBytes, OnlyLoansThatBeginBeforeTheEndAreTakenBack) {
  SentBytes sent(64);
  const Bytes first = counted(10, 1), second = counted(10, 50);
  sent.lend(0, first);
  sent.copy(10, std::span(first).first(5));
  sent.lend(15, second);
  sent.take_back(15);
  EXPECT_EQ(sent.first_lent(), 15u);
  EXPECT_EQ(at(sent, 0, 10), first);
  EXPECT_EQ(sent.places(15, 10)[0].data(), second.data());
  sent.forget(25);
  EXPECT_EQ(sent.first_lent(), ~std::uint64_t{0});
}

TEST(SentBytes, ALoanThatMovesIsReadAndTakenBackWhereItLiesThen) {
  SentBytes sent(64);
  const Bytes all = counted(60, 1);
  Bytes before(all.begin() + 30, all.begin() + 50), after(25, kOther);
  sent.lend(0, std::span(all).first(20));
  sent.copy(20, std::span(all).subspan(20, 10));
  sent.lend(30, before);
  sent.copy(50, std::span(all).subspan(50, 10));
  sent.forget(33);  // the peer has a part
  // The bytes [25, 50), of which the first are copies.
  std::copy(before.begin(), before.end(), after.begin() + 5);
  std::ranges::fill(before, kOther);
  sent.move_lent(50, after);
  EXPECT_EQ(sent.places(33, 17)[0].data(), after.data() + 8);
  EXPECT_EQ(at(sent, 33, 17), Bytes(all.begin() + 33, all.begin() + 50));
  sent.take_back(50);
  std::ranges::fill(after, kOther);
  EXPECT_EQ(at(sent, 33, 17), Bytes(all.begin() + 33, all.begin() + 50));
  EXPECT_EQ(at(sent, 50, 10), Bytes(all.begin() + 50, all.end()));
}

TEST(SentBytes, OtherLoansStayWhereTheyAre) {
  SentBytes sent(64);
  const Bytes first = counted(10, 1), second = counted(10, 50), third = counted(10, 90);
  const Bytes moved = second;
  sent.lend(0, first);
  sent.lend(10, second);
  sent.lend(20, third);
  sent.move_lent(20, moved);
  EXPECT_EQ(sent.places(0, 10)[0].data(), first.data());
  EXPECT_EQ(sent.places(10, 10)[0].data(), moved.data());
  EXPECT_EQ(sent.places(20, 10)[0].data(), third.data());
}

/// Two ranks of this process, connected over TCP.
struct Two {
  explicit Two(int num_connections = 1) {
    const TcpOptions options{.tcp_connections = num_connections};
    const auto lower =
        Executor::system().start("rank-0", [&] { zero = tcp_transport(0, 2, store, options); });
    one = tcp_transport(1, 2, store, options);
    lower->join();
  }
  InProcessStore store;
  std::shared_ptr<Transport> zero, one;
};

TEST(LentMessages, MemoryMayChangeAfterTheWaitAlthoughNobodyHasReceived) {
  const testing::HangWatchdog watchdog("changed after wait", 100s);
  for (const int num_connections : {1, 3}) {
    Two ranks(num_connections);
    const Bytes original = counted(kLong, 7);
    Bytes memory = original, got(kLong);
    const auto send = ranks.zero->send(1, 5, {}, memory);
    EXPECT_FALSE(send->ended_by_now());  // nobody has it
    send->wait(by(60s));
    EXPECT_TRUE(send->ended_by_now());
    std::ranges::fill(memory, kOther);
    ranks.one->recv(0, 5, {}, got)->wait(by(60s));
    EXPECT_TRUE(got == original);
  }
}

TEST(LentMessages, TestEndsASendWithoutThePeer) {
  const testing::HangWatchdog watchdog("test", 100s);
  Two ranks;
  const Bytes original = counted(kLong, 8);
  Bytes memory = original, got(kLong);
  const auto send = ranks.zero->send(1, 5, {}, memory);
  for (const TimePoint end = by(60s); !send->test();) ASSERT_LT(Clock::system().now(), end);
  std::ranges::fill(memory, kOther);
  ranks.one->recv(0, 5, {}, got)->wait(by(60s));
  EXPECT_TRUE(got == original);
}

TEST(LentMessages, ASendThatIsDroppedArrivesWhole) {
  const testing::HangWatchdog watchdog("dropped", 100s);
  Two ranks;
  const Bytes original = counted(4 * kLong, 9);  // more than there is room for
  auto memory = std::make_unique<Bytes>(original);
  (void)ranks.zero->send(1, 5, {}, *memory);
  memory.reset();
  const auto drives = Executor::system().start("rank-0", [&] {
    std::array<std::byte, 1> word{};
    ranks.zero->recv(1, 6, {}, word)->wait(by(60s));
  });
  Bytes got(original.size());
  ranks.one->recv(0, 5, {}, got)->wait(by(60s));
  EXPECT_TRUE(got == original);
  const std::array<std::byte, 1> word{};
  ranks.one->send(0, 6, {}, word)->wait(by(60s));
  drives->join();
}

TEST(LentMessages, WhatThePeerSaysEndsASendThatNobodyWaitsFor) {
  const testing::HangWatchdog watchdog("acknowledged", 100s);
  Two ranks;
  const Bytes memory = counted(kLong, 10);
  const auto send = ranks.zero->send(1, 5, {}, memory);
  const auto answers = Executor::system().start("rank-1", [&] {
    Bytes got(kLong);
    ranks.one->recv(0, 5, {}, got)->wait(by(60s));
    ranks.one->send(0, 6, {}, std::span(got).first(1))->wait(by(60s));
  });
  std::array<std::byte, 1> word{};
  ranks.zero->recv(1, 6, {}, word)->wait(by(60s));
  EXPECT_TRUE(send->ended_by_now());
  answers->join();
}

TEST(LentMessages, AnAbortReturnsTheMemory) {
  const testing::HangWatchdog watchdog("abort", 100s);
  Two ranks;
  auto memory = std::make_unique<Bytes>(counted(kLong, 11));
  const auto send = ranks.zero->send(1, 5, {}, *memory);
  ASSERT_FALSE(send->ended_by_now());
  ranks.zero->abort(Error(ErrorCode::kAborted, "enough"));
  EXPECT_TRUE(send->ended_by_now());
  memory.reset();  // though much of it is still to be written
  std::array<std::byte, 1> word{};
  testing::expect_error(ErrorCode::kAborted, {"enough"},
                        [&] { ranks.one->recv(0, 6, {}, word)->wait(by(60s)); });
}

// The peer reads on, for it waits for something else; nothing but its reading makes room.
TEST(LentMessages, AnAbortBehindALongMessageIsHeard) {
  const testing::HangWatchdog watchdog("abort behind a long message", 100s);
  for (const int num_connections : {1, 2}) {
    Two ranks(num_connections);
    const Bytes memory = counted(std::size_t{8} << 20, 16);
    const auto send = ranks.zero->send(1, 5, {}, memory);  // nobody receives it
    std::string heard;
    const auto waits = Executor::system().start("rank-1", [&] {
      std::array<std::byte, 1> word{};
      try {
        ranks.one->recv(0, 6, {}, word)->wait(by(60s));
      } catch (const Error& error) {
        heard = error.message();
      }
    });
    ranks.zero->abort(Error(ErrorCode::kAborted, "rank 0: the disk is full"));
    waits->join();  // rank 0 is still there: its end tells nothing
    EXPECT_NE(heard.find("rank 0: the disk is full"), std::string::npos) << heard;
    testing::expect_error(ErrorCode::kAborted, {"the disk is full"}, [&] { send->wait(by(1s)); });
  }
}

// Its memory goes away in the middle of the body; the next message comes whole.
TEST(LentMessages, AReceiverMayLeaveInTheMiddle) {
  const testing::HangWatchdog watchdog("left", 100s);
  Two ranks;
  const Bytes first = counted(4 * kLong, 12), second = counted(kLong, 13);
  const auto sends = Executor::system().start("rank-0", [&] {
    const auto one = ranks.zero->send(1, 5, {}, first);
    Clock::system().sleep_for(50ms);  // a part of it is on its way, the window is full
    const auto two = ranks.zero->send(1, 6, {}, second);
    one->wait(by(60s));
    two->wait(by(60s));
  });
  {
    Bytes memory(first.size());
    const auto leaves = ranks.one->recv(0, 5, {}, memory);
    EXPECT_THROW(leaves->wait(by(10ms)), Error);
  }
  Bytes got(second.size());
  ranks.one->recv(0, 6, {}, got)->wait(by(60s));
  EXPECT_TRUE(got == second);
  sends->join();
}

// Both send what the other's message then overwrites, as an all_reduce in place does.
TEST(LentMessages, ARankMayReceiveWhereItHasSentFrom) {
  const testing::HangWatchdog watchdog("in place", 100s);
  Two ranks;
  const Bytes originals[] = {counted(kLong, 14), counted(kLong, 99)};
  Bytes memories[] = {originals[0], originals[1]};
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             const auto& own = rank == 0 ? ranks.zero : ranks.one;
                             for (int round = 0; round < 50; ++round) {
                               Bytes& memory = memories[rank];
                               own->send(1 - rank, 5, {}, memory)->wait(by(60s));
                               own->recv(1 - rank, 5, {}, memory)->wait(by(60s));
                               const int from = round % 2 == 0 ? 1 - rank : rank;
                               if (memory != originals[from]) {
                                 fail(ErrorCode::kInternal, "other bytes in round ", round);
                               }
                             }
                           }),
            "");
}

}  // namespace lent_messages_test
}  // namespace tutti
