// Tests a strategy's team of workers: memory for partial sums, state sent to workers that lack it,
// encoding of values, and detection of stragglers.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/worker_team.h"

#include "cross_device_ops/shared/host_memory.h"
#include "strategy/multi_worker/straggler_watch.h"
#include "tests/strategy/worker_threads.h"
#include "tests/support/scopes.h"
#include "tests/support/transports.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::strategy_tests::worker_team_test {
using internal::decode_values;
using internal::encode_values;
using internal::ReplicaValues;
using internal::StragglerWatch;
using internal::transfer_state;
using internal::WorkerTeam;

constexpr std::size_t kCount = 1'000'000;

Elements elements_of(MutableTensor& tensor) {
  return {tensor.data(), static_cast<std::size_t>(tensor.num_elements()), tensor.dtype()};
}

/// Sums tensors of ones over two workers, one with two replicas and one with a single replica.
/// Returns, for each worker, true if its buffers were in shared memory.
std::vector<bool> sum_of_two_workers(std::size_t place_bytes) {
  InProcessStore store;
  std::vector<char> lay_there(2);
  expect_on_ranks(2, [&](int rank) {
    const auto transport = connect_by_memory(rank, 2, store, {.place_bytes = place_bytes});
    WorkerTeam team(make_communicator(transport),
                    {.devices = std::vector<Device>(rank == 0 ? 2 : 1)});
    std::vector<MutableTensor> buffers;
    std::vector<Elements> partials;
    for (const CanonicalNode& node : team.sums().nodes()) {
      MutableTensor& sum = buffers.emplace_back(team.sums().make_buffer(kCount, DType::kFloat32));
      std::ranges::fill(sum.span<float>(), static_cast<float>(node.count));
    }
    for (MutableTensor& sum : buffers) partials.push_back(elements_of(sum));
    team.sums().start_all_reduce(partials, {.name = "ones"}).wait();
    const std::vector<float> expected(kCount, 3.0f);
    const auto sum = buffers[0].span<float>();
    EXPECT_TRUE(std::ranges::equal(sum, expected)) << "worker " << rank;
    lay_there[static_cast<std::size_t>(rank)] =
        transport->host_memory()->offset_of(buffers[0].data(), buffers[0].num_bytes()).has_value();
  });
  return {lay_there.begin(), lay_there.end()};
}

TEST(WorkerTeam, PartialSumsUseSharedMemoryIfTheyFit) {
  EXPECT_EQ(sum_of_two_workers(std::size_t{1} << 30), (std::vector<bool>{true, true}));
  EXPECT_EQ(sum_of_two_workers(std::size_t{4} << 20), (std::vector<bool>{false, false}));
}

