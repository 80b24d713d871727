// Tests synchronous steps of the variable store: sums in rank order, stale gradients, backup
// workers, and reads that wait.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "tensor/tensor_impl.h"
#include "tests/strategy/parameter_server/store_helpers.h"
#include "tests/support/ranks.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/optimizer/adagrad.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {
namespace sync_steps {

using namespace store_tests;
using internal::ReportWorker;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Shape kShape{6, 4};

Tensor gradient_of(int rank, std::uint64_t step, const Shape& shape = kShape) {
  return random_normal(shape, RandomKey{3, kUserPurpose, static_cast<std::uint64_t>(rank), step});
}

/// Returns an update by plain gradient descent with learning rate 1.
UpdateShard update_of(int rank, std::uint64_t step, int num_ranks, int num_to_aggregate) {
  UpdateShard update = descent(whole("w", kShape).id(), gradient_of(rank, step));
  update.scalars.iteration = static_cast<std::int64_t>(step);
  update.sync = SyncSpec{step, rank, num_ranks, num_to_aggregate, 1.0};
  return update;
}

/// Returns the value of a zero-initialized variable after one SGD step with the sum of `gradients`.
Tensor stepped(const std::vector<Tensor>& gradients) {
  Variable expected(Tensor::zeros(kShape));
  expected.storage().update(SgdRule(), {},
                            reduce_tensors_along_tree(ReduceOp::kSum, gradients, Device{}),
                            {.learning_rate = 1.0});
  return expected.value();
}

/// Store with a variable of zeros, and one client per rank.
struct Job {
  explicit Job(int num_ranks) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      clients.emplace_back(store, static_cast<std::uint64_t>(rank + 1));
    }
    clients[0].call({CreateShard{whole("w", kShape), Tensor::zeros(kShape)}});
  }
  Tensor read() { return clients[0].read(id); }
  Client& client(int rank) { return clients[static_cast<std::size_t>(rank)]; }
  VariableStore store{"ps 0"};
  std::vector<Client> clients;
  const ShardId id = whole("w", kShape).id();
};

TEST(SyncSteps, HeldGradientDoesNotKeepBatchAlive) {
  Job job(2);
  const BufferRef buffer = BufferRef::allocate(std::size_t{1} << 20);
  std::ranges::fill(std::span(buffer->data(), buffer->size()), std::byte{0});
  UpdateShard update = update_of(0, 0, 2, 2);
  update.gradient = tensor_in_buffer(buffer, 4096, kShape, DType::kFloat32);
  job.clients[0].call({update});
  update.gradient = Tensor();
  EXPECT_TRUE(buffer.unique());
  job.clients[1].call({update_of(1, 0, 2, 2)});
  expect_same_bits(job.read(), stepped({gradient_of(1, 0)}));
}

