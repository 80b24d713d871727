// Connecting a group that takes its time: what stands is kept.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/cluster/proxied_ranks.h"
#include "tests/support/hang_watchdog.h"

namespace tutti {
namespace rendezvous_test {

using namespace std::chrono_literals;

/// Exchanges a byte with each other rank.
void expect_connected(Transport& mine) {
  std::array<std::byte, 1> byte{}, got{};
  for (int peer = 0; peer < mine.size(); ++peer) {
    if (peer == mine.rank()) continue;
    const auto recv = mine.recv(peer, 5, {}, got);
    const auto send = mine.send(peer, 5, {}, byte);
    recv->wait(proxied_ranks::in(60s));
    send->wait(proxied_ranks::in(60s));
  }
}

TEST(Rendezvous, TimeoutCountsFromTheLastConnection) {
  const testing::HangWatchdog watchdog("late ranks", 100s);
  InProcessStore store;
  // The last of four ranks comes after 3 s, a second after the one before.
  EXPECT_EQ("", error_of_ranks(4, [&](int rank) {
              Clock::system().sleep_for(rank * 1s);
              expect_connected(*connect_by_tcp(rank, 4, store, {.timeout = 2500ms}));
            }));
}

TEST(Rendezvous, RankThatLosesAConnectionKeepsTheOthersAndConnectsAgain) {
  const testing::HangWatchdog watchdog("lost connection", 100s);
  proxied_ranks::ProxiedStore store({});
  constexpr std::uint64_t kHandshakeBytes = 2 * (36 + 32) + 1;  // hellos, proofs, the verdict
  EXPECT_EQ("", error_of_ranks(3, [&](int rank) {
              if (rank == 0) {  // without it the others wait, connected with each other
                store.wait("ranks/1", proxied_ranks::in(60s));
                while (store.proxy(1).num_passed() < kHandshakeBytes) {
                  Clock::system().sleep_for(1ms);
                }
                store.proxy(1).cut_all();
              }
              expect_connected(*connect_by_tcp(rank, 3, store, {.timeout = 60s}));
            }));
  EXPECT_GE(store.proxy(1).num_accepted(), 2);
}

}  // namespace rendezvous_test
}  // namespace tutti
