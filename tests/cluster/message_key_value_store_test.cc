// Values that ranks tell each other by messages.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/message_key_value_store.h"

#include <gtest/gtest.h>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace message_store_test {

using testing::expect_error;

TimePoint in_ms(int ms) {
  return deadline_after(Clock::system().now(), std::chrono::milliseconds(ms));
}

std::vector<std::unique_ptr<MessageKeyValueStore>> stores(int size) {
  std::vector<std::unique_ptr<MessageKeyValueStore>> all;
  for (auto& transport : in_process_transports(size)) {
    all.push_back(std::make_unique<MessageKeyValueStore>(std::move(transport)));
  }
  return all;
}

TEST(MessageKeyValueStore, EveryRankGetsWhatOneHasSet) {
  const testing::HangWatchdog watchdog("message store");
  const auto all = stores(3);
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(all[1]->get("k"), std::nullopt);
  all[0]->set("k", "old");
  all[0]->set("k", "new");
  all[2]->set("large/value", large);
  all[1]->set("empty", "");
  EXPECT_EQ(all[0]->get("k"), "new");
  const auto other = Executor::system().start("setter", [&] {
    EXPECT_EQ(all[2]->wait("k", in_ms(20'000)), "new");
    EXPECT_EQ(all[2]->wait("later", in_ms(20'000)), "v");
  });
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)]->wait("large/value", in_ms(20'000)), large);
    EXPECT_EQ(all[static_cast<std::size_t>(r)]->wait("empty", in_ms(20'000)), "");
  }
  EXPECT_EQ(all[1]->wait("k", in_ms(20'000)), "new");
  all[1]->set("later", "v");
}

TEST(MessageKeyValueStore, DeadlinesAndKeysAreNamed) {
  const auto all = stores(2);
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 1 of 2", "'missing'"},
               [&] { all[1]->wait("missing", in_ms(5)); });
  expect_error(ErrorCode::kInvalidArgument, {"the key 'a b'"}, [&] { all[0]->set("a b", "x"); });
}

// Over TCP: what the system has of a process that ends still arrives.
TEST(MessageKeyValueStore, ARankThatIsGoneHasToldWhatItTold) {
  const testing::HangWatchdog watchdog("message store", std::chrono::seconds(60));
  const auto meeting = std::make_shared<InProcessStore>();
  EXPECT_EQ(error_of_ranks(2,
                           [&](int rank) {
                             MessageKeyValueStore store(connect_by_tcp(rank, 2, *meeting));
                             if (rank == 1) return store.set("k", "v");
                             EXPECT_EQ(store.wait("k", in_ms(20'000)), "v");
                             EXPECT_EQ(store.get("other"), std::nullopt);
                             store.set("alone", "v");
                             EXPECT_EQ(store.get("alone"), "v");
                           }),
            "");
}

TEST(MessageKeyValueStore, AnotherTransportIsConnectedThroughIt) {
  const testing::HangWatchdog watchdog("message store");
  const auto all = stores(2);
  const auto sum = [&](int rank) {
    const auto tcp = connect_by_tcp(rank, 2, *all[static_cast<std::size_t>(rank)]);
    std::vector<int> values{rank + 1};
    make_communicator(tcp)->all_reduce(ReduceOp::kSum, std::span(values));
    EXPECT_EQ(values[0], 3);
  };
  const auto other = Executor::system().start("rank-1", [&] { sum(1); });
  sum(0);
}

}  // namespace message_store_test
}  // namespace tutti
