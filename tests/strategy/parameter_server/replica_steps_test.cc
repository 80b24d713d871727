// Which step a worker's gradients belong to, and when they belong to none.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/replica_steps.h"

#include <gtest/gtest.h>

#include "strategy/parameter_server/client/parameter_servers.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace {
namespace replica_steps {

using internal::ReadCache;
using internal::ReplicaSteps;
using Steps = std::vector<std::uint64_t>;

struct Worker {
  ReplicaSteps steps{1, 3, 2};
  const std::shared_ptr<ReadCache> w = std::make_shared<ReadCache>();
  const std::shared_ptr<ReadCache> b = std::make_shared<ReadCache>();
  const std::shared_ptr<ReadCache> rate = std::make_shared<ReadCache>();  // never updated

  void read(const Steps& of_w, const Steps& of_b) {
    steps.begin_step();
    steps.note_read(rate, Steps{0});
    steps.note_read(w, of_w);
    steps.note_read(b, of_b);
  }
};

TEST(ReplicaStepsTest, GradientsAreForTheStepAfterTheOnesThatWereRead) {
  Worker worker;
  worker.read({0, 0}, {0});
  EXPECT_EQ(worker.steps.at_least(worker.w), 0u);
  const auto first = worker.steps.give(worker.w);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->step, 0u);
  EXPECT_EQ(first->rank, 1);
  EXPECT_EQ(first->num_ranks, 3);
  EXPECT_EQ(first->num_to_aggregate, 2);
  EXPECT_EQ(first->divisor, 2.0 / 3.0);
  EXPECT_EQ(worker.steps.give(worker.b)->step, 0u);
  EXPECT_EQ(worker.steps.at_least(worker.w), 1u);
  EXPECT_EQ(worker.steps.at_least(worker.rate), 0u);
  worker.read({5, 5}, {5});  // the others went on
  EXPECT_EQ(worker.steps.give(worker.b)->step, 5u);
  EXPECT_EQ(worker.steps.at_least(worker.b), 6u);
  EXPECT_EQ(worker.steps.num_left_out(), 0u);
}

TEST(ReplicaStepsTest, ValuesOfDifferentStepsAreReadAgainOrLeftOut) {
  Worker worker;
  worker.read({0}, {0});
  (void)worker.steps.give(worker.w), (void)worker.steps.give(worker.b);
  worker.read({1}, {2});
  const std::shared_ptr<ReadCache> both[] = {worker.w, worker.b}, rates[] = {worker.rate, worker.b};
  EXPECT_EQ(worker.steps.is_behind(both), 2u);
  EXPECT_FALSE(worker.steps.is_behind(rates));
  EXPECT_FALSE(worker.steps.give(worker.w));
  EXPECT_FALSE(worker.steps.give(worker.b));
  EXPECT_EQ(worker.steps.at_least(worker.w), 1u);
  EXPECT_EQ(worker.steps.num_left_out(), 1u);
  worker.read({2}, {3});
  worker.steps.note_read(worker.w, Steps{3});  // read again
  EXPECT_FALSE(worker.steps.is_behind(both));
  EXPECT_EQ(worker.steps.give(worker.w)->step, 3u);
  worker.read({4}, {4});
  worker.steps.note_rows(worker.w, 5);  // rows, later than all of it
  EXPECT_FALSE(worker.steps.give(worker.w));
}

TEST(ReplicaStepsTest, ASecondUpdateInAStepIsRefused) {
  Worker worker;
  worker.read({0}, {0});
  (void)worker.steps.give(worker.w);
  EXPECT_ERROR((void)worker.steps.give(worker.w), kUnimplemented, "twice");
  worker.read({1}, {1});
  EXPECT_TRUE(worker.steps.give(worker.w));
}

TEST(ReplicaStepsTest, WhoComesLateLearnsInItsFirstStepWhatTakesPart) {
  Worker worker;
  worker.read({7}, {7});  // and the rate at 0: it might be behind
  EXPECT_FALSE(worker.steps.give(worker.w));
  EXPECT_FALSE(worker.steps.give(worker.b));
  worker.read({7}, {7});
  EXPECT_EQ(worker.steps.give(worker.w)->step, 7u);
}

}  // namespace replica_steps
}  // namespace
}  // namespace tutti
