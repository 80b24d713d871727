// What reads a GPU's values while NCCL's work never ends is told why, instead of waiting for ever.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu_device.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/executor.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/captured_step.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/strategy/strategies.h"

namespace tutti {
namespace peer_failures_test {

using gpu_ops_tests::Environment;
using gpu_ops_tests::expect_error;
using gpu_ops_tests::expect_tensor;
using gpu_ops_tests::gpu;
using gpu_ops_tests::gpus;
using gpu_ops_tests::make_on;
using gpu_ops_tests::powers_of_ten;
using gpu_ops_tests::take_nccl_notes;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kShort{200}, kLong{100'000};

TEST(PeerFailures, AReadEndsAtTheDeadlineWhenAPeerNeverJoins) {
  testing::HangWatchdog watchdog("read beside a missing peer");
  auto ops = make_on("nccl", gpus(2), {.timeout = kShort});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1");
  take_nccl_notes();
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  const std::vector<std::string> parts = {
      "nccl: rank", "(gpu:", "all_reduce of 3 x float32 of 2 ranks", "200 ms"};
  for (int i = 0; i < 2; ++i) {  // what was lost once stays lost
    expect_error(ErrorCode::kDeadlineExceeded, parts, [&] { sums[1].to_doubles(); });
  }
  expect_error(ErrorCode::kDeadlineExceeded, parts, [] { GpuDevice::of(gpu(0)).synchronize(); });
  EXPECT_THAT(take_nccl_notes(), HasSubstr("abort rank 0\nabort rank 1\n"));
  expect_error(ErrorCode::kDeadlineExceeded, parts,
               [&] { ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2))); });
  ops.reset();
  expect_tensor(Tensor::from<float>({1}, {7}, gpu(0)), {1}, {7});
}

TEST(PeerFailures, AReadEndsWithTheAsynchronousErrorOfNccl) {
  testing::HangWatchdog watchdog("read beside a dead peer");
  const auto ops = make_on("nccl", gpus(2), {.timeout = kLong});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1,async_later:300");
  take_nccl_notes();
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  expect_error(
      ErrorCode::kUnavailable,
      {"nccl: rank", "all_reduce of 3 x float32", "network error", "injected: the peer has ended"},
      [&] { sums[0].to_doubles(); });
  EXPECT_THAT(take_nccl_notes(), HasSubstr("abort rank 0\nabort rank 1\n"));
}

TEST(PeerFailures, AbortEndsARead) {
  testing::HangWatchdog watchdog("abort beside a read");
  const auto ops = make_on("nccl", gpus(2), {.timeout = kLong});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1");
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  const auto thread = Executor::system().start("aborter", [&] {
    Clock::system().sleep_for(std::chrono::milliseconds(50));
    ops->abort(Error(ErrorCode::kUnavailable, "another worker has failed"));
  });
  expect_error(ErrorCode::kAborted, {"another worker has failed"}, [&] { sums[1].to_doubles(); });
  thread->join();
}

TEST(PeerFailures, AnAbortThatLosesNothingLeavesReadsAlone) {
  const auto ops = make_on("nccl", gpus(2));
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  for (const Tensor& sum : sums) expect_tensor(sum, {3}, {3, 30, 300});
  for (const Device& device : gpus(2)) GpuDevice::of(device).synchronize();
  ops->abort(Error(ErrorCode::kUnavailable, "another worker has failed"));
  expect_tensor(sums[0], {3}, {3, 30, 300});
}

TEST(PeerFailures, WorkIsLateOnlyOnceItRuns) {
  const auto ops = make_on("nccl", gpus(2), {.timeout = std::chrono::milliseconds(300)});
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  Clock::system().sleep_for(std::chrono::milliseconds(400));  // simulated streams are lazy
  expect_tensor(sums[0], {3}, {3, 30, 300});
}

LocalStrategyOptions two_gpus(std::chrono::milliseconds timeout) {
  LocalStrategyOptions options;
  options.devices = "gpu:0-1";
  options.cross_device_ops.name = "nccl";
  options.cross_device_ops.options.timeout = timeout;
  return options;
}

TEST(PeerFailures, TrainingEndsWithRankAndOperation) {
  testing::HangWatchdog watchdog("training beside a missing peer", std::chrono::seconds(60));
  MirroredStrategy strategy(two_gpus(kShort));
  auto scope = strategy.scope();
  Variable w(Tensor::from<float>({2}, {1, 1}), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.1});
  const auto step = [&] {
    strategy.run([&] {
      GradientTape tape;
      optimizer.minimize(tape, reduce_sum(w.value() * w.value()));
    });
  };
  step();
  expect_tensor(w.value(), {2}, {0.6, 0.6}, 1e-6);
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1");
  expect_error(ErrorCode::kDeadlineExceeded, {"nccl: rank", "all_reduce of", "200 ms"}, [&] {
    step();
    w.value().to_doubles();
  });
}

TEST(PeerFailures, AReplayAsksBeforeItIsLaunched) {
  testing::HangWatchdog watchdog("captured step beside a dead peer", std::chrono::seconds(60));
  MirroredStrategy strategy(two_gpus(kLong));
  auto scope = strategy.scope();
  Variable w(Tensor::from<float>({2}, {1, 1}), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, {.learning_rate = 0.1});
  const auto step = captured([&] {
    GradientTape tape;
    optimizer.minimize(tape, reduce_sum(w.value() * w.value()));
  });
  for (int i = 0; i < 3; ++i) strategy.run(step);
  EXPECT_EQ(step.num_captured(), 1);
  EXPECT_LT(w.value().to_doubles()[0], 0.3);
  for (const Device& device : gpus(2)) GpuDevice::of(device).synchronize();
  take_nccl_notes();
  const Environment faults("TUTTI_SIMULATED_NCCL", "async_later:1");
  const std::vector<std::string> parts = {"nccl: rank 0", "a captured step with all_reduce of",
                                          "injected: the peer has ended"};
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorCode::kUnavailable, parts, [&] { strategy.run(step); });
  }
  EXPECT_LT(w.value().to_doubles()[0], 0.3);  // nothing was under way, so nothing was lost
}

}  // namespace peer_failures_test
}  // namespace tutti
