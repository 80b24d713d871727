// Tests that the committed state is sent exactly to the workers that lack it.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/worker_team.h"

#include <gtest/gtest.h>

#include "tests/strategy/worker_threads.h"
#include "tests/support/ranks.h"

namespace tutti {
namespace peer_state_test {
using internal::hand_over_state;
using internal::WorkerTeam;
using strategy_tests::Between;
using strategy_tests::communicators_of;

/// Gives each of `workers` a variable filled with its number, sends the state and returns the
/// values afterwards.
std::vector<double> values_after(int workers, int giver, const std::vector<int>& takers,
                                 Between between) {
  auto communicators = communicators_of(workers, between, {});
  std::vector<double> values(static_cast<std::size_t>(workers));
  const auto errors = errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    WorkerTeam team(std::move(communicators[w]), {.devices = std::vector<Device>(1)});
    const Variable large(Tensor::full({70'000}, worker), {.name = "large"});
    const Variable small(Tensor::full({1}, worker), {.name = "small"});
    const Variable empty(Tensor::full({0}, worker), {.name = "empty"});
    const Checkpoint state({large, small, empty});
    const CheckpointSnapshot own = state.snapshot(worker);
    const auto taken = hand_over_state(team, giver, takers, worker == giver ? &own : nullptr);
    EXPECT_EQ(taken.has_value(), std::ranges::count(takers, worker) == 1) << "worker " << worker;
    if (taken) {
      EXPECT_EQ(state.restore(*taken).step, giver);
    }
    // All workers can still communicate.
    EXPECT_EQ(team.gather_texts("here", "afterwards").size(), static_cast<std::size_t>(workers));
    const std::vector<double> all = large.value().to_doubles();
    EXPECT_EQ(std::ranges::count(all, all.front()), 70'000);
    EXPECT_EQ(small.value().item(), all.front());
    values[w] = all.front();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return values;
}

TEST(PeerState, TakersHaveTheGiversAndTheOthersTheirOwn) {
  for (const Between between : {Between::kMemory, Between::kMessages}) {
    EXPECT_EQ(values_after(2, 0, {1}, between), (std::vector<double>{0, 0}));
    EXPECT_EQ(values_after(2, 1, {0}, between), (std::vector<double>{1, 1}));
    EXPECT_EQ(values_after(4, 1, {0, 3}, between), (std::vector<double>{1, 1, 2, 1}));
    EXPECT_EQ(values_after(4, 2, {0, 1, 3}, between), (std::vector<double>{2, 2, 2, 2}));
    EXPECT_EQ(values_after(3, 0, {}, between), (std::vector<double>{0, 1, 2}));
  }
}

}  // namespace peer_state_test
}  // namespace tutti
