// Typed test suite that every Transport must pass; requires only a factory for groups.
// SPDX-License-Identifier: Apache-2.0
//
//     struct InProcess {
//       static std::vector<std::shared_ptr<Transport>> make(int size);  /* by rank */
//     };
//     INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, TransportSuite, InProcess);
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tests/support/waiting.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::transport_suite {

using Bytes = std::vector<std::byte>;
using Group = std::vector<std::shared_ptr<Transport>>;

using tutti::testing::late;

inline TimePoint soon() { return tutti::testing::in(std::chrono::milliseconds(30)); }

template <class Factory>
class TransportSuite : public ::testing::Test {
 protected:
  static Group make(int size) { return Factory::make(size); }
  tutti::testing::HangWatchdog watchdog_{"transport suite", std::chrono::seconds(60)};
};
TYPED_TEST_SUITE_P(TransportSuite);

TYPED_TEST_P(TransportSuite, EveryPairOfRanksExchangesMessages) {
  for (const int size : {1, 2, 3, 5}) {
    const Group group = this->make(size);
    require_on_ranks(size, [&](int rank) {
      Transport& mine = *group[static_cast<std::size_t>(rank)];
      EXPECT_EQ(mine.rank(), rank);
      EXPECT_EQ(mine.size(), size);
      EXPECT_FALSE(mine.name().empty());
      std::vector<Bytes> sent, received;
      std::vector<std::unique_ptr<Work>> works;
      for (int peer = 0; peer < size; ++peer) {
        sent.push_back(pattern_of(1000, static_cast<unsigned>(rank * size + peer)));
        received.emplace_back(1000);
      }
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        const auto p = static_cast<std::size_t>(peer);
        works.push_back(mine.recv(peer, 1, {}, received[p]));
        works.push_back(mine.send(peer, 1, {}, sent[p]));
      }
      for (const auto& work : works) work->wait(late());
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        EXPECT_EQ(received[static_cast<std::size_t>(peer)],
                  pattern_of(1000, static_cast<unsigned>(peer * size + rank)));
      }
    });
  }
}

TYPED_TEST_P(TransportSuite, HeadersAndBodiesOfAllLengthsArrive) {
  const Group group = this->make(2);
  constexpr std::size_t kHeads[] = {0, 1, 8, 208, 256};
  constexpr std::size_t kBodies[] = {0, 1, 7, 4096, 65537, 1 << 20};
  require_on_ranks(2, [&](int rank) {
    Transport& mine = *group[static_cast<std::size_t>(rank)];
    unsigned seed = 0;
    for (const std::size_t head : kHeads) {
      for (const std::size_t body : kBodies) {
        const Bytes h = pattern_of(head, ++seed), b = pattern_of(body, ++seed);
        if (rank == 0) {
          mine.send(1, 3, h, b)->wait(late());
          continue;
        }
        Bytes got_head(head), got_body(body);
        mine.recv(0, 3, got_head, got_body)->wait(late());
        EXPECT_EQ(got_head, h) << head << ", " << body;
        EXPECT_EQ(got_body, b) << head << ", " << body;
      }
    }
  });
}

TYPED_TEST_P(TransportSuite, InvalidArgumentsAreRefused) {
  const Group group = this->make(2);
  Bytes bytes(300);
  for (const int peer : {-1, 0, 2}) {
    EXPECT_INVALID(group[0]->send(peer, 0, {}, bytes), "rank 0", std::to_string(peer));
    EXPECT_INVALID(group[0]->recv(peer, 0, {}, bytes), "rank 0", std::to_string(peer));
  }
  EXPECT_INVALID(group[0]->send(1, 0, bytes, {}), "256", "300");
  EXPECT_INVALID(group[0]->recv(1, 0, bytes, {}), "256", "300");
}

TYPED_TEST_P(TransportSuite, MessagesWithSameTagStayOrderedAndTagsAreIndependent) {
  const Group group = this->make(2);
  constexpr int kMessages = 20;
  std::vector<int> numbers(3 * kMessages);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto bytes_of = [](int& number) { return std::as_writable_bytes(std::span(&number, 1)); };
  require_on_ranks(2, [&](int rank) {
    Transport& mine = *group[static_cast<std::size_t>(rank)];
    std::vector<std::unique_ptr<Work>> works;
    if (rank == 0) {  // sends messages with tags 0, 1, 2 in turn
      for (int i = 0; i < 3 * kMessages; ++i) {
        works.push_back(mine.send(1, static_cast<unsigned>(i % 3), {},
                                  bytes_of(numbers[static_cast<std::size_t>(i)])));
      }
      for (const auto& work : works) work->wait(late());
      return;
    }
    for (const int tag : {2, 0, 1}) {  // receives the messages tag by tag
      for (int i = 0; i < kMessages; ++i) {
        int got = -1;
        mine.recv(0, static_cast<unsigned>(tag), {}, bytes_of(got))->wait(late());
        EXPECT_EQ(got, 3 * i + tag);
      }
    }
  });
}

