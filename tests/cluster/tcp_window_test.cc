// A sender that waits for somebody else while its window opens.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/hang_watchdog.h"
#include "tests/support/ranks.h"
#include "tutti/cluster/net/tcp_transport.h"
#include "tutti/cross_device_ops/in_process/in_process_store.h"

namespace tutti::tcp_window_test {

// Rank 0 sends rank 1 more than is sent unacknowledged, and waits for rank 2, which speaks only
// when rank 1 has it all: what rank 1 acknowledges must let rank 0 send on.
TEST(TcpWindow, OpensForARankThatWaitsForAnother) {
  const testing::HangWatchdog watchdog("window", std::chrono::seconds(100));
  InProcessStore store;
  const auto soon = [] { return deadline_after(Clock::system().now(), std::chrono::seconds(60)); };
  EXPECT_EQ(error_of_ranks(3,
                           [&](int rank) {
                             const auto own = tcp_transport(rank, 3, store);
                             std::vector<std::byte> word(1), body(std::size_t{16} << 20);
                             for (int round = 0; round < 20; ++round) {
                               if (rank == 0) {
                                 const auto sent = own->send(1, 1, {}, body);
                                 own->recv(2, 2, {}, word)->wait(soon());
                                 sent->wait(soon());
                               } else if (rank == 1) {
                                 own->recv(0, 1, {}, body)->wait(soon());
                                 own->send(2, 3, {}, word)->wait(soon());
                               } else {
                                 own->recv(1, 3, {}, word)->wait(soon());
                                 own->send(0, 2, {}, word)->wait(soon());
                               }
                             }
                           }),
            "");
}

}  // namespace tutti::tcp_window_test