TEST(SyncSteps, SumIsIndependentOfArrivalOrder) {
  constexpr int kRanks = 5;
  std::vector<Tensor> gradients;
  for (int rank = 0; rank < kRanks; ++rank) gradients.push_back(gradient_of(rank, 0));
  const Tensor expected = stepped(gradients);
  std::vector<int> order(kRanks);
  std::iota(order.begin(), order.end(), 0);
  do {
    Job job(kRanks);
    for (const int rank : order) {
      expect_same_bits(job.read(), Tensor::zeros(kShape));
      job.client(rank).call({update_of(rank, 0, kRanks, kRanks)});
    }
    expect_same_bits(job.read(), expected);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SyncSteps, SparseSumMatchesDenseSumBitForBit) {
  const std::vector<std::vector<std::int64_t>> rows = {{5, 1, 5}, {}, {1, 0}};
  std::vector<IndexedSlices> slices;
  for (int rank = 0; rank < 3; ++rank) {
    const auto& own = rows[static_cast<std::size_t>(rank)];
    const Shape shape = kShape.with_dim(0, static_cast<std::int64_t>(own.size()));
    slices.push_back({gradient_of(rank, 0, shape), rows_of(own), kShape});
  }
  const AdagradRule rule;
  Variable expected(Tensor::ones(kShape));
  const Variable slot = expected.storage().create_slot("a", 0.1);
  IndexedSlices sum = sum_slices_canonically(slices, Device{});
  std::vector<float> halves;
  for (const float each : sum.values.host_span<float>()) halves.push_back(each / 2.0f);
  sum.values = Tensor::from(sum.values.shape(), halves);
  expected.storage().update(rule, std::span(&slot, 1), sum, {.learning_rate = 0.3});

  VariableStore store("ps 0");
  const ShardSpec spec = whole("w", kShape), own_slot = whole("w/a", kShape);
  Client(store, 9).call(
      {CreateShard{spec, Tensor::ones(kShape)}, CreateShard{own_slot, Tensor::full(kShape, 0.1)}});
  for (const int rank : {2, 0, 1}) {
    UpdateShard update{spec.id(), {own_slot.id()}, describe_update_rule(rule)};
    update.scalars.learning_rate = 0.3;
    update.rows = slices[static_cast<std::size_t>(rank)].indices;
    update.gradient = slices[static_cast<std::size_t>(rank)].values;
    update.sync = SyncSpec{0, rank, 3, 3, 2.0};
    Client(store, static_cast<std::uint64_t>(rank)).call({update});
  }
  Client reader(store, 10);
  expect_same_bits(reader.read(spec.id()), expected.value());
  expect_same_bits(reader.read(own_slot.id()), slot.value());
}

TEST(SyncSteps, DuplicateGradientFromRankIsIgnored) {
  Job job(2), same(2);
  job.clients[0].call({update_of(0, 0, 2, 2)});
  UpdateShard other = update_of(0, 0, 2, 2);
  other.gradient = Tensor::ones(kShape);
  Client restarted(job.store, 77);  // a new process of rank 0
  restarted.call({other});
  job.clients[1].call({update_of(1, 0, 2, 2)});
  same.clients[0].call({update_of(0, 0, 2, 2)});
  same.clients[1].call({update_of(1, 0, 2, 2)});
  expect_same_bits(job.read(), same.read());
  EXPECT_EQ(job.store.counts().num_rank_duplicates, 1u);
}

TEST(SyncSteps, StaleGradientsAreDroppedAndCounted) {
  Job job(3);
  job.clients[0].call({update_of(0, 0, 3, 2)});
  const auto second = job.clients[1].call({update_of(1, 0, 3, 2)});
  EXPECT_EQ(second[0].num_steps, 1u);
  const Tensor after = job.read();
  const auto late = job.clients[2].call({update_of(2, 0, 3, 2)});
  EXPECT_EQ(late[0].num_steps, 1u);
  EXPECT_FALSE(late[0].was_applied_before);
  expect_same_bits(job.read(), after);
  EXPECT_EQ(job.store.counts().num_stale_dropped, 1u);
  EXPECT_EQ(job.store.counts().num_sync_steps, 1u);
}

TEST(SyncSteps, BackupRanksReplaceLateRanks) {
  Job job(3);
  for (const int rank : {2, 1}) {
    job.client(rank).call({update_of(rank, 0, 3, 2)});
  }
  // The gradients are summed in rank order.
  expect_same_bits(job.read(), stepped({gradient_of(1, 0), gradient_of(2, 0)}));
  // Rank 2 is one step ahead: the store holds its gradient until that step.
  job.clients[2].call({update_of(2, 2, 3, 2)});
  job.clients[2].call({update_of(2, 1, 3, 2)});
  EXPECT_EQ(job.store.counts().num_sync_steps, 1u);
  job.clients[1].call({update_of(1, 2, 3, 2)});
  EXPECT_EQ(job.store.counts().num_sync_steps, 1u);
  job.clients[0].call({update_of(0, 1, 3, 2)});  // completes step 1 and, as a result, step 2
  EXPECT_EQ(job.store.counts().num_sync_steps, 3u);
}

TEST(SyncSteps, ConflictingUpdateIsRejectedAndLeavesStateUnchanged) {
  Job job(2);
  job.clients[0].call({update_of(0, 0, 2, 2)});
  const std::string state = state_of(job.store);
  const auto refuse = [&](const std::vector<std::string>& parts, UpdateShard update) {
    expect_error(ErrorCode::kInvalidArgument, parts, [&] { job.clients[1].call({update}); });
    job.clients[1].go_back_to(0);
    EXPECT_EQ(state_of(job.store), state);
  };
  UpdateShard update = update_of(1, 0, 2, 2);
  update.scalars.learning_rate = 0.5;
  refuse({"ps 0: ", "'w'", "ranks 0 and 1", "learning rate"}, update);
  update = update_of(1, 0, 3, 2);
  refuse({"number of ranks"}, update);
  update = update_of(1, 0, 2, 2);
  update.rows = rows_of({0, 1, 2, 3, 4, 5});
  refuse({"sparse"}, update);
  EXPECT_ERROR(job.clients[1].call({update_of(1, 9, 2, 2)}), kFailedPrecondition, "rank 1",
               "step 9");
  job.clients[1].go_back_to(0);
  // One batch has updates from both ranks. The second update has a different iteration, so the
  // first update is dropped, too.
  UpdateShard mine = update_of(0, 1, 2, 2), other = update_of(1, 1, 2, 2);
  other.scalars.iteration = 7;
  EXPECT_ERROR(job.clients[1].call({mine, other}), kInvalidArgument, "ranks 0 and 1", "step 1");
  EXPECT_EQ(state_of(job.store), state);
}

TEST(SyncSteps, WaitingReadDoesNotBlockThread) {
  Job job(2);
  const auto waiting = job.clients[0].start(
      {update_of(0, 0, 2, 2), ReadShard{job.id, 0, 1}, ReadRows{job.id, rows_of({3}), 1}});
  EXPECT_FALSE(waiting->is_ready());
  EXPECT_ERROR((void)waiting->wait(Clock::system().now()), kDeadlineExceeded, "ps 0");
  (void)job.read();  // meanwhile, another read is answered
  const auto other = job.clients[1].start({update_of(1, 0, 2, 2), ReadShard{job.id, 0, 1}});
  ASSERT_TRUE(waiting->is_ready());
  ASSERT_TRUE(other->is_ready());
  const auto answers = waiting->wait(soon());
  EXPECT_EQ(answers[1].num_steps, 1u);
  expect_same_bits(*answers[1].value, *other->wait(soon())[1].value);
  expect_same_bits(*answers[2].value, answers[1].value->detached_rows(3, 1));
}

TEST(SyncSteps, RepeatedBatchWaitsForItsStep) {
  Job job(2);
  const OperationBatch batch =
      job.clients[0].batch({update_of(0, 0, 2, 2), ReadShard{job.id, 0, 1}});
  const auto first = job.store.start(batch), again = job.store.start(batch);
  EXPECT_FALSE(again->is_ready());
  job.clients[1].call({update_of(1, 0, 2, 2)});
  expect_same_bits(*first->wait(soon())[1].value, *again->wait(soon())[1].value);
  EXPECT_TRUE(again->wait(soon())[0].was_applied_before);
  EXPECT_EQ(job.store.counts().num_sync_steps, 1u);
}

TEST(SyncSteps, ReadFailsIfStepNeedsGradientFromEndedRank) {
  Job job(2);
  const auto end = [&] { job.clients[1].call({ReportWorker{1, true}}); };
  const auto expect_failed = [](const std::shared_ptr<PendingAnswers>& read) {
    EXPECT_ERROR(read->wait(soon()), kOutOfRange, "step 0 cannot complete", "worker 1 has ended");
  };
  const auto waiting = job.clients[0].start({update_of(0, 0, 2, 2), ReadShard{job.id, 0, 1}});
  end();
  expect_failed(waiting);
  expect_failed(job.clients[0].start({ReadShard{job.id, 0, 1}}));
  job.clients[1].call({ReportWorker{1}});  // rank 1 starts again
  const auto read = job.clients[0].start({ReadShard{job.id, 0, 1}});
  EXPECT_FALSE(read->is_ready());
  job.clients[1].call({update_of(1, 0, 2, 2)});
  EXPECT_TRUE(read->is_ready());
  end();
  EXPECT_TRUE(job.clients[0].start({ReadShard{job.id, 0, 1}})->is_ready());
  EXPECT_ERROR(job.clients[0].call({ReportWorker{-1}}), kInvalidArgument, "got -1");
}

TEST(SyncSteps, AwaitedRanksAreListedOnlyForWaitingReads) {
  Job job(3);
  const auto awaited = [&] {
    return job.clients[0].call({internal::ReadAwaited{}})[0].value->to_doubles();
  };
  job.clients[0].call({update_of(0, 0, 3, 3)});
  EXPECT_THAT(awaited(), IsEmpty());  // no read is waiting
  const auto waiting = job.clients[0].start({ReadShard{job.id, 0, 1}});
  EXPECT_THAT(awaited(), ElementsAre(1, 2));
  job.clients[2].call({update_of(2, 0, 3, 3)});
  EXPECT_THAT(awaited(), ElementsAre(1));
  job.clients[1].call({update_of(1, 0, 3, 3)});
  EXPECT_TRUE(waiting->is_ready());
  EXPECT_THAT(awaited(), IsEmpty());
}

TEST(SyncSteps, WaitingReadsFailWhenStoreOrJobEnds) {
  std::shared_ptr<PendingAnswers> left;
  {
    Job ended(2);
    left = ended.clients[0].start({ReadShard{ended.id, 0, 1}});
  }
  EXPECT_ERROR(left->wait(soon()), kUnavailable, "shut down");
  Job job(2);
  int num_done = 0;
  std::vector<Error> errors;
  const auto count = [&](internal::BatchResult result) {
    ++num_done;
    if (result.error) errors.push_back(*result.error);
  };
  job.store.apply(job.clients[0].batch({ReadShard{job.id, 0, 1}}), 5, count);
  job.store.apply(job.clients[0].batch({ReadShard{job.id, 0, 1}}), 6, count);
  job.store.owner_left(5);
  EXPECT_EQ(num_done, 0);
  job.store.fail_waiting_reads(Error(ErrorCode::kAborted, "worker 1 died"));
  EXPECT_EQ(num_done, 1);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].message(), "worker 1 died");
}