TYPED_TEST_P(TransportSuite, MessagesAreKeptUntilReceived) {
  const Group group = this->make(2);
  const Bytes head = pattern_of(16, 1), body = pattern_of(200000, 2);
  Event sent;
  require_on_ranks(2, [&](int rank) {
    if (rank == 0) {
      const auto first = group[0]->send(1, 9, head, body);
      const auto second = group[0]->send(1, 10, {}, head);
      sent.set();
      first->wait(late());
      second->wait(late());
      return;
    }
    EXPECT_TRUE(sent.wait_until(late()));
    Bytes got_head(16), got_body(200000), later(16);
    const auto second = group[1]->recv(0, 10, {}, later);
    second->wait(late());
    EXPECT_EQ(later, head);
    group[1]->recv(0, 9, got_head, got_body)->wait(late());
    EXPECT_EQ(got_head, head);
    EXPECT_EQ(got_body, body);
  });
}

TYPED_TEST_P(TransportSuite, PollingMakesProgressWithoutWaiting) {
  const Group group = this->make(2);
  const Bytes body = pattern_of(3 << 20, 4);
  require_on_ranks(2, [&](int rank) {
    Bytes got(body.size());
    const auto work = rank == 0 ? group[0]->send(1, 0, {}, body) : group[1]->recv(0, 0, {}, got);
    const TimePoint end = late();
    while (!work->test()) {
      ASSERT_LT(Clock::system().now(), end);
      Clock::system().sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_TRUE(work->test());  // another call returns the same result
    work->wait(soon());
    EXPECT_EQ(got, rank == 1 ? body : Bytes(body.size()));
  });
}

TYPED_TEST_P(TransportSuite, LengthMismatchErrorStillDeliversHeader) {
  const Group group = this->make(2);
  const Bytes head = pattern_of(24, 1), body = pattern_of(100, 2);
  for (const std::size_t wanted : {0, 50, 5000}) {
    require_on_ranks(2, [&](int rank) {
      if (rank == 0) {
        group[0]->send(1, 5, head, body)->wait(late());
        group[0]->send(1, 5, head, body)->wait(late());
        return;
      }
      Bytes got_head(24), got_body(wanted), right(100);
      const auto work = group[1]->recv(0, 5, got_head, got_body);
      EXPECT_INVALID(work->wait(late()), "rank 0", "100", std::to_string(wanted));
      EXPECT_EQ(got_head, head);
      // The transport is still usable.
      group[1]->recv(0, 5, got_head, right)->wait(late());
      EXPECT_EQ(right, body);
    });
  }
}

TYPED_TEST_P(TransportSuite, TimeoutNamesPeer) {
  const Group group = this->make(3);
  Bytes bytes(10);
  const auto work = group[0]->recv(2, 77, {}, bytes);
  EXPECT_FALSE(work->test());
  for (int i = 0; i < 2; ++i) {  // a second wait is allowed
    EXPECT_ERROR(work->wait(soon()), kDeadlineExceeded, "rank 2", "77");
  }
  require_on_ranks(2, [&](int thread) {
    if (thread == 0) group[2]->send(0, 77, {}, pattern_of(10, 3))->wait(late());
    if (thread == 1) work->wait(late());
  });
  EXPECT_EQ(bytes, pattern_of(10, 3));
}

TYPED_TEST_P(TransportSuite, DestroyedWorkIsCancelled) {
  const Group group = this->make(2);
  Bytes never(64), second(64);
  group[1]->recv(0, 1, {}, never);  // its handle is destroyed immediately
  const auto work = group[1]->recv(0, 1, {}, second);
  require_on_ranks(2, [&](int rank) {
    if (rank == 0) group[0]->send(1, 1, {}, pattern_of(64, 8))->wait(late());
    if (rank == 1) work->wait(late());
  });
  EXPECT_EQ(never, Bytes(64));
  EXPECT_EQ(second, pattern_of(64, 8));
  // A large send without a receiver is abandoned when its handle is destroyed. Its memory may then
  // be freed, and the next message still arrives.
  {
    auto large = std::make_unique<Bytes>(pattern_of(16 << 20, 1));
    const auto given_up = group[0]->send(1, 2, {}, *large);
    EXPECT_FALSE(given_up->test());
  }
  require_on_ranks(2, [&](int rank) {
    if (rank == 0) group[0]->send(1, 3, {}, pattern_of(64, 9))->wait(late());
    if (rank == 1) group[1]->recv(0, 3, {}, second)->wait(late());
  });
  EXPECT_EQ(second, pattern_of(64, 9));
}

TYPED_TEST_P(TransportSuite, AbortWakesWaitingThreadsOnAllRanks) {
  const Group group = this->make(3);
  require_on_ranks(4, [&](int thread) {
    if (thread == 3) {
      Clock::system().sleep_for(std::chrono::milliseconds(20));
      group[1]->abort(Error(ErrorCode::kInternal, "the loss is not a number"));
      group[1]->abort(Error(ErrorCode::kInternal, "a later reason"));
      return;
    }
    Bytes bytes(10);
    const auto work = group[static_cast<std::size_t>(thread)]->recv((thread + 1) % 3, 0, {}, bytes);
    EXPECT_ERROR(work->wait(late()), kAborted, "the loss is not a number");
  });
  for (const auto& transport : group) {
    const int peer = (transport->rank() + 1) % 3;
    Bytes bytes(10);
    EXPECT_ERROR(transport->send(peer, 0, {}, bytes)->wait(late()), kAborted,
                 "the loss is not a number");
    EXPECT_ERROR(transport->recv(peer, 0, {}, bytes)->wait(late()), kAborted,
                 "the loss is not a number");
  }
}

TYPED_TEST_P(TransportSuite, DisconnectedRankIsReportedAfterItsLastMessage) {
  Group group = this->make(3);
  require_on_ranks(2, [&](int rank) {
    if (rank == 0) {
      group[0]->send(1, 4, {}, pattern_of(1000, 5))->wait(late());
      group[0].reset();
      return;
    }
    Bytes bytes(1000);
    group[1]->recv(0, 4, {}, bytes)->wait(late());
    EXPECT_EQ(bytes, pattern_of(1000, 5));
    EXPECT_ERROR(group[1]->recv(0, 4, {}, bytes)->wait(late()), kUnavailable, "rank 0");
    EXPECT_ERROR(group[1]->send(0, 4, {}, bytes)->wait(late()), kUnavailable, "rank 0");
  });
  require_on_ranks(2, [&](int thread) {  // the remaining ranks can still communicate
    Bytes bytes(10);
    if (thread == 0) group[1]->send(2, 0, {}, pattern_of(10, 1))->wait(late());
    if (thread == 1) group[2]->recv(1, 0, {}, bytes)->wait(late());
  });
}

TYPED_TEST_P(TransportSuite, ThreadsUseDifferentTagsConcurrently) {
  const Group group = this->make(3);
  constexpr int kTags = 4, kRounds = 30;
  require_on_ranks(3 * kTags, [&](int thread) {
    Transport& mine = *group[static_cast<std::size_t>(thread / kTags)];
    const auto tag = static_cast<unsigned>(thread % kTags);
    const int next = (mine.rank() + 1) % 3, previous = (mine.rank() + 2) % 3;
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t count = 1 + static_cast<std::size_t>(round * round * 97);
      const auto seed = [&](int rank) { return static_cast<unsigned>(rank * 1000 + round) + tag; };
      Bytes got(count);
      const Bytes mine_to_send = pattern_of(count, seed(mine.rank()));
      const auto recv = mine.recv(previous, tag, {}, got);
      const auto send = mine.send(next, tag, {}, mine_to_send);
      recv->wait(late());
      send->wait(late());
      ASSERT_EQ(got, pattern_of(count, seed(previous)));
    }
  });
}

