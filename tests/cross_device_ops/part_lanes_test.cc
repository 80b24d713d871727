// Handing out the parts of rounds.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/group_parts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tutti/core/executor.h"

namespace tutti {
namespace {

using internal::PartLanes;

TEST(PartLanes, GivesEachPartOnceInEveryRound) {
  for (const int parts : {1, 2, 3, 5, 16, 37}) {
    for (const int cores : {1, 2, 3, 64}) {
      PartLanes lanes;
      const int num_lanes = PartLanes::num_lanes(parts, cores);
      for (std::uint64_t round = 1; round <= 5; ++round) {
        std::vector<int> taken(static_cast<std::size_t>(parts));
        for (int part = lanes.take(round, parts, num_lanes); part >= 0;
             part = lanes.take(round, parts, num_lanes)) {
          ASSERT_LT(part, parts);
          ++taken[static_cast<std::size_t>(part)];
        }
        EXPECT_EQ(taken, std::vector<int>(taken.size(), 1))
            << parts << " parts, " << num_lanes << " lanes, round " << round;
      }
    }
  }
}

TEST(PartLanes, ThreadsShareThePartsOfARound) {
  constexpr int kParts = 400, kThreads = 4;
  PartLanes lanes;
  const int num_lanes = PartLanes::num_lanes(kParts, kThreads);
  std::vector<std::atomic<int>> taken(kParts);
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(Executor::system().start("taker", [&] {
      for (int part = lanes.take(1, kParts, num_lanes); part >= 0;
           part = lanes.take(1, kParts, num_lanes)) {
        ++taken[static_cast<std::size_t>(part)];
      }
    }));
  }
  for (const auto& thread : threads) thread->join();
  for (const std::atomic<int>& count : taken) EXPECT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace tutti
