// The memory of messages over TCP: when it may change, when it may go away, and what arrives then.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace message_memory_test {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

// More than the system keeps for a socket, so a part of it is written while the peer reads.
constexpr std::size_t kLong = std::size_t{32} << 20;
constexpr std::byte kOther{0xA5};

TimePoint by(Duration duration) { return deadline_after(Clock::system().now(), duration); }

Bytes counted(std::size_t count, unsigned first) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((first + i + i / 251) % 251);
  }
  return bytes;
}

/// Two ranks of this process, connected over TCP.
struct Two {
  Two() {
    const auto lower =
        Executor::system().start("rank-0", [&] { zero = connect_by_tcp(0, 2, store); });
    one = connect_by_tcp(1, 2, store);
    lower->join();
  }
  InProcessStore store;
  std::shared_ptr<Transport> zero, one;
};

TEST(MessageMemory, MayChangeAfterTheWaitAlthoughNobodyHasReceived) {
  const testing::HangWatchdog watchdog("changed after wait", 100s);
  Two ranks;
  const Bytes original = counted(16'000, 7);
  Bytes memory = original, got(original.size());
  ranks.zero->send(1, 5, {}, memory)->wait(by(60s));  // the system has it
  std::ranges::fill(memory, kOther);
  ranks.one->recv(0, 5, {}, got)->wait(by(60s));
  EXPECT_TRUE(got == original);
}

TEST(MessageMemory, MayChangeOnceATestHasSeenTheEndOfALongSend) {
  const testing::HangWatchdog watchdog("test", 100s);
  Two ranks;
  const Bytes original = counted(kLong, 8);
  Bytes memory = original, got(kLong);
  const auto reads =
      Executor::system().start("rank-1", [&] { ranks.one->recv(0, 5, {}, got)->wait(by(60s)); });
  const auto send = ranks.zero->send(1, 5, {}, memory);
  for (const TimePoint end = by(60s); !send->test();) ASSERT_LT(Clock::system().now(), end);
  std::ranges::fill(memory, kOther);
  reads->join();
  EXPECT_TRUE(got == original);
}

TEST(MessageMemory, ASendThatIsDroppedArrivesWhole) {
  const testing::HangWatchdog watchdog("dropped", 100s);
  Two ranks;
  const Bytes original = counted(kLong, 9);
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

// The peer reads on, for it waits for something else; nothing but its reading makes room.
TEST(MessageMemory, AnAbortReturnsItAndIsHeardBehindALongMessage) {
  const testing::HangWatchdog watchdog("abort behind a long message", 100s);
  Two ranks;
  auto memory = std::make_unique<Bytes>(counted(std::size_t{8} << 20, 16));
  const auto send = ranks.zero->send(1, 5, {}, *memory);  // nobody receives it
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
  memory.reset();  // though a part of it may be still to be written
  waits->join();   // rank 0 is still there: its end tells nothing
  EXPECT_NE(heard.find("rank 0: the disk is full"), std::string::npos) << heard;
  testing::expect_error(ErrorCode::kAborted, {"the disk is full"}, [&] { send->wait(by(1s)); });
}

// Its memory goes away in the middle of the body; the next message comes whole.
TEST(MessageMemory, AReceiverMayLeaveInTheMiddle) {
  const testing::HangWatchdog watchdog("left", 100s);
  Two ranks;
  const Bytes first = counted(kLong, 12), second = counted(1'000'000, 13);
  const auto sends = Executor::system().start("rank-0", [&] {
    const auto one = ranks.zero->send(1, 5, {}, first);
    Clock::system().sleep_for(50ms);  // a part of it is on its way
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
TEST(MessageMemory, ARankMayReceiveWhereItHasSentFrom) {
  const testing::HangWatchdog watchdog("in place", 100s);
  constexpr std::size_t kInPlace = std::size_t{700} << 10;
  Two ranks;
  const Bytes originals[] = {counted(kInPlace, 14), counted(kInPlace, 99)};
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

// Rank 0 sends rank 1 more than there is room for, and waits for rank 2, which speaks only when
// rank 1 has it all: what makes room at rank 1 must let rank 0 send on.
TEST(MessageMemory, ALongSendGoesOnWhileItsRankWaitsForAnother) {
  const testing::HangWatchdog watchdog("waits for another", 100s);
  InProcessStore store;
  EXPECT_EQ(error_of_ranks(3,
                           [&](int rank) {
                             const auto own = connect_by_tcp(rank, 3, store);
                             Bytes word(1), body(std::size_t{16} << 20);
                             for (int round = 0; round < 20; ++round) {
                               if (rank == 0) {
                                 const auto sent = own->send(1, 1, {}, body);
                                 own->recv(2, 2, {}, word)->wait(by(60s));
                                 sent->wait(by(60s));
                               } else if (rank == 1) {
                                 own->recv(0, 1, {}, body)->wait(by(60s));
                                 own->send(2, 3, {}, word)->wait(by(60s));
                               } else {
                                 own->recv(1, 3, {}, word)->wait(by(60s));
                                 own->send(0, 2, {}, word)->wait(by(60s));
                               }
                             }
                           }),
            "");
}

}  // namespace message_memory_test
}  // namespace tutti
