// The operation nccl: what it calls of NCCL, what it makes of NCCL's refusals and failures, and
// what readers of a GPU's values are told while its work never ends.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/gpu_reductions.h"
#include "cross_device_ops/nccl/nccl_functions.h"
#include "cross_device_ops/nccl/nccl_ops.h"
#include "tensor/gpu_device.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/captured_step.h"
#include "tutti/strategy/replica_context.h"
#include "tutti/strategy/strategies.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti {
namespace nccl_test {

using gpu_ops_tests::Environment;
using gpu_ops_tests::expect_error;
using gpu_ops_tests::expect_tensor;
using gpu_ops_tests::gpu;
using gpu_ops_tests::gpus;
using gpu_ops_tests::make_on;
using gpu_ops_tests::powers_of_ten;
using gpu_ops_tests::take_nccl_notes;
using ::testing::HasSubstr;

TEST(Nccl, CommunicatorsAreMadeOnceAndLaunchesAreGrouped) {
  take_nccl_notes();
  {
    const auto ops = make_on("nccl", gpus(2));
    const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
    for (const Tensor& sum : sums) expect_tensor(sum, {3}, {3, 30, 300});
    ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  }
  EXPECT_EQ(take_nccl_notes(),
            "group start\n"
            "init rank 0 of 2 GPU 0\ninit rank 1 of 2 GPU 1\n"
            "group end\n"
            "group start\n"
            "all_reduce rank 0 count 3\nall_reduce rank 1 count 3\n"
            "group end\n"
            "group start\n"
            "all_reduce rank 0 count 3\nall_reduce rank 1 count 3\n"
            "group end\n"
            "finalize rank 0\nfinalize rank 1\ndestroy rank 0\ndestroy rank 1\n");
}

TEST(Nccl, LaunchesOfTwoThreadsReachAllGpusInOneOrder) {
  MirroredStrategy strategy({.devices = "gpu:0-1", .cross_device_ops = {"nccl"}});
  take_nccl_notes();
  constexpr int kRounds = 20;
  const auto reduce = [&](float value, std::size_t count) {
    const std::pair<PerReplica<Tensor>, std::vector<Device>> pair = {
        PerReplica<Tensor>({Tensor(value).to(gpu(0)), Tensor(value).to(gpu(1))}), gpus(2)};
    const std::vector batch(count, pair);
    for (int round = 0; round < kRounds; ++round) {
      for (const auto& sums : strategy.batch_reduce_to(ReduceOp::kSum, batch)) {
        for (const Tensor& sum : sums) expect_tensor(sum, {}, {2 * value});
      }
    }
  };
  const auto other = Executor::system().start("other", [&] { reduce(2, 3); });
  reduce(1, 2);
  other->join();
  // Each group has the same call of both ranks, two values or three.
  std::string notes = take_nccl_notes();
  EXPECT_EQ(notes.find('!'), std::string::npos) << notes;
  int groups = 0;
  for (const char* count : {"2", "3"}) {
    const std::string group = concat("group start\nall_reduce rank 0 count ", count,
                                     "\nall_reduce rank 1 count ", count, "\ngroup end\n");
    for (auto at = notes.find(group); at != std::string::npos; at = notes.find(group)) {
      notes.erase(at, group.size());
      ++groups;
    }
  }
  EXPECT_EQ(groups, 2 * kRounds) << notes;
  EXPECT_EQ(notes.find("all_reduce"), std::string::npos) << notes;
}

TEST(Nccl, ConformsInASampleOfTheKit) {
  conformance::Subject subject("nccl");
  subject.use_devices(gpus(3));
  const conformance::Report report = conformance::run(
      {.shapes = {conformance::GroupShape::kLocal}, .sample = 60, .max_count = 5000}, subject);
  EXPECT_TRUE(report.passed()) << report.table("tutti conform nccl --devices gpu:0-2");
  EXPECT_GT(report.count(conformance::Verdict::kPassed), 30u);
  EXPECT_EQ(take_nccl_notes().find('!'), std::string::npos);  // no misuse
}

TEST(Nccl, UnevenPartsTravelAsBroadcastsAndReductions) {
  const auto ops = make_on("nccl", gpus(2));
  const PerReplica<Tensor> value(
      {Tensor::from<float>({3, 1}, {1, 2, 3}, gpu(0)), Tensor::from<float>({1, 1}, {4}, gpu(1))});
  take_nccl_notes();
  expect_tensor(ops->all_gather(value)[1], {4, 1}, {1, 2, 3, 4});
  EXPECT_THAT(take_nccl_notes(), HasSubstr("broadcast rank 1 count 3\nbroadcast rank 1 count 1\n"));
  const std::vector<std::int64_t> lengths = {2, 1};
  const auto parts = ops->reduce_scatter(ReduceOp::kSum, powers_of_ten(gpus(2)), lengths);
  expect_tensor(parts[0], {2}, {3, 30});
  expect_tensor(parts[1], {1}, {300});
  EXPECT_THAT(take_nccl_notes(), HasSubstr("reduce rank 0 count 2\nreduce rank 0 count 1\n"));
}

TEST(Nccl, MeanIsASumAndADivisionAndMinOfFloatsFallsBack) {
  const auto ops = make_on("nccl", gpus(2));
  const auto means = ops->all_reduce(ReduceOp::kMean, powers_of_ten(gpus(2)));
  expect_tensor(means[1], {3}, {1.5, 15, 150});
  EXPECT_FALSE(ops->supports(ReduceOp::kMin, DType::kFloat32, DeviceType::kGpu));
  EXPECT_TRUE(ops->supports(ReduceOp::kMin, DType::kInt32, DeviceType::kGpu));
  EXPECT_TRUE(ops->supports(ReduceOp::kMax, DType::kBool, DeviceType::kGpu));
  EXPECT_FALSE(ops->supports(ReduceOp::kSum, DType::kFloat32, DeviceType::kCpu));
  EXPECT_TRUE(ops->supports(ReduceOp::kSum, DType::kBFloat16, DeviceType::kGpu));
  EXPECT_FALSE(
      make_on("nccl", gpus(3))->supports(ReduceOp::kSum, DType::kBFloat16, DeviceType::kGpu));
  expect_tensor(ops->all_reduce(ReduceOp::kMin, powers_of_ten(gpus(2)))[1], {3}, {1, 10, 100});
}

TEST(Nccl, CpusAreRefusedByName) {
  EXPECT_INVALID(make_on("nccl", {Device{}, Device{DeviceType::kCpu, 1}}), "nccl",
                 "cpu:0 for replica 0", "canonical");
  const auto ops = make_on("nccl", gpus(2));
  EXPECT_INVALID(ops->all_reduce(ReduceOp::kSum, powers_of_ten({Device{}, Device{}})), "nccl",
                 "gpu:0, gpu:1", "cpu:0", "Tensor::to()");
  EXPECT_INVALID(ops->all_reduce(ReduceOp::kSum, powers_of_ten({gpu(0), gpu(2)})), "nccl", "gpu:2",
                 "replica 1");
  CommunicationOptions options;
  options.implementation = CommunicationImplementation::kNccl;
  const auto implied = build_cross_device_ops({"", options}, Group{2, 0, gpus(2)});
  EXPECT_EQ(implied->name(), "nccl");
}

TEST(Nccl, ReplicasThatShareAGpuAreRefusedNamingBoth) {
  EXPECT_INVALID(make_on("nccl", {gpu(0), gpu(1), gpu(0)}),
                 "replicas 0 (gpu:0) and 2 (gpu:0) are both on GPU 0", "canonical");
}

TEST(Nccl, CommunicatorsThatAreNeverReadyEndAtTheDeadline) {
  const Environment faults("TUTTI_SIMULATED_NCCL", "init_never:1");
  take_nccl_notes();
  EXPECT_ERROR(make_on("nccl", gpus(2), {.timeout = std::chrono::milliseconds(200)}),
               kDeadlineExceeded, "nccl: rank 0 (gpu:0): making communicators of 2 ranks",
               "200 ms");
  EXPECT_THAT(take_nccl_notes(), HasSubstr("abort rank 0\nabort rank 1\n"));
}

TEST(Nccl, AnAsynchronousErrorNamesRankAndDeviceAndClosesTheGroup) {
  const auto ops = make_on("nccl", gpus(2));
  ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  take_nccl_notes();
  const std::vector<std::string> parts = {"nccl: rank 1 (gpu:1): all_reduce of 3 x float32",
                                          "network error", "injected"};
  {
    const Environment faults("TUTTI_SIMULATED_NCCL", "async_error:2");
    expect_error(ErrorCode::kUnavailable, parts,
                 [&] { ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2))); });
  }
  const std::string notes = take_nccl_notes();
  EXPECT_THAT(notes, HasSubstr("abort rank 0\nabort rank 1\n"));
  expect_error(ErrorCode::kUnavailable, parts,
               [&] { ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2))); });
  EXPECT_EQ(take_nccl_notes(), "");
}

