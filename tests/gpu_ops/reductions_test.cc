// The operations other than nccl on GPUs: conformance, choice, tensors, streams, captures.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/gpu_ranks.h"
#include "cross_device_ops/gpu_reductions.h"
#include "tensor/gpu_device.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti {
namespace {

using gpu_ops_tests::Environment;
using gpu_ops_tests::expect_error;
using gpu_ops_tests::expect_tensor;
using gpu_ops_tests::gpu;
using gpu_ops_tests::gpus;
using gpu_ops_tests::make_on;
using gpu_ops_tests::powers_of_ten;
using ::testing::HasSubstr;

class EveryOperationOnGpus : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, EveryOperationOnGpus,
                         ::testing::Values("canonical", "hierarchical_copy",
                                           "reduction_to_one_device", "ring", "halving_doubling",
                                           "tree", "auto"));

TEST_P(EveryOperationOnGpus, ConformsInASampleOfTheKit) {
  conformance::Subject subject(GetParam());
  subject.use_devices(gpus(3));
  const conformance::Report report = conformance::run(
      {.shapes = {conformance::GroupShape::kLocal}, .sample = 20, .max_count = 5000}, subject);
  EXPECT_TRUE(report.passed()) << report.table("tutti conform " + GetParam() +
                                               " --devices gpu:0-2");
  EXPECT_GT(report.count(conformance::Verdict::kPassed), 100u);
}

TEST_P(EveryOperationOnGpus, HasTheBitsThatItHasOnCpus) {
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
    testing::expect_same_bits(actual[r].to(Device{}), expected[r].to(Device{}));
  }
}

TEST_P(EveryOperationOnGpus, QueuesWithoutWaitingAndReducesBesideTheComputeStreams) {
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

TEST(GpuReductions, SeveralReplicasOnADeviceAndMixedKindsOfDevices) {
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

TEST(GpuReductions, TensorsAreReducedToAnyDevice) {
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

TEST(GpuReductions, RowsAreJoinedByTheHostAndComeBack) {
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
  const thrown::LogLines log;
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

class CapturedReduction : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, CapturedReduction,
                         ::testing::Values("canonical", "hierarchical_copy",
                                           "reduction_to_one_device", "ring", "tree", "nccl"));

/// What `begins` puts into its compute stream from now on comes after what `ends` has there.
void follow(Device begins, Device ends) {
  const auto event = GpuDevice::of(ends).with_context(
      [](DeviceContext& context) { return context.record(StreamId::kCompute); });
  GpuDevice::of(begins).with_context(
      [&](DeviceContext& context) { context.wait(StreamId::kCompute, *event); });
}

TEST_P(CapturedReduction, IsRepeatedByEachLaunch) {
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
  for (const Tensor& value : values) EXPECT_LE(value.to_doubles()[0], 2.0);  // nothing ran
  launch();
  for (const Tensor& value : values) expect_tensor(value, {3}, {3, 30, 300});
  launch();
  for (const Tensor& value : values) expect_tensor(value, {3}, {6, 60, 600});
}

}  // namespace
}  // namespace tutti
