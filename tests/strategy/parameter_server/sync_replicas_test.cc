// tf's SyncReplicasOptimizer on the variable store: the numbers of its own test.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <vector>

#include "tests/strategy/parameter_server/store_helpers.h"

namespace tutti {
namespace {
namespace sync_replicas {

using namespace store_tests;

/// Workers whose gradients are 0.1 + 0.2 rank, 0.9 + 0.2 rank, and for row 1 of a variable
/// 0.1 + 0.2 rank; descent by 2 with the mean of `num_to_aggregate` of them.
class Workers {
 public:
  Workers(int num_ranks, int num_to_aggregate)
      : num_ranks_(num_ranks), num_to_aggregate_(num_to_aggregate) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      clients_.emplace_back(store_, static_cast<std::uint64_t>(rank + 1));
      local_steps_.push_back(0);
    }
    clients_[0].call({CreateShard{whole("v0", {}), Tensor(0.0f)},
                      CreateShard{whole("v1", {}), Tensor(1.0f)},
                      CreateShard{whole("rows", {2, 1}), Tensor::from<float>({2, 1}, {3, 4})}});
  }

  /// A step of one worker up to its token, which is the answer to the last read.
  std::shared_ptr<PendingAnswers> run(int rank) {
    const auto index = static_cast<std::size_t>(rank);
    const std::uint64_t step = local_steps_[index];
    const float own = 0.2f * static_cast<float>(rank);
    UpdateShard rows = update("rows", rank, step, Tensor::from<float>({1, 1}, {0.1f + own}));
    rows.rows = rows_of({1});
    return clients_[index].start({update("v0", rank, step, Tensor(0.1f + own)),
                                  update("v1", rank, step, Tensor(0.9f + own)), rows,
                                  ReadShard{whole("v0", {}).id(), 0, step + 1}});
  }
  /// The worker takes its token: the server's step is its own.
  void take_token(int rank, const std::shared_ptr<PendingAnswers>& token) {
    local_steps_[static_cast<std::size_t>(rank)] = token->wait(soon()).back().num_steps;
  }

  void expect_values(std::uint64_t global_step, double v0, double v1) {
    const auto answers =
        clients_[0].call({ReadShard{whole("v0", {}).id()}, ReadShard{whole("v1", {}).id()}});
    EXPECT_EQ(answers[0].num_steps, global_step);
    expect_tensor(*answers[0].value, {}, {v0}, 1e-6);
    expect_tensor(*answers[1].value, {}, {v1}, 1e-6);
  }
  Tensor rows() { return clients_[0].read(whole("rows", {2, 1}).id()); }
  std::uint64_t local_step(int rank) const { return local_steps_[static_cast<std::size_t>(rank)]; }
  std::uint64_t num_stale() const { return store_.statistics().num_stale_dropped; }

 private:
  UpdateShard update(const char* variable, int rank, std::uint64_t step, const Tensor& gradient) {
    UpdateShard made{
        internal::shard_id(variable, 0), {}, R"({"rule":"sgd","momentum":0.0,"nesterov":false})"};
    made.scalars.learning_rate = 2.0;
    made.gradient = gradient;
    made.sync =
        SyncSpec{step, rank, num_ranks_, num_to_aggregate_, static_cast<double>(num_to_aggregate_)};
    return made;
  }

  const int num_ranks_, num_to_aggregate_;
  VariableStore store_{"ps 0"};
  std::vector<Client> clients_;
  std::vector<std::uint64_t> local_steps_;
};

TEST(SyncReplicas, TwoWorkersMakeOneStepOfTheMean) {
  Workers workers(2, 2);
  const auto first = workers.run(0);
  EXPECT_FALSE(first->is_ready());
  workers.expect_values(0, 0.0, 1.0);
  const auto second = workers.run(1);
  EXPECT_TRUE(first->is_ready());
  EXPECT_TRUE(second->is_ready());
  workers.expect_values(1, -0.4, -1.0);
  expect_tensor(workers.rows(), {2, 1}, {3.0, 3.6}, 1e-6);
}

TEST(SyncReplicas, GradientsOfAnOldStepAreDropped) {
  Workers workers(2, 2);
  (void)workers.run(0);
  (void)workers.run(1);
  // Both did not take their tokens: what they give next is of step 0 again.
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(workers.local_step(rank), 0u);
    workers.take_token(rank, workers.run(rank));
    EXPECT_EQ(workers.local_step(rank), 1u);
  }
  workers.expect_values(1, -0.4, -1.0);
  EXPECT_EQ(workers.num_stale(), 6u);  // of three variables, from two workers
  const auto token = workers.run(0);
  EXPECT_FALSE(token->is_ready());
  (void)workers.run(1);
  workers.expect_values(2, -0.8, -3.0);
}

TEST(SyncReplicas, BackupWorkerIsNotAwaited) {
  Workers workers(3, 2);
  const auto of_0 = workers.run(0), of_2 = workers.run(2);
  workers.expect_values(1, -0.6, -1.2);
  workers.take_token(0, of_0);
  workers.take_token(2, of_2);
  const auto late = workers.run(1);  // of step 0
  EXPECT_TRUE(late->is_ready());
  workers.expect_values(1, -0.6, -1.2);
  EXPECT_EQ(workers.num_stale(), 3u);
  workers.take_token(1, late);
  const auto alone = workers.run(0);
  EXPECT_FALSE(alone->is_ready());
  workers.expect_values(1, -0.6, -1.2);
  (void)workers.run(1);
  EXPECT_TRUE(alone->is_ready());
  workers.expect_values(2, -1.0, -3.2);
}

}  // namespace sync_replicas
}  // namespace
}  // namespace tutti