TYPED_TEST_P(TransportSuite, LargeBodiesAreExchangedConcurrently) {
  const Group group = this->make(2);
  constexpr std::size_t kBytes = 32 << 20;
  require_on_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const Bytes body = pattern_of(kBytes, static_cast<unsigned>(rank));
    Bytes got(kBytes);
    const auto recv = group[r]->recv(1 - rank, 0, {}, got);
    const auto send = group[r]->send(1 - rank, 0, {}, body);
    // the pending receive must make progress meanwhile, or both ranks would wait indefinitely
    send->wait(late());
    recv->wait(late());
    EXPECT_TRUE(got == pattern_of(kBytes, static_cast<unsigned>(1 - rank)));
  });
}

TYPED_TEST_P(TransportSuite, StatsCountSentHeadersAndBodies) {
  const Group group = this->make(2);
  EXPECT_EQ(group[0]->stats().messages_sent, 0u);
  EXPECT_EQ(group[0]->stats().bytes_sent, 0u);
  require_on_ranks(2, [&](int rank) {
    Bytes head(8), body(100);
    if (rank == 0) {
      group[0]->send(1, 0, head, body)->wait(late());
      group[0]->send(1, 0, head, {})->wait(late());
    } else {
      group[1]->recv(0, 0, head, body)->wait(late());
      group[1]->recv(0, 0, head, {})->wait(late());
    }
  });
  EXPECT_EQ(group[0]->stats().messages_sent, 2u);
  EXPECT_EQ(group[0]->stats().bytes_sent, 116u);
  EXPECT_EQ(group[1]->stats().messages_sent, 0u);
}

REGISTER_TYPED_TEST_SUITE_P(TransportSuite, EveryPairOfRanksExchangesMessages,
                            HeadersAndBodiesOfAllLengthsArrive, InvalidArgumentsAreRefused,
                            MessagesWithSameTagStayOrderedAndTagsAreIndependent,
                            MessagesAreKeptUntilReceived, PollingMakesProgressWithoutWaiting,
                            LengthMismatchErrorStillDeliversHeader, TimeoutNamesPeer,
                            DestroyedWorkIsCancelled, AbortWakesWaitingThreadsOnAllRanks,
                            DisconnectedRankIsReportedAfterItsLastMessage,
                            ThreadsUseDifferentTagsConcurrently,
                            LargeBodiesAreExchangedConcurrently, StatsCountSentHeadersAndBodies);

}  // namespace tutti::transport_suite
