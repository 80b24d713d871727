// Mistakes with devices, and what the errors say.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu_device.h"
#include "tests/gpu/gpu_helpers.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

using gpu_tests::expect_error;
using gpu_tests::expect_tensor;
using gpu_tests::kGpu;
using gpu_tests::kSecondGpu;

TEST(GpuErrors, HostAccessNamesTheDevice) {
  const Tensor x = Tensor::ones({2, 3}, DType::kFloat32, kGpu);
  expect_error(ErrorCode::kFailedPrecondition, {"float32", "[2, 3]", "gpu:0", "to(Device{})"},
               [&] { (void)x.host_span<float>(); });
  expect_tensor(x.to(Device{}), {2, 3}, {1, 1, 1, 1, 1, 1});
}

TEST(GpuErrors, MixedDevicesAreBothNamed) {
  const Tensor x = Tensor::ones({2}, DType::kFloat32, kGpu);
  expect_error(ErrorCode::kInvalidArgument, {"add", "errors_test.cc", "gpu:0", "cpu:0", "to()"},
               [&] { (void)(x + Tensor::ones({2})); });
  expect_error(ErrorCode::kInvalidArgument, {"gpu:0", "gpu:1"},
               [&] { (void)(x + x.to(kSecondGpu)); });
  expect_tensor(x + x.to(kSecondGpu).to(kGpu), {2}, {2, 2});
}

TEST(GpuErrors, MissingGpusAreListed) {
  const int count = static_cast<int>(logical_gpus().size());
  expect_error(ErrorCode::kUnavailable, {concat("gpu:", count), "gpu:0"}, [&] {
    (void)Tensor::ones({2}, DType::kFloat32, {DeviceType::kGpu, count});
  });
}

TEST(GpuErrors, OutOfMemorySaysWhatIsHeldAndLeavesTheDeviceUsable) {
  const auto limit = GpuDevice::of(kGpu).description().memory_limit;
  expect_error(ErrorCode::kResourceExhausted,
               {"gpu:0", "no memory for", "in use", "cached", "limit", "try a smaller batch"},
               [&] { (void)Tensor::zeros({limit / 2}, DType::kFloat32, kGpu); });
  expect_tensor(Tensor::ones({3}, DType::kFloat32, kGpu) * 2.0f, {3}, {2, 2, 2});
}

}  // namespace
}  // namespace tutti
