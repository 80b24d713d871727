// Operations and their gradients on a GPU, compared with the CPU's, and mistakes with devices.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/gpu_device.h"
#include "tests/autograd/gradient_check.h"
#include "tests/gpu/gpu_helpers.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti {
namespace {

using gpu_tests::expect_near;
using gpu_tests::expect_tensor;
using gpu_tests::kGpu;
using gpu_tests::kSecondGpu;
using gradient_check::Case;

class GpuGradients : public gradient_check::GroupTest {};

TEST_P(GpuGradients, AgreeWithTheCpu) {
  for (const Case& c : GetParam().cases()) {
    try {
      expect_near_cpu(c, value_and_gradients(c, kGpu), 3e-5);
    } catch (const std::exception& error) {
      ADD_FAILURE() << c.name << ": " << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, GpuGradients, ::testing::ValuesIn(gradient_check::kGroups),
                         gradient_check::group_name);

TEST(GpuOperations, SecondOrderGradientsStayOnTheDevice) {
  const Tensor x = gpu_tests::numbers({4, 3}, 5), w = gpu_tests::numbers({3, 2}, 6);
  const auto second = [&](Device device) {
    const Tensor there = x.to(device), weights = w.to(device);
    GradientTape outer;
    outer.watch(there);
    Tensor norm;
    {
      GradientTape inner;
      inner.watch(there);
      const Tensor y = reduce_sum(square(tanh(matmul(there, weights))));
      norm = reduce_sum(square(inner.gradient(y, there).dense()));
    }
    return outer.gradient(norm, there).dense();
  };
  expect_near(second(kGpu), second(Device{}), 3e-5);
}

TEST(GpuOperations, RandomTensorsAreThoseOfTheCpu) {
  const RandomKey key{.seed = 3};
  testing::expect_same_bits(random_normal({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                            random_normal({50}, key, 0.0, 1.0, DType::kFloat32));
  testing::expect_same_bits(random_uniform({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                            random_uniform({50}, key, 0.0, 1.0, DType::kFloat32));
  const Tensor x = gpu_tests::numbers({100}, 4);
  expect_near(dropout(x.to(kGpu), 0.5, key), dropout(x, 0.5, key), 1e-6);
}

TEST(GpuOperations, HalfTypesAgreeWithTheCpu) {
  const Tensor a = gpu_tests::numbers({8, 16}, 5), b = gpu_tests::numbers({16, 4}, 6);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const double tolerance = dtype == DType::kBFloat16 ? 2e-2 : 3e-3;
    const auto result = [&](Device device) {
      const Tensor x = cast(a.to(device), dtype), y = cast(b.to(device), dtype);
      return cast(softmax(relu(matmul(x, y) * 2.0f)), DType::kFloat32);
    };
    expect_near(result(kGpu), result(Device{}), tolerance);
  }
}

TEST(GpuErrors, HostAccessNamesTheDevice) {
  const Tensor x = Tensor::ones({2, 3}, DType::kFloat32, kGpu);
  EXPECT_ERROR((void)x.host_span<float>(), kFailedPrecondition, "float32", "[2, 3]", "gpu:0",
               "to(Device{})");
  expect_tensor(x.to(Device{}), {2, 3}, {1, 1, 1, 1, 1, 1});
}

TEST(GpuErrors, MixedDevicesAreBothNamed) {
  const Tensor x = Tensor::ones({2}, DType::kFloat32, kGpu);
  EXPECT_INVALID((void)(x + Tensor::ones({2})), "add", "operations_test.cc", "gpu:0", "cpu:0",
                 "to()");
  EXPECT_INVALID((void)(x + x.to(kSecondGpu)), "gpu:0", "gpu:1");
  expect_tensor(x + x.to(kSecondGpu).to(kGpu), {2}, {2, 2});
}

TEST(GpuErrors, MissingGpusAreListed) {
  const int count = static_cast<int>(logical_gpus().size());
  EXPECT_ERROR((void)Tensor::ones({2}, DType::kFloat32, {DeviceType::kGpu, count}), kUnavailable,
               concat("gpu:", count), "gpu:0");
}

TEST(GpuErrors, OutOfMemorySaysWhatIsHeldAndLeavesTheDeviceUsable) {
  const auto limit = GpuDevice::of(kGpu).description().memory_limit;
  EXPECT_ERROR((void)Tensor::zeros({limit / 2}, DType::kFloat32, kGpu), kResourceExhausted, "gpu:0",
               "no memory for", "in use", "cached", "limit", "try a smaller batch");
  expect_tensor(Tensor::ones({3}, DType::kFloat32, kGpu) * 2.0f, {3}, {2, 2, 2});
}

}  // namespace
}  // namespace tutti
