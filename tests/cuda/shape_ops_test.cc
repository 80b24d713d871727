// Operations on GPUs that move elements give the bytes of the CPU.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_shape_test {

using testing::compare_with_cpu;
using testing::device_test_call;
using testing::random_values;
using testing::tensor_of;

Tensor some(const Shape& shape, DType dtype) { return random_values(shape, dtype, 0, 200); }

/// Both aligned and not.
void expect_moves(const OpCall& call) {
  EXPECT_TRUE(compare_with_cpu(call));
  compare_with_cpu(call, {}, 1);
}

// One type of each size: what is moved does not matter.
constexpr DType kSizes[] = {DType::kBool, DType::kBFloat16, DType::kFloat32, DType::kInt64};

TEST(CudaShapeOps, TransposesEveryPermutation) {
  for (const DType dtype : kSizes) {
    for (const Shape& shape : {Shape{5}, Shape{40, 33}, Shape{3, 35, 8}, Shape{2, 3, 1, 5},
                               Shape{2, 3, 2, 3, 2}, Shape{4, 0}, Shape{1, 64}}) {
      std::vector<std::int8_t> order(static_cast<std::size_t>(shape.rank()));
      std::iota(order.begin(), order.end(), std::int8_t{0});
      int number = 0;
      do {
        if (number++ % (shape.rank() > 4 ? 7 : 1) != 0) continue;
        TransposeAttributes attributes;
        std::copy(order.begin(), order.end(), attributes.permutation.begin());
        std::vector<std::int64_t> dims;
        for (const std::int8_t axis : order) dims.push_back(shape[axis]);
        expect_moves(device_test_call(OpId::kTranspose, {some(shape, dtype)},
                                      {{Shape(dims), dtype}}, attributes));
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(CudaShapeOps, SlicesPadsAndReverses) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& begin : {Shape{0, 0, 0}, Shape{1, 2, 3}, Shape{0, 4, 8}}) {
      SliceAttributes slice;
      PadAttributes pad;
      std::copy(begin.begin(), begin.end(), slice.begin.begin());
      std::copy(begin.begin(), begin.end(), pad.before.begin());
      pad.value = 3;
      expect_moves(
          device_test_call(OpId::kSlice, {some({4, 9, 24}, dtype)}, {{{2, 4, 16}, dtype}}, slice));
      expect_moves(
          device_test_call(OpId::kPad, {some({2, 4, 16}, dtype)}, {{{4, 9, 24}, dtype}}, pad));
      expect_moves(
          device_test_call(OpId::kPad, {some({2, 0, 16}, dtype)}, {{{4, 9, 24}, dtype}}, pad));
    }
    for (const std::uint32_t axes : {0u, 1u, 2u, 4u, 5u, 7u}) {
      const OpCall call = device_test_call(OpId::kReverse, {some({3, 4, 9}, dtype)},
                                           {{{3, 4, 9}, dtype}}, AxesAttributes{axes});
      if (reference_kernels().find(OpId::kReverse, dtype)) expect_moves(call);
    }
  }
}

TEST(CudaShapeOps, ConcatenatesAlongEachAxisAndRepeats) {
  for (const DType dtype : kAllDTypes) {
    for (const int axis : {0, 1, 2}) {
      std::vector<Tensor> parts;
      std::int64_t total = 0;
      for (const std::int64_t size : {3, 0, 16, 1}) {
        parts.push_back(random_values(Shape{4, 5, 8}.with_dim(axis, size), dtype, 0, 99,
                                      static_cast<std::uint64_t>(size) + 1));
        total += size;
      }
      expect_moves(device_test_call(OpId::kConcat, parts,
                                    {{Shape{4, 5, 8}.with_dim(axis, total), dtype}},
                                    AxisAttributes{axis}));
    }
    for (const Shape& shape : {Shape{}, Shape{16}, Shape{6, 1}, Shape{3, 1, 16}, Shape{1, 1, 1}}) {
      expect_moves(
          device_test_call(OpId::kBroadcastTo, {some(shape, dtype)}, {{{3, 6, 16}, dtype}}));
    }
    expect_moves(device_test_call(OpId::kReshape, {some({4, 6}, dtype)}, {{{8, 3}, dtype}}));
  }
}

TEST(CudaShapeOps, OneHotLeavesOutWhatIsNoClass) {
  for (const DType index : {DType::kInt32, DType::kInt64}) {
    const Tensor indices = tensor_of({2, 4}, {0, 3, -1, 4, 2, 7, 1, 0}, index);
    for (const DType dtype : kAllDTypes) {
      expect_moves(
          device_test_call(OpId::kOneHot, {indices}, {{{2, 4, 4}, dtype}}, OneHotAttributes{5, 2}));
    }
  }
}

TEST(CudaShapeOps, GathersRowsAndScattersThemInOrder) {
  for (const DType index : {DType::kInt32, DType::kInt64}) {
    for (const DType dtype : kAllDTypes) {
      for (const Shape& row : {Shape{1}, Shape{3}, Shape{16}, Shape{5, 60}}) {
        const Tensor indices = random_values({50}, index, 0, 20);
        std::vector<std::int64_t> params{20}, rows{50};
        params.insert(params.end(), row.begin(), row.end());
        rows.insert(rows.end(), row.begin(), row.end());
        expect_moves(device_test_call(OpId::kGather, {some(Shape(params), dtype), indices},
                                      {{Shape(rows), dtype}}));
        if (dtype == DType::kBool || row.num_elements() > 16) continue;
        const Tensor values = random_values(Shape(rows), dtype, -3, 3);
        EXPECT_TRUE(compare_with_cpu(
            device_test_call(OpId::kScatterRows, {values, indices}, {{Shape(params), dtype}})));
      }
    }
  }
}

TEST(CudaShapeOps, ScatteredRowsMayBeFarApart) {
  const Tensor values = random_values({300, 2}, DType::kFloat32, -3, 3);
  const Tensor indices = random_values({300}, DType::kInt32, 0, 100);
  EXPECT_TRUE(compare_with_cpu(
      device_test_call(OpId::kScatterRows, {values, indices}, {{{100, 2}, DType::kFloat32}})));
}

TEST(CudaShapeOps, ManyColumnsAndOneRowAreScattered) {
  const Tensor values = random_values({9, 300}, DType::kFloat32, -3, 3);
  const Tensor indices = tensor_of({9}, {2, 2, 2, 2, 2, 2, 2, 2, 2}, DType::kInt32);
  EXPECT_TRUE(compare_with_cpu(
      device_test_call(OpId::kScatterRows, {values, indices}, {{{4, 300}, DType::kFloat32}})));
}

// The CPU throws (docs/deviations.md).
TEST(CudaShapeOps, IndicesOutOfRangeGatherZerosAndScatterNothing) {
  const Tensor params = tensor_of({2, 2}, {1, 2, 3, 4}, DType::kFloat32);
  const Tensor indices = tensor_of({3}, {1, 2, -1}, DType::kInt64);
  const Tensor gathered = testing::run_on_device(
      device_test_call(OpId::kGather, {params, indices}, {{{3, 2}, DType::kFloat32}}))[0];
  testing::expect_tensor(gathered, {3, 2}, {3, 4, 0, 0, 0, 0});
  const Tensor scattered = testing::run_on_device(
      device_test_call(OpId::kScatterRows, {gathered, indices}, {{{2, 2}, DType::kFloat32}}))[0];
  testing::expect_tensor(scattered, {2, 2}, {0, 0, 3, 4});
}

TEST(CudaShapeOps, CumulativeSumsInBothDirections) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{1}, Shape{700}, Shape{3, 70}, Shape{5, 6, 4}, Shape{2, 0}}) {
      const Tensor x = random_values(shape, dtype, -3, 9);
      for (int axis = 0; axis < shape.rank(); ++axis) {
        for (const int flags : {0, 1, 2, 3}) {
          compare_with_cpu(
              device_test_call(OpId::kCumulativeSum, {x}, {{shape, dtype}},
                               CumulativeSumAttributes{axis, (flags & 1) != 0, (flags & 2) != 0}),
              {dtype == DType::kFloat64 ? 700.0 : 4.0});  // float32 is added in double
        }
      }
    }
  }
}

TEST(CudaShapeOps, TheLargestAreSortedAndTheFirstOfEqualsWins) {
  for (const DType dtype : kAllDTypes) {
    for (const auto& [shape, k] : {std::pair{Shape{1}, 1}, {Shape{4, 9}, 9}, {Shape{3, 700}, 5}}) {
      const Tensor x = random_values(shape, dtype, 0, 9);
      const Shape result = shape.with_dim(-1, k);
      compare_with_cpu(
          device_test_call(OpId::kTopK, {x}, {{result, dtype}, {result, DType::kInt64}}));
    }
  }
  const double nan = std::nan("");
  const Tensor x = tensor_of({6}, {1, nan, 7, nan, 7, -1}, DType::kFloat32);
  compare_with_cpu(
      device_test_call(OpId::kTopK, {x}, {{{5}, DType::kFloat32}, {{5}, DType::kInt64}}), {1.0});
}

}  // namespace cuda_shape_test
}  // namespace tutti
