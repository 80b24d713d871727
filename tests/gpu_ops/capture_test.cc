// Reductions are captured whole: they wait for nothing on the host, and their streams meet again.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/gpu_reductions.h"
#include "tensor/gpu_device.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"

namespace tutti {
namespace {

using gpu_ops_tests::expect_tensor;
using gpu_ops_tests::gpu;
using gpu_ops_tests::gpus;
using gpu_ops_tests::make_on;
using gpu_ops_tests::powers_of_ten;

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