/// Gives each worker variables filled with the worker's number, sends `giver`'s state to `takers`,
/// and then returns the values of all workers.
std::vector<double> values_after(int workers, int giver, const std::vector<int>& takers,
                                 Between between) {
  auto communicators = communicators_of(workers, between, {});
  std::vector<double> values(static_cast<std::size_t>(workers));
  expect_on_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    WorkerTeam team(std::move(communicators[w]), {.devices = std::vector<Device>(1)});
    const Variable large(Tensor::full({70'000}, worker), {.name = "large"});
    const Variable small(Tensor::full({1}, worker), {.name = "small"});
    const Variable empty(Tensor::full({0}, worker), {.name = "empty"});
    const Checkpoint state({large, small, empty});
    const CheckpointSnapshot own = state.snapshot(worker);
    const auto taken = transfer_state(team, giver, takers, worker == giver ? &own : nullptr);
    EXPECT_EQ(taken.has_value(), std::ranges::count(takers, worker) == 1) << "worker " << worker;
    if (taken) {
      EXPECT_EQ(state.restore(*taken).step, giver);
    }
    // The workers can still communicate.
    EXPECT_EQ(team.gather_texts("here", "afterwards").size(), static_cast<std::size_t>(workers));
    const std::vector<double> all = large.value().to_doubles();
    EXPECT_EQ(std::ranges::count(all, all.front()), 70'000);
    EXPECT_EQ(small.value().item(), all.front());
    values[w] = all.front();
  });
  return values;
}

TEST(PeerState, IsSentOnlyToWorkersThatLackIt) {
  for (const Between between : {Between::kMemory, Between::kMessages}) {
    EXPECT_EQ(values_after(2, 0, {1}, between), (std::vector<double>{0, 0}));
    EXPECT_EQ(values_after(2, 1, {0}, between), (std::vector<double>{1, 1}));
    EXPECT_EQ(values_after(4, 1, {0, 3}, between), (std::vector<double>{1, 1, 2, 1}));
    EXPECT_EQ(values_after(4, 2, {0, 1, 3}, between), (std::vector<double>{2, 2, 2, 2}));
    EXPECT_EQ(values_after(3, 0, {}, between), (std::vector<double>{0, 1, 2}));
  }
}

ReplicaValues all_kinds() {
  const IndexedSlices slices{Tensor::from<float>({2, 1}, {5, 6}),
                             Tensor::from<std::int64_t>({2}, {3, 1}), Shape{4, 1}};
  return {
      {Tensor::from<float>({2, 2}, {1, 2, 3, 4}), slices, Gradient()},
      {Tensor::scalar(7.0, DType::kBFloat16), Tensor::zeros({0, 3}, DType::kInt32), Gradient()}};
}

TEST(WorkerValues, RoundTripUnchanged) {
  const ReplicaValues values = decode_values(encode_values(all_kinds()));
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(numbers(values[0][0].dense()), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(values[0][0].dense().shape(), (Shape{2, 2}));
  EXPECT_EQ(numbers(values[0][1].slices().values), (std::vector<double>{5, 6}));
  EXPECT_EQ(numbers(values[0][1].slices().indices), (std::vector<double>{3, 1}));
  EXPECT_EQ(values[0][1].slices().dense_shape, (Shape{4, 1}));
  EXPECT_TRUE(values[0][2].is_none());
  EXPECT_EQ(values[1][0].dense().dtype(), DType::kBFloat16);
  EXPECT_EQ(values[1][1].dense().shape(), (Shape{0, 3}));
}

TEST(WorkerValues, TruncatedOrExtendedBytesAreRejected) {
  const std::string whole = encode_values(all_kinds());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_ERROR(decode_values(whole.substr(0, size)), kDataLoss,
                 "the values of another worker's replicas");
  }
  EXPECT_ERROR(decode_values(whole + "x"), kDataLoss, "1 bytes too many");
}

// The decoder neither crashes nor allocates excessive memory.
TEST(WorkerValues, CorruptedBytesNeverCrashDecoder) {
  const std::string whole = encode_values(all_kinds());
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\x7f', '\xff', '\x01'}) {
      std::string damaged = whole;
      damaged[at] = byte;
      try {
        decode_values(damaged);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDataLoss) << error.message();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

class Stragglers : public ::testing::Test {
 protected:
  /// Runs a step of `length` ms in which worker w waits milliseconds[w] ms.
  std::optional<Straggler> step(const std::vector<double>& milliseconds, int length = 10) {
    clock_.sleep_for(std::chrono::milliseconds(length));
    std::vector<double> seconds;
    for (const double each : milliseconds) seconds.push_back(each / 1e3);
    return watch_->note(seconds);
  }
  /// Runs up to `count` steps; returns the number of the first step that reports a straggler (0:
  /// none), and that report.
  std::pair<int, std::optional<Straggler>> first_report(const std::vector<double>& milliseconds,
                                                        int count) {
    for (int i = 1; i <= count; ++i) {
      if (const auto found = step(milliseconds)) return {i, found};
    }
    return {0, std::nullopt};
  }

  test_scopes::StepClock clock_;
  std::optional<StragglerWatch> watch_{std::in_place, StragglerOptions{}, clock_};
};

TEST_F(Stragglers, SlowWorkerIsReportedWithin20Steps) {
  EXPECT_EQ(first_report({1.0, 1.0, 1.0}, 25).first, 0);  // balanced
  const auto [step, found] = first_report({8.5, 8.5, 0.5}, 20);
  ASSERT_TRUE(found);
  EXPECT_LE(step, 20);
  EXPECT_EQ(found->worker, 2);
  EXPECT_NEAR(found->share, 0.8, 0.05);
  ASSERT_TRUE(watch_->last());
  EXPECT_EQ(watch_->last()->worker, 2);
}

TEST_F(Stragglers, WorkersWithEqualWaitsAreNotReported) {
  EXPECT_EQ(first_report({9.0, 9.0}, 50).first, 0);  // slow network, not a slow worker
  EXPECT_EQ(first_report({9.0}, 50).first, 0);       // a single worker
}

TEST_F(Stragglers, ReportedShareExcludesStragglersOwnWait) {
  const auto [step, found] = first_report({1.0, 9.0, 9.0, 8.0}, 30);
  ASSERT_TRUE(found);
  EXPECT_EQ(step, 16);  // the first step has no start time, so it does not count
  EXPECT_EQ(found->worker, 0);
  EXPECT_NEAR(found->share, ((9.0 + 9.0 + 8.0) / 3.0 - 1.0) / 10.0, 1e-9);
  EXPECT_NEAR(found->seconds_per_step, ((9.0 + 9.0 + 8.0) / 3.0 - 1.0) / 1e3, 1e-9);
}

TEST_F(Stragglers, ReportRepeatsAfterConfiguredSteps) {
  watch_.emplace(StragglerOptions{.repeat_after_steps = 100}, clock_);
  EXPECT_EQ(first_report({8.0, 0.0}, 20).first, 16);
  EXPECT_EQ(first_report({8.0, 0.0}, 99).first, 0);
  // Reports are a multiple of 15 steps apart: here 105, the first multiple above 100.
  EXPECT_EQ(first_report({8.0, 0.0}, 20).first, 6);
  watch_.emplace(StragglerOptions{.share = 2.0}, clock_);
  EXPECT_EQ(first_report({9.9, 0.0}, 50).first, 0);
}

TEST_F(Stragglers, OccasionalDelaysAreNotReported) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(first_report({9.0, 0.0}, 10).first, 0);  // for example, worker 1 saves a checkpoint
    EXPECT_EQ(first_report({0.0, 9.0}, 5).first, 0);
  }
}

TEST_F(Stragglers, ShortWaitsAreNotReported) {
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(step({0.9, 0.0}, 1));
  }
}

TEST_F(Stragglers, WaitTimeIsSumOfWaitingObjectLifetimes) {
  {
    const StragglerWatch::Waiting waiting(*watch_);
    clock_.sleep_for(std::chrono::milliseconds(3));
  }
  clock_.sleep_for(std::chrono::milliseconds(5));
  {
    const StragglerWatch::Waiting waiting(*watch_);
    clock_.sleep_for(std::chrono::milliseconds(4));
  }
  EXPECT_NEAR(watch_->take_wait(), 0.007, 1e-9);
  EXPECT_EQ(watch_->take_wait(), 0.0);
}

TEST_F(Stragglers, ReportStatesWaitTimeOfOtherWorkers) {
  EXPECT_THAT(
      internal::to_string(Straggler{2, 0.784, 0.041, 30}, "worker 2"),
      ::testing::StartsWith("worker 2 is slow: the other workers waited 78 % of the last 15 steps "
                            "for it, 41.0 ms per step"));
}

}  // namespace tutti::strategy_tests::worker_team_test
