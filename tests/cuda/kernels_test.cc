// What kernels of GPUs promise besides the results in the table of operations.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_kernels_test {

using testing::device_test_call;
using testing::expect_same_bits;
using testing::expect_tensor;
using testing::random_values;
using testing::run_on_device;
using testing::tensor_of;

TEST(CudaElementwise, ALaunchIsLimitedButNotWhatItComputes) {
  const std::int64_t size = 65'535 * 256 + 1000;  // one element per thread where nothing is aligned
  const Tensor x = Tensor::full({size}, 13, DType::kUInt8);
  const OpCall call = device_test_call(OpId::kSquare, {x}, {{x.shape(), DType::kUInt8}});
  expect_same_bits(run_on_device(call, {1})[0], Tensor::full({size}, 169, DType::kUInt8));
}

TEST(CudaElementwise, ACapturedDropoutTakesItsKeyFromTheDevice) {
  const RandomKey captured{1, kDropoutPurpose, 1, 1, 1}, replayed{1, kDropoutPurpose, 2, 1, 1};
  const Tensor x = random_values({500}, DType::kFloat32, 1, 2);
  OpCall call = device_test_call(OpId::kDropout, {x}, {{x.shape(), DType::kFloat32}},
                                 DropoutAttributes{0.5, captured});
  const Tensor actual = run_on_device(call, {0, &replayed})[0];
  call.attributes = DropoutAttributes{0.5, replayed};
  expect_same_bits(actual, run_kernel(reference_kernels(), call)[0]);
}

TEST(CudaReductions, BitsDependOnTheShapeAlone) {
  for (const Shape& shape : {Shape{17'003}, Shape{7, 1030}, Shape{1000, 33}}) {
    const Tensor x = random_values(shape, DType::kFloat32, -1, 1);
    const int axis = shape.rank() == 2 && shape[1] == 33 ? 0 : shape.rank() - 1;
    const OpCall call =
        device_test_call(OpId::kReduceSum, {x}, {{shape.with_dim(axis, 1), DType::kFloat32}},
                         AxesAttributes{1u << axis, true});
    expect_same_bits(run_on_device(call, {1})[0], run_on_device(call)[0]);
  }
}

TEST(CudaBatchNormalization, RefusesParametersOfAnotherType) {
  const Tensor x = Tensor::zeros({4, 4}), gamma = Tensor::ones({4}, DType::kFloat64);
  const TensorSpec of_x{{4, 4}, DType::kFloat32}, of_channels{{4}, DType::kFloat64};
  const OpCall call = device_test_call(OpId::kBatchNormTraining, {x, gamma, gamma},
                                       {of_x, of_channels, of_channels}, BatchNormAttributes{1e-3});
  testing::expect_error(ErrorCode::kInvalidArgument,
                        {"batch normalisation: expected parameters of type float32, got float64"},
                        [&] { (void)run_on_device(call); });
}

TEST(CudaBatchNormalization, IsTheSameEachTime) {
  const Tensor x = random_values({3000, 6}, DType::kFloat32, -2, 2), ones = Tensor::ones({6});
  const TensorSpec of_x{x.shape(), DType::kFloat32}, of_channels{{6}, DType::kFloat32};
  const OpCall call = device_test_call(OpId::kBatchNormTraining, {x, ones, ones},
                                       {of_x, of_channels, of_channels}, BatchNormAttributes{1e-3});
  expect_same_bits(run_on_device(call)[2], run_on_device(call)[2]);
}

TEST(CudaShapeOps, IndicesOutOfRangeGatherZerosAndScatterNothing) {
  const Tensor params = tensor_of({2, 2}, {1, 2, 3, 4}, DType::kFloat32);
  const Tensor indices = tensor_of({3}, {1, 2, -1}, DType::kInt64);
  const Tensor gathered = run_on_device(
      device_test_call(OpId::kGather, {params, indices}, {{{3, 2}, DType::kFloat32}}))[0];
  expect_tensor(gathered, {3, 2}, {3, 4, 0, 0, 0, 0});
  const Tensor scattered = run_on_device(
      device_test_call(OpId::kScatterRows, {gathered, indices}, {{{2, 2}, DType::kFloat32}}))[0];
  expect_tensor(scattered, {2, 2}, {0, 0, 3, 4});
}

TEST(CudaLosses, ALabelThatIsNoClassGivesNan) {
  const double nan = std::nan("");
  const Tensor logits = Tensor::zeros({3, 2});
  const Tensor labels = tensor_of({3}, {2, 1, -1}, DType::kInt64);
  const auto loss = run_on_device(device_test_call(OpId::kSparseSoftmaxCrossEntropy,
                                                   {labels, logits}, {{{3}, DType::kFloat32}}));
  expect_tensor(loss[0], {3}, {nan, std::log(2.0), nan}, 1e-6);
  const auto gradient = run_on_device(device_test_call(OpId::kSparseSoftmaxCrossEntropyGrad,
                                                       {labels, logits, Tensor::ones({3})},
                                                       {{{3, 2}, DType::kFloat32}}));
  expect_tensor(gradient[0], {3, 2}, {nan, nan, 0.5, -0.5, nan, nan}, 1e-6);
}

}  // namespace cuda_kernels_test
}  // namespace tutti