TEST(Nccl, AbortEndsALaunchThatWaitsAndLaterOnes) {
  const auto ops = make_on("nccl", gpus(2));
  const Environment faults("TUTTI_SIMULATED_NCCL", "launch_never:1");
  const auto thread = Executor::system().start("aborter", [&] {
    Clock::system().sleep_for(std::chrono::milliseconds(50));
    ops->abort(Error(ErrorCode::kUnavailable, "another replica has failed"));
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2))), kAborted,
                 "another replica has failed");
  }
}

TEST(Nccl, RanksOfTwoProcessesFindEachOtherByTheStore) {
  const auto store = std::make_shared<InProcessStore>();
  std::vector<std::vector<Tensor>> values(2);  // of each process, reduced in place
  const auto run_process = [&](int process) {
    const std::vector<Device> devices = {gpu(2 * process), gpu(2 * process + 1)};
    const auto ops =
        build_cross_device_ops(make_cross_device_ops("nccl"), {4, 2 * process, devices, store});
    EXPECT_TRUE(ops->spans_processes());
    const auto own = powers_of_ten(devices);
    std::vector<ReplicaBuffer> buffers;
    for (const Tensor& each : own) buffers.push_back(internal::buffer_of(each));
    ops->all_reduce_in_place(ReduceOp::kSum, buffers);
    values[static_cast<std::size_t>(process)] = {own[0], own[1]};
    expect_tensor(own[1], {3}, {6, 60, 600});
  };
  const auto other = Executor::system().start("process-1", [&] { run_process(1); });
  run_process(0);
  other->join();
  EXPECT_INVALID(build_cross_device_ops(make_cross_device_ops("nccl"), {4, 0, gpus(2)}),
                 "key value store");
}

