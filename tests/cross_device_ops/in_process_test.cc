// Transport and store of the threads of one process: what is theirs beyond the common suites.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace in_process_test {

using testing::expect_error;

TimePoint after_ms(int milliseconds) {
  return deadline_after(Clock::system().now(), std::chrono::milliseconds(milliseconds));
}

TEST(InProcessTransport, ASendEndsOnlyWhenItsMessageWasReceived) {
  const auto ranks = in_process_transports(2);
  std::vector<std::byte> sent(100, std::byte{7}), received(100);
  const auto send = ranks[0]->send(1, 3, {}, sent);
  EXPECT_FALSE(send->test());
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 1 has not received", "tag 3", "100 bytes"},
               [&] { send->wait(after_ms(5)); });
  EXPECT_EQ(ranks[0]->stats().bytes_sent, 0u);
  EXPECT_TRUE(ranks[1]->recv(0, 3, {}, received)->test());
  EXPECT_TRUE(send->test());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(ranks[0]->stats().bytes_sent, 100u);
}

TEST(InProcessTransport, ASendThatNobodyTookIsGoneWithItsWork) {
  const auto ranks = in_process_transports(2);
  std::vector<std::byte> byte(1, std::byte{1}), received(1);
  ranks[0]->send(1, 0, {}, byte);
  const auto recv = ranks[1]->recv(0, 0, {}, received);
  EXPECT_FALSE(recv->test());
  EXPECT_EQ(ranks[0]->stats().messages_sent, 0u);
}

TEST(InProcessTransport, AGroupHasARank) {
  expect_error(ErrorCode::kInvalidArgument, {"1 or more", "got 0"},
               [] { in_process_transports(0); });
  EXPECT_EQ(in_process_transports(1)[0]->name(), "in_process");
}

TEST(InProcessStore, KeepsValuesOfAnyBytes) {
  InProcessStore store;
  EXPECT_EQ(store.get("a/b"), std::nullopt);
  store.set("a/b", std::string("\0x\xff", 3));
  EXPECT_EQ(store.get("a/b"), std::string("\0x\xff", 3));
  store.set("a/b", "");
  EXPECT_EQ(store.get("a/b"), "");
  EXPECT_EQ(store.wait("a/b", after_ms(0)), "");
}

TEST(InProcessStore, AWaiterSeesWhatAnotherThreadSets) {
  const testing::HangWatchdog watchdog("in-process store");
  InProcessStore store;
  const auto setter = Executor::system().start("setter", [&] {
    Clock::system().sleep_for(std::chrono::milliseconds(5));
    store.set("other", "1");
    store.set("address", "x");
  });
  EXPECT_EQ(store.wait("address", after_ms(8000)), "x");
  expect_error(ErrorCode::kDeadlineExceeded, {"in-process store", "'missing'"},
               [&] { store.wait("missing", after_ms(5)); });
}

TEST(InProcessStore, BadKeysAndLargeValuesAreRefused) {
  InProcessStore store;
  for (const std::string& key : {std::string(), std::string(201, 'a'), std::string("two words")}) {
    expect_error(ErrorCode::kInvalidArgument, {"the key '", "1 to 200 letters"},
                 [&] { store.set(key, "x"); });
    expect_error(ErrorCode::kInvalidArgument, {"the key '"}, [&] { store.get(key); });
    expect_error(ErrorCode::kInvalidArgument, {"the key '"}, [&] { store.wait(key, after_ms(0)); });
  }
  store.set(std::string(200, 'a'), std::string(1 << 20, 'x'));
  expect_error(ErrorCode::kInvalidArgument, {"the value of 'k'", "1048576", "1048577"},
               [&] { store.set("k", std::string((1 << 20) + 1, 'x')); });
}

}  // namespace in_process_test
}  // namespace tutti
