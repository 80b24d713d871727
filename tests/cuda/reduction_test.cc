// Reductions on GPUs: integers and extremes as on the CPU, sums as close as their type allows.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_reduction_test {

using testing::compare_with_cpu;
using testing::device_test_call;
using testing::expect_same_bits;
using testing::random_values;
using testing::run_on_device;
using testing::tensor_of;

Shape without_axes(Shape shape, std::uint32_t axes) {
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axes >> axis & 1u) shape = shape.with_dim(axis, 1);
  }
  return shape;
}

// Rows and columns, short and long, even and odd; the last two are cut into parts.
const Shape kShapes[] = {{},       {1},         {17},         {1027},          {3, 1, 70},
                         {40, 65}, {2, 300, 3}, {2, 3, 4, 5}, {2, 2, 2, 3, 2}, {0, 3},
                         {3, 0},   {17'000},    {300, 40}};

class CudaReduction : public ::testing::TestWithParam<OpId> {};

TEST_P(CudaReduction, AgreesWithTheCpuOverAllAxes) {
  const OpId op = GetParam();
  int num_kernels = 0;
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : kShapes) {
      const Tensor x = random_values(shape, dtype, op == OpId::kReduceProduct ? -1.1 : -9, 1.1);
      for (std::uint32_t axes = 0; axes < 1u << shape.rank(); ++axes) {
        if (shape.rank() > 3 && axes % 3 == 1) continue;
        const OpCall call = device_test_call(op, {x}, {{without_axes(shape, axes), dtype}},
                                             AxesAttributes{axes, true});
        num_kernels += compare_with_cpu(call, {16.0 * std::sqrt(1.0 + shape.num_elements())});
      }
    }
  }
  EXPECT_GT(num_kernels, 0);
}

INSTANTIATE_TEST_SUITE_P(Operations, CudaReduction,
                         ::testing::Values(OpId::kReduceSum, OpId::kReduceMean, OpId::kReduceMax,
                                           OpId::kReduceMin, OpId::kReduceProduct, OpId::kReduceAny,
                                           OpId::kReduceAll),
                         [](const auto& op) { return std::string(to_string(op.param)); });

TEST(CudaReductions, IndicesOfExtremesAreThoseOfTheCpu) {
  for (const OpId op : {OpId::kArgMax, OpId::kArgMin}) {
    for (const DType dtype : kAllDTypes) {
      for (const Shape& shape :
           {Shape{1}, Shape{50}, Shape{4, 1, 9}, Shape{3, 20, 9}, Shape{17'000}}) {
        const Tensor x = random_values(shape, dtype, 0, 9);  // integers: many equals
        for (int axis = 0; axis < shape.rank(); ++axis) {
          compare_with_cpu(device_test_call(op, {x}, {{shape.without_axis(axis), DType::kInt64}},
                                            AxisAttributes{axis}));
        }
      }
    }
  }
}

TEST(CudaReductions, NanIsFoundWhereTheCpuFindsIt) {
  const double nan = std::nan("");
  const Tensor x =
      tensor_of({4, 3}, {1, nan, 2, nan, 5, 6, 3, 3, nan, nan, nan, nan}, DType::kFloat32);
  for (const OpId op : {OpId::kArgMax, OpId::kArgMin}) {
    for (const int axis : {0, 1}) {
      compare_with_cpu(device_test_call(op, {x}, {{x.shape().without_axis(axis), DType::kInt64}},
                                        AxisAttributes{axis}));
    }
  }
  for (const OpId op : {OpId::kReduceMax, OpId::kReduceMin, OpId::kReduceSum}) {
    for (const std::uint32_t axes : {1u, 2u, 3u}) {
      compare_with_cpu(device_test_call(op, {x}, {{without_axes(x.shape(), axes), DType::kFloat32}},
                                        AxesAttributes{axes, true}),
                       {1.0});
    }
  }
}

TEST(CudaReductions, BitsDependOnTheShapeAlone) {
  for (const Shape& shape : {Shape{17'003}, Shape{7, 1030}, Shape{1000, 33}}) {
    const Tensor x = random_values(shape, DType::kFloat32, -1, 1);
    const std::uint32_t axes = shape.rank() == 2 && shape[1] == 33 ? 1 : 1u << (shape.rank() - 1);
    const OpCall call =
        device_test_call(OpId::kReduceSum, {x}, {{without_axes(shape, axes), DType::kFloat32}},
                         AxesAttributes{axes, true});
    expect_same_bits(run_on_device(call, {1})[0], run_on_device(call)[0]);
  }
}

}  // namespace cuda_reduction_test
}  // namespace tutti
