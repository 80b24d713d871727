// Errors of cross-device operations: what they refuse, name, and tell other ranks.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cross_device_ops/collective_header.h"
#include "cross_device_ops/shared/process_wait.h"
#include "tests/cross_device_ops/cdo_helpers.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace errors_test {

using namespace internal;
using namespace cdo_tests;

TEST(CrossDeviceOpsErrors, ShapesThatDifferNameTheReplica) {
  const PerReplica<Tensor> value(
      {Tensor::zeros({2, 3}), Tensor::zeros({2, 3}), Tensor::zeros({3, 2})});
  EXPECT_INVALID(make_op("ring", 3)->all_reduce(ReduceOp::kSum, value), "replica 2", "replica 0",
                 "float32 [2, 3]", "float32 [3, 2]");
  EXPECT_INVALID(reduce_tensors_along_tree(ReduceOp::kSum, value.values(), {}), "replica 2",
                 "[2, 3]", "[3, 2]");
}

TEST(CrossDeviceOpsErrors, TypesThatDifferNameTheReplica) {
  const PerReplica<Tensor> value({Tensor::zeros({2}), Tensor::zeros({2}, DType::kInt32)});
  EXPECT_INVALID(make_op("canonical", 2)->all_reduce(ReduceOp::kSum, value), "replica 1",
                 "float32 [2]", "int32 [2]");
}

TEST(CrossDeviceOpsErrors, DenseAndSparseDoNotMix) {
  const PerReplica<Gradient> value(
      {Gradient(Tensor::zeros({5, 2})), Gradient(rows_of({1, 2}, {1}, {5, 2}))});
  EXPECT_INVALID(make_op("canonical", 2)->reduce(ReduceOp::kSum, value, cpu(0)), "a dense value",
                 "replica 0", "IndexedSlices", "replica 1");
}

TEST(CrossDeviceOpsErrors, EveryReplicaMustBringAValue) {
  const auto ops = make_op("canonical", 2);
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, PerReplica<Gradient>(), cpu(0)), "one replica or more",
                 "none");
  const PerReplica<Gradient> missing({Gradient(Tensor(1.0f)), Gradient()});
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, missing, cpu(0)), "a dense value", "no value",
                 "replica 1");
  EXPECT_INVALID(ops->all_reduce_in_place(ReduceOp::kSum, {}), "none");
}

TEST(CrossDeviceOpsErrors, ABatchHasOneNumberOfReplicas) {
  const std::vector<PerReplica<Gradient>> batch = {scalars({1, 2}), scalars({1, 2, 3})};
  EXPECT_INVALID(make_op("canonical", 2)->batch_all_reduce(ReduceOp::kSum, batch), "2 replicas",
                 "got 3", "value 1");
}

TEST(CrossDeviceOpsErrors, MeanNeedsAFloatingType) {
  for (const DType dtype : {DType::kInt32, DType::kInt64, DType::kUInt8}) {
    const PerReplica<Tensor> value({Tensor::ones({2}, dtype), Tensor::ones({2}, dtype)});
    EXPECT_INVALID(make_op("canonical", 2)->all_reduce(ReduceOp::kMean, value), "MEAN",
                   std::string(to_string(dtype)), "cast()");
  }
}

TEST(CrossDeviceOpsErrors, BoolHasMinAndMaxAlone) {
  const PerReplica<Tensor> value(
      {Tensor::ones({2}, DType::kBool), Tensor::ones({2}, DType::kBool)});
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
    EXPECT_INVALID(make_op("canonical", 2)->all_reduce(op, value), "bool", "MIN and MAX",
                   std::string(to_string(op)));
    EXPECT_INVALID(reduce_tensors_along_tree(op, value.values(), {}), "bool",
                   std::string(to_string(op)));
  }
  EXPECT_INVALID(reduce_tensors_along_tree(ReduceOp::kMean, value.values(), {}), "bool", "MEAN");
}

TEST(CrossDeviceOpsErrors, DestinationsMustBeNamed) {
  const auto ops = make_op("canonical", 2);
  const std::vector<Device> none;
  EXPECT_INVALID(ops->reduce(ReduceOp::kSum, scalars({1, 2}), none), "reduce",
                 "one destination or more");
  const std::vector<ReduceTask> tasks = {{scalars({1, 2}), {}}};
  EXPECT_INVALID(ops->batch_reduce(ReduceOp::kSum, tasks), "batch_reduce",
                 "one destination or more");
  EXPECT_INVALID(ops->broadcast(Tensor(1.0f), none), "broadcast", "one destination or more");
}

TEST(CrossDeviceOpsErrors, BuffersThatDifferNameTheReplica) {
  std::vector<float> a(4), b(4);
  const std::vector<ReplicaBuffer> buffers = {
      {reinterpret_cast<std::byte*>(a.data()), 4, DType::kFloat32, cpu(0)},
      {reinterpret_cast<std::byte*>(b.data()), 3, DType::kFloat32, cpu(1)}};
  EXPECT_INVALID(make_op("ring", 2)->all_reduce_in_place(ReduceOp::kSum, buffers), "ring",
                 "4 x float32", "3 x float32", "replica 1");
}