TEST(Nccl, OldAndMissingLibrariesAreNamedWithTheRemedy) {
  const std::string path = std::getenv("TUTTI_NCCL_LIBRARY");
  internal::NcclFunctions injected = internal::nccl_functions();  // opened once, without a fault
  const Environment faults("TUTTI_SIMULATED_NCCL", "version:21703");
  EXPECT_ERROR(internal::open_nccl(path), kUnavailable, path,
               "expected 2.18.0 or later, got 2.17.3");
  EXPECT_ERROR(internal::open_nccl("/nowhere/libnccl.so.2"), kUnavailable,
               "cannot open /nowhere/libnccl.so.2", "TUTTI_NCCL_LIBRARY", "canonical");
  EXPECT_ERROR(internal::make_nccl_ops(Group{2, 0, gpus(2)}, {}, injected), kUnavailable,
               "got 2.17.3");
  injected.get_version = [](int* version) {
    *version = NCCL_VERSION(2, 18, 1);
    return ncclSuccess;
  };
  EXPECT_EQ(internal::make_nccl_ops(Group{2, 0, gpus(2)}, {}, injected)->name(), "nccl");
}

constexpr std::chrono::milliseconds kShort{200}, kLong{100'000};

TEST(PeerFailures, AReadEndsAtTheDeadlineWhenAPeerNeverJoins) {
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
  const auto ops = make_on("nccl", gpus(2), {.timeout = kLong});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1,async_later:300");
  take_nccl_notes();
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  EXPECT_ERROR(sums[0].to_doubles(), kUnavailable, "nccl: rank", "all_reduce of 3 x float32",
               "network error", "injected: the peer has ended");
  EXPECT_THAT(take_nccl_notes(), HasSubstr("abort rank 0\nabort rank 1\n"));
}

TEST(PeerFailures, AbortEndsARead) {
  const auto ops = make_on("nccl", gpus(2), {.timeout = kLong});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1");
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  const auto thread = Executor::system().start("aborter", [&] {
    Clock::system().sleep_for(std::chrono::milliseconds(50));
    ops->abort(Error(ErrorCode::kUnavailable, "another worker has failed"));
  });
  EXPECT_ERROR(sums[1].to_doubles(), kAborted, "another worker has failed");
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

}  // namespace nccl_test
}  // namespace tutti
