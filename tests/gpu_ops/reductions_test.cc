// Tests reductions on GPUs: calls to NCCL and their errors, the other cross-device operations, and
// different simulated machines.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "cross_device_ops/device_work.h"
#include "cross_device_ops/gpu_ranks.h"
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
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::testing::reductions_test {

class GpuCrossDeviceOps : public TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, GpuCrossDeviceOps,
                         Values("canonical", "hierarchical_copy", "reduction_to_one_device",
                                "ring"));

TEST_P(GpuCrossDeviceOps, PassesConformanceSample) {
  conformance::Subject subject(GetParam());
  subject.use_devices(gpus(3));
  const conformance::Report report = conformance::run(
      {.shapes = {conformance::GroupShape::kLocal}, .sample = 20, .max_count = 5000}, subject);
  EXPECT_TRUE(report.passed()) << report.table("tutti conform " + GetParam() +
                                               " --devices gpu:0-2");
  EXPECT_GT(report.count(conformance::Verdict::kPassed), 100u);
}

TEST_P(GpuCrossDeviceOps, MatchesCpuBitwise) {
  const int num_replicas = 4;
  std::vector<Tensor> host, there;
  for (int r = 0; r < num_replicas; ++r) {
    host.push_back(random_uniform({7'001}, {.seed = 3 + static_cast<std::uint64_t>(r)}, -1, 1,
                                  DType::kFloat32, {DeviceType::kCpu, r}));
    there.push_back(host.back().to(gpu(r)));
  }
  std::vector<Device> cpus;
  for (const Tensor& each : host) cpus.push_back(each.device());
  const auto expected = make_on(GetParam(), cpus)->all_reduce(ReduceOp::kSum, PerReplica(host));
  const auto actual = make_on(GetParam(), gpus(4))->all_reduce(ReduceOp::kSum, PerReplica(there));
  for (std::size_t r = 0; r < actual.size(); ++r) {
    EXPECT_EQ(actual[r].device(), gpu(static_cast<int>(r)));
    expect_same_bits(actual[r].to(Device{}), expected[r].to(Device{}));
  }
}

TEST_P(GpuCrossDeviceOps, PendingReductionDoesNotBlockComputeStream) {
  const auto ops = make_on(GetParam(), gpus(2));
  const auto values = powers_of_ten(gpus(2));
  std::vector<ReplicaBuffer> buffers;
  for (const Tensor& each : values) buffers.push_back(internal::buffer_of(each));
  PendingReduction pending = ops->start_all_reduce_in_place(ReduceOp::kMean, buffers);
  const Tensor beside = Tensor::full({4}, 2.0, DType::kFloat32, gpu(0)) * 3.0f;
  pending.join();
  expect_tensor(beside, {4}, {6, 6, 6, 6});
  for (const Tensor& mean : values) expect_tensor(mean, {3}, {1.5, 15, 150});
}

TEST(GpuReductions, SupportsSharedDevicesAndRejectsMixedDevices) {
  const std::vector<Device> devices = {gpu(0), gpu(0), gpu(1)};
  for (const char* name : {"canonical", "ring", "reduction_to_one_device"}) {
    const auto sums = make_on(name, devices)->all_reduce(ReduceOp::kSum, powers_of_ten(devices));
    for (const Tensor& sum : sums) expect_tensor(sum, {3}, {6, 60, 600});
  }
  const auto ops = make_on("canonical", gpus(2));
  std::vector<float> host(3);
  const Tensor there = Tensor::zeros({3}, DType::kFloat32, gpu(1));
  const std::vector<ReplicaBuffer> mixed = {
      {reinterpret_cast<std::byte*>(host.data()), 3, DType::kFloat32, Device{}},
      internal::buffer_of(there)};
  EXPECT_INVALID(ops->all_reduce_in_place(ReduceOp::kSum, mixed), "canonical", "cpu:0", "gpu:1",
                 "replica 1");
}

TEST(GpuReductions, ReducesTensorsToAnyDevice) {
  const auto ops = make_on("canonical", gpus(2));
  const auto values = powers_of_ten(gpus(2)).map([](const Tensor& t) { return Gradient(t); });
  for (const Device destination : {gpu(1), gpu(3), Device{}}) {
    const Tensor sum = ops->reduce(ReduceOp::kMean, values, destination).dense();
    EXPECT_EQ(sum.device(), destination);
    expect_tensor(sum, {3}, {1.5, 15, 150});
  }
  const std::vector<Tensor> integers = {Tensor::from<std::int32_t>({2}, {1, 2}, gpu(0)),
                                        Tensor::from<std::int32_t>({2}, {2, 5}, gpu(1))};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kMean, integers, gpu(1)), {2}, {1.5, 3.5});
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kMax, integers, Device{}), {2}, {2, 5});
  const std::vector<Tensor> halves = {Tensor::full({2}, 60'000, DType::kFloat16, gpu(0)),
                                      Tensor::full({2}, 40'000, DType::kFloat16, gpu(1))};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kMean, halves, gpu(0)), {2}, {49984, 49984});
  expect_tensor(ops->gather(powers_of_ten(gpus(2)), 0, gpu(1)), {6}, {1, 10, 100, 2, 20, 200});
  const auto copies = ops->broadcast(Tensor::from<float>({1}, {5}), gpus(2));
  EXPECT_EQ(copies[1].device(), gpu(1));
  expect_tensor(copies[1], {1}, {5});
}

TEST(GpuReductions, SparseGradientsAreReducedOnHost) {
  const auto rows_on = [](Device device, float value, std::int64_t row) {
    return Gradient(IndexedSlices{Tensor::from<float>({1, 2}, {value, value}, device),
                                  Tensor::from<std::int64_t>({1}, {row}, device),
                                  {4, 2}});
  };
  const PerReplica<Gradient> value({rows_on(gpu(0), 1, 3), rows_on(gpu(1), 2, 0)});
  const IndexedSlices all =
      make_on("canonical", gpus(2))->reduce(ReduceOp::kSum, value, gpu(1)).slices();
  EXPECT_EQ(all.values.device(), gpu(1));
  expect_tensor(all.values, {2, 2}, {1, 1, 2, 2});
  expect_tensor(all.indices, {2}, {3, 0});
}

std::string chosen(const std::vector<Device>& devices, std::string& why) {
  const LogLines log;
  const auto ops = build_cross_device_ops({}, {static_cast<int>(devices.size()), 0, devices});
  why = log.text();
  return std::string(ops->name());
}

TEST(GpuReductions, AutomaticChoiceLogsItsReason) {
  std::string why;
  EXPECT_EQ(chosen(gpus(2), why), "nccl");
  EXPECT_THAT(why, HasSubstr("gpu:0, gpu:1: nccl, because each replica has a GPU of its own"));
  EXPECT_EQ(chosen({gpu(0), gpu(0)}, why), "canonical");
  EXPECT_THAT(why,
              HasSubstr("canonical, because replicas 0 and 1 share GPU 0, which nccl refuses"));
  EXPECT_EQ(chosen({gpu(1)}, why), "canonical");
  EXPECT_EQ(why, "");
  EXPECT_TRUE(internal::are_connected(gpus(4)));
}

class CapturedReduction : public TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, CapturedReduction,
                         Values("canonical", "hierarchical_copy", "reduction_to_one_device", "ring",
                                "nccl"));

/// Makes later work in the compute stream of `begins` wait for the work already queued on `ends`.
void follow(Device begins, Device ends) {
  const auto event = GpuDevice::of(ends).with_context(
      [](DeviceContext& context) { return context.record(StreamId::kCompute); });
  GpuDevice::of(begins).with_context(
      [&](DeviceContext& context) { context.wait(StreamId::kCompute, *event); });
}

TEST_P(CapturedReduction, RunsAtEachGraphLaunch) {
  const auto ops = make_on(GetParam(), gpus(2));
  const auto values = powers_of_ten(gpus(2));
  std::vector<ReplicaBuffer> buffers;
  for (const Tensor& each : values) buffers.push_back(internal::buffer_of(each));
  for (const Device& device : gpus(2)) GpuDevice::of(device).synchronize();

  GpuDevice& first = GpuDevice::of(gpu(0));
  first.with_context([](DeviceContext& context) { context.begin_capture(); });
  follow(gpu(1), gpu(0));
  PendingReduction pending = ops->start_all_reduce_in_place(ReduceOp::kSum, buffers);
  pending.join();
  follow(gpu(0), gpu(1));
  const auto graph =
      first.with_context([](DeviceContext& context) { return context.end_capture(); });

  const auto launch = [&] {
    first.with_context([&](DeviceContext&) { graph(); });
    first.synchronize();
  };
  // the capture itself ran no reduction
  for (const Tensor& value : values) EXPECT_LE(value.to_doubles()[0], 2.0);
  launch();
  for (const Tensor& value : values) expect_tensor(value, {3}, {3, 30, 300});
  launch();
  for (const Tensor& value : values) expect_tensor(value, {3}, {6, 60, 600});
}

/// Ends this process with exit code 0 if `body` returns true. Otherwise exits with 1, after
/// printing the exception's message if `body` threw.
[[noreturn]] void end_with(const std::function<bool()>& body) {
  bool good = false;
  try {
    good = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::_Exit(good ? 0 : 1);
}

bool is_chosen(const std::string& name) {
  return build_cross_device_ops({}, {2, 0, gpus(2)})->name() == name;
}

/// Returns true if every cross-device operation except nccl and mpi computes correct sums and
/// means on these devices.
bool all_sum(const std::vector<Device>& devices) {
  for (const std::string& name : registered_cross_device_ops()) {
    if (name == "nccl" || name == "mpi") continue;
    const auto ops = make_on(name, devices);
    const double sum = static_cast<double>(devices.size() * (devices.size() + 1)) / 2;
    const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(devices));
    const auto means = ops->all_reduce(ReduceOp::kMean, powers_of_ten(devices));
    for (std::size_t r = 0; r < devices.size(); ++r) {
      if (sums[r].to_doubles() != std::vector<double>{sum, 10 * sum, 100 * sum}) return false;
      if (means[r].to_doubles()[0] != sum / static_cast<double>(devices.size())) return false;
    }
  }
  return true;
}

class SimulatedHardware : public Test {
 protected:
  SimulatedHardware() { FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(SimulatedHardware, ChoosesHierarchicalCopyWithoutNccl) {
  const Environment library("TUTTI_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
  EXPECT_EXIT(end_with([] { return is_chosen("hierarchical_copy"); }), ExitedWithCode(0),
              "hierarchical_copy, because the GPUs read each other's memory; nccl: cannot open "
              "/nowhere/libnccl.so.2");
}

TEST_F(SimulatedHardware, ChoosesCanonicalWithoutPeerAccess) {
  const Environment library("TUTTI_NCCL_LIBRARY", "/nowhere/libnccl.so.2");
  const Environment peers("TUTTI_SIMULATED_GPU_FAULTS", "peers:none");
  EXPECT_EXIT(end_with([] { return is_chosen("canonical") && all_sum(gpus(3)); }),
              ExitedWithCode(0), "canonical, because not all GPUs read each other's memory");
}

TEST_F(SimulatedHardware, VirtualGpusUseCanonicalAndRejectNccl) {
  const Environment one("TUTTI_SIMULATED_GPUS", "1");
  const Environment parts("TUTTI_VIRTUAL_GPUS", "3");
  EXPECT_EXIT(end_with([] {
                MirroredStrategy strategy;  // uses all logical GPUs
                const auto sums = strategy.run([&] {
                  const ReplicaContext& replica = ReplicaContext::current();
                  const Tensor own =
                      Tensor::scalar(replica.replica_id() + 1, DType::kFloat32, replica.device());
                  return ReplicaContext::current().all_reduce(ReduceOp::kSum, own);
                });
                return sums.size() == 3 && sums[2].device() == gpu(2) && sums[2].item() == 6.0f &&
                       all_sum(gpus(3));
              }),
              ExitedWithCode(0), "canonical, because replicas 0 and 1 share GPU 0");
  EXPECT_EXIT(end_with([] {
                make_on("nccl", gpus(2));
                return true;
              }),
              ExitedWithCode(1), "replicas 0 .gpu:0. and 1 .gpu:1. are both on GPU 0");
}

/// GoogleTest environment that selects a simulated machine unless environment variables name one.
class SimulatedMachine final : public ::testing::Environment {
 public:
  void SetUp() override {
    ::setenv("TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ::setenv("TUTTI_NCCL_LIBRARY", TUTTI_SIMULATED_MODULE, /*overwrite=*/0);
    ::setenv("TUTTI_SIMULATED_GPUS", "4", /*overwrite=*/0);
  }
};

const ::testing::Environment* const kMachine =
    AddGlobalTestEnvironment(std::make_unique<SimulatedMachine>().release());

TEST(SimulatedMachine, HasFourGpus) {
  ASSERT_NE(kMachine, nullptr);
  EXPECT_GE(logical_gpus().size(), 4u) << gpu_unavailable_reason();
}

TEST(Nccl, CreatesCommunicatorsOnceAndGroupsLaunches) {
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

TEST(Nccl, PassesConformanceSample) {
  conformance::Subject subject("nccl");
  subject.use_devices(gpus(3));
  const conformance::Report report = conformance::run(
      {.shapes = {conformance::GroupShape::kLocal}, .sample = 60, .max_count = 5000}, subject);
  EXPECT_TRUE(report.passed()) << report.table("tutti conform nccl --devices gpu:0-2");
  EXPECT_GT(report.count(conformance::Verdict::kPassed), 30u);
  EXPECT_EQ(take_nccl_notes().find('!'), std::string::npos);  // the simulation recorded no misuse
}

TEST(Nccl, UnevenShardsUseBroadcastsAndReductions) {
  const auto ops = make_on("nccl", gpus(2));
  const Tensor three = Tensor::from<float>({3}, {1, 2, 3}, gpu(0));
  const Tensor one = Tensor::from<float>({1}, {4}, gpu(1));
  const MutableTensor all[] = {{{4}, DType::kFloat32, gpu(0)}, {{4}, DType::kFloat32, gpu(1)}};
  const ReplicaBuffer given[] = {internal::buffer_of(three), internal::buffer_of(one)};
  const ReplicaBuffer gathered[] = {internal::buffer_of(all[0]), internal::buffer_of(all[1])};
  take_nccl_notes();
  ops->all_gather(given, gathered);
  expect_tensor(all[1].freeze(), {4}, {1, 2, 3, 4});
  EXPECT_THAT(take_nccl_notes(), HasSubstr("broadcast rank 1 count 3\nbroadcast rank 1 count 1\n"));
  const auto powers = powers_of_ten(gpus(2));
  const MutableTensor parts[] = {{{2}, DType::kFloat32, gpu(0)}, {{1}, DType::kFloat32, gpu(1)}};
  const ReplicaBuffer summed[] = {internal::buffer_of(powers[0]), internal::buffer_of(powers[1])};
  const ReplicaBuffer results[] = {internal::buffer_of(parts[0]), internal::buffer_of(parts[1])};
  ops->reduce_scatter(ReduceOp::kSum, summed, results);
  expect_tensor(parts[0].freeze(), {2}, {3, 30});
  expect_tensor(parts[1].freeze(), {1}, {300});
  EXPECT_THAT(take_nccl_notes(), HasSubstr("reduce rank 0 count 2\nreduce rank 0 count 1\n"));
}

TEST(Nccl, SupportsMeanButNotFloat32Minimum) {
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

TEST(Nccl, ErrorNamesUnsuitableDevices) {
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

TEST(Nccl, ErrorNamesReplicasSharingGpu) {
  EXPECT_INVALID(make_on("nccl", {gpu(0), gpu(1), gpu(0)}),
                 "replicas 0 (gpu:0) and 2 (gpu:0) are both on GPU 0", "canonical");
}

TEST(Nccl, UnreadyCommunicatorTimesOut) {
  const Environment faults("TUTTI_SIMULATED_NCCL", "init_never:1");
  take_nccl_notes();
  EXPECT_ERROR(make_on("nccl", gpus(2), {.timeout = std::chrono::milliseconds(200)}),
               kDeadlineExceeded, "nccl: rank 0 (gpu:0): making communicators of 2 ranks",
               "200 ms");
  EXPECT_THAT(take_nccl_notes(), HasSubstr("abort rank 0\nabort rank 1\n"));
}

TEST(Nccl, AsyncErrorNamesRankAndClosesGroup) {
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

TEST(Nccl, AbortEndsWaitingAndLaterLaunches) {
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

TEST(Nccl, ProcessesConnectThroughKeyValueStore) {
  const auto store = std::make_shared<InProcessStore>();
  std::vector<std::vector<Tensor>> values(2);  // values of each process, reduced in place
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
                 "key-value store");
}

TEST(Nccl, OldOrMissingLibraryErrorStatesRemedy) {
  const std::string path = std::getenv("TUTTI_NCCL_LIBRARY");
  // NCCL is opened before the faults are injected
  internal::NcclFunctions injected = internal::nccl_functions();
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

TEST(PeerFailures, ReadTimesOutWhenPeerNeverJoins) {
  auto ops = make_on("nccl", gpus(2), {.timeout = kShort});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1");
  take_nccl_notes();
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  const std::vector<std::string> parts = {
      "nccl: rank", "(gpu:", "all_reduce of 3 x float32 of 2 ranks", "200 ms"};
  for (int i = 0; i < 2; ++i) {  // repeated reads report the same error
    expect_error(ErrorCode::kDeadlineExceeded, parts, [&] { sums[1].to_doubles(); });
  }
  expect_error(ErrorCode::kDeadlineExceeded, parts, [] { GpuDevice::of(gpu(0)).synchronize(); });
  EXPECT_THAT(take_nccl_notes(), HasSubstr("abort rank 0\nabort rank 1\n"));
  expect_error(ErrorCode::kDeadlineExceeded, parts,
               [&] { ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2))); });
  ops.reset();
  expect_tensor(Tensor::from<float>({1}, {7}, gpu(0)), {1}, {7});
}

TEST(PeerFailures, ReadFailsWithNcclAsyncError) {
  const auto ops = make_on("nccl", gpus(2), {.timeout = kLong});
  const Environment faults("TUTTI_SIMULATED_NCCL", "peer_never:1,async_later:300");
  take_nccl_notes();
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  EXPECT_ERROR(sums[0].to_doubles(), kUnavailable, "nccl: rank", "all_reduce of 3 x float32",
               "network error", "injected: the peer has ended");
  EXPECT_THAT(take_nccl_notes(), HasSubstr("abort rank 0\nabort rank 1\n"));
}

TEST(PeerFailures, AbortEndsRead) {
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

TEST(PeerFailures, AbortKeepsCompletedResultsReadable) {
  const auto ops = make_on("nccl", gpus(2));
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  for (const Tensor& sum : sums) expect_tensor(sum, {3}, {3, 30, 300});
  for (const Device& device : gpus(2)) GpuDevice::of(device).synchronize();
  ops->abort(Error(ErrorCode::kUnavailable, "another worker has failed"));
  expect_tensor(sums[0], {3}, {3, 30, 300});
}

TEST(PeerFailures, DeadlineStartsWhenWorkRuns) {
  const auto ops = make_on("nccl", gpus(2), {.timeout = std::chrono::milliseconds(300)});
  const auto sums = ops->all_reduce(ReduceOp::kSum, powers_of_ten(gpus(2)));
  // simulated work runs only when its result is read, and the deadline starts then
  Clock::system().sleep_for(std::chrono::milliseconds(400));
  expect_tensor(sums[0], {3}, {3, 30, 300});
}

LocalStrategyOptions two_gpus(std::chrono::milliseconds timeout) {
  LocalStrategyOptions options;
  options.devices = "gpu:0-1";
  options.cross_device_ops.name = "nccl";
  options.cross_device_ops.options.timeout = timeout;
  return options;
}

TEST(PeerFailures, ReplayChecksPeersBeforeLaunch) {
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
  EXPECT_LT(w.value().to_doubles()[0], 0.3);  // no work was in flight, so no update was lost
}

}  // namespace tutti::testing::reductions_test