TEST(CrossDeviceOpsErrors, OptionsOfACallAreChecked) {
  const std::vector<PerReplica<Gradient>> batch = {scalars({1, 2})};
  EXPECT_INVALID(
      make_op("canonical", 2)->batch_all_reduce(ReduceOp::kSum, batch, {.bytes_per_pack = -1}),
      "bytes_per_pack", "-1");
}

TEST(CrossDeviceOpsErrors, SparseRowsMustFitEachOther) {
  const auto ops = make_op("canonical", 2);
  const auto reduce = [&](ReduceOp op, const IndexedSlices& a, const IndexedSlices& b) {
    ops->reduce(op, PerReplica<Gradient>({Gradient(a), Gradient(b)}), cpu(0));
  };
  const IndexedSlices good = rows_of({1, 2}, {1}, {5, 2});
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, rows_of({1, 2}, {1}, {6, 2})), "dense shape [5, 2]",
                 "dense shape [6, 2]", "replica 1");
  EXPECT_INVALID(reduce(ReduceOp::kMax, good, good), "SUM and MEAN", "MAX");
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, rows_of({1, 2}, {5}, {5, 2})), "rows 0 .. 4",
                 "got 5");
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, rows_of({1, 2}, {-1}, {5, 2})), "rows 0 .. 4",
                 "got -1");
  IndexedSlices short_of_values = good;
  short_of_values.values = Tensor::zeros({1, 1});
  EXPECT_INVALID(reduce(ReduceOp::kSum, good, short_of_values), "values of shape [1, 2]",
                 "values [1, 1]", "replica 1");
  IndexedSlices of_floats = good;
  of_floats.indices = Tensor::zeros({1});
  EXPECT_INVALID(reduce(ReduceOp::kSum, of_floats, of_floats), "integer indices", "float32");
}

TEST(PerReplicaTest, KnowsItsReplicasAndMaps) {
  const PerReplica<int> values({1, 2, 3});
  EXPECT_EQ(values.map([](int v) { return v * 2.5; }).values(),
            (std::vector<double>{2.5, 5.0, 7.5}));
  EXPECT_ERROR((void)values[3], kOutOfRange, "below 3", "got 3");
  static_assert(is_per_replica<PerReplica<int>> && !is_per_replica<int>);
}

TEST(ToldReason, AMismatchIsTheCallersMistakeOnEveryRank) {
  const std::string text = "collective mismatch (count): rank 0 calls a; rank 3 calls b";
  for (const ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kAborted}) {
    const Error error = as_it_was(Error(code, "rank 2 ended the call: " + text));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), text);
  }
}

TEST(ToldReason, WhoDidNotComeInTimeIsADeadlineOnEveryRank) {
  const std::string text = "rank 0: barrier: expected all 2 ranks before the deadline; rank 1 did";
  EXPECT_EQ(as_it_was(Error(ErrorCode::kAborted, text)).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(as_it_was(Error(ErrorCode::kAborted, text)).message(), text);
}

TEST(ToldReason, OthersStayWhatTheyAre) {
  const Error aborted(ErrorCode::kAborted, "the user gave up"),
      lost(ErrorCode::kUnavailable, "gone");
  EXPECT_EQ(as_it_was(aborted).code(), ErrorCode::kAborted);
  EXPECT_EQ(as_it_was(lost).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(as_it_was(lost).message(), "gone");
}

TimePoint in(std::chrono::milliseconds time) { return Clock::system().now() + time; }

class ProcessWaits : public ::testing::TestWithParam<SpinPolicy> {};
INSTANTIATE_TEST_SUITE_P(All, ProcessWaits,
                         ::testing::Values(SpinPolicy::kSpin, SpinPolicy::kYield),
                         [](const auto& of) {
                           return of.param == SpinPolicy::kSpin ? "Spin" : "Yield";
                         });

TEST_P(ProcessWaits, ReturnsAtOnceWhenReadyAndFalseAtTheDeadline) {
  WaitWord word;
  ProcessWait wait(&word, GetParam());
  EXPECT_TRUE(wait.wait_until(
      in(std::chrono::milliseconds(0)), [] { return true; }, [] {}));
  EXPECT_FALSE(wait.wait_until(
      in(std::chrono::milliseconds(5)), [] { return false; }, [] {}));
}

TEST_P(ProcessWaits, NoWakeUpIsLostWhetherItComesEarlyOrLate) {
  WaitWord word;
  ProcessWait wait(&word, GetParam());
  std::atomic<int> turn{0};
  constexpr int kRounds = 400;
  const auto play = [&](int own) {
    for (int i = own; i < kRounds; i += 2) {
      // Some answers come at once, some when the other has gone to sleep.
      if (i % 50 == 0) Clock::system().sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(wait.wait_until(
          in(std::chrono::milliseconds(20000)), [&] { return turn.load() == i; }, [] {}));
      turn.store(i + 1);
      wait.notify();
    }
  };
  const auto other = Executor::system().start("other", [&] { play(1); });
  play(0);
  other->join();
  EXPECT_EQ(turn.load(), kRounds);
}

}  // namespace errors_test
}  // namespace tutti