TEST(SyncSteps, ConcurrentRanksMatchSequentialRanksBitForBit) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kSteps = 20;
  Job threads(kRanks), one(kRanks);
  expect_on_ranks(kRanks, [&](int rank) {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      threads.client(rank).call(
          {update_of(rank, step, kRanks, kRanks), ReadShard{threads.id, 0, step + 1}});
    }
  });
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      one.client(rank).call({update_of(rank, step, kRanks, kRanks)});
    }
  }
  expect_same_bits(threads.read(), one.read());
}

/// Workers with the values of tf's SyncReplicasOptimizer test. The gradients of three variables are
/// 0.1 + 0.2 rank, 0.9 + 0.2 rank and, for row 1 only, 0.1 + 0.2 rank. Gradient descent has
/// learning rate 2 and applies the mean of `num_to_aggregate` gradients.
class Workers {
 public:
  Workers(int num_ranks, int num_to_aggregate)
      : num_ranks_(num_ranks), num_to_aggregate_(num_to_aggregate) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      clients_.emplace_back(store_, static_cast<std::uint64_t>(rank + 1));
      local_steps_.push_back(0);
    }
    clients_[0].create(whole("v0", {}), Tensor(0.0f));
    clients_[0].create(whole("v1", {}), Tensor(1.0f));
    clients_[0].create(whole("rows", {2, 1}), Tensor::from<float>({2, 1}, {3, 4}));
  }

  /// Starts a step of one worker. Returns the worker's token: the pending replies, which arrive
  /// when the server answers the read at the end of the batch.
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
  /// Waits for the worker's token and sets the worker's local step to the server's step.
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
  std::uint64_t num_stale() const { return store_.counts().num_stale_dropped; }

 private:
  UpdateShard update(const char* variable, int rank, std::uint64_t step, const Tensor& gradient) {
    UpdateShard made = descent(internal::shard_id(variable, 0), gradient, 2.0);
    made.sync =
        SyncSpec{step, rank, num_ranks_, num_to_aggregate_, static_cast<double>(num_to_aggregate_)};
    return made;
  }

  const int num_ranks_, num_to_aggregate_;
  VariableStore store_{"ps 0"};
  std::vector<Client> clients_;
  std::vector<std::uint64_t> local_steps_;
};

TEST(SyncReplicas, TwoWorkersApplyMeanGradientInOneStep) {
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

TEST(SyncReplicas, StepDoesNotWaitForBackupWorker) {
  Workers workers(3, 2);
  const auto of_0 = workers.run(0), of_2 = workers.run(2);
  workers.expect_values(1, -0.6, -1.2);
  workers.take_token(0, of_0);
  workers.take_token(2, of_2);
  const auto late = workers.run(1);  // worker 1 is still in step 0
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

}  // namespace sync_steps
}  // namespace
}  // namespace tutti
