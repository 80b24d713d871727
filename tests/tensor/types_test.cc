// DType, Shape, ReduceOp: names, axes and the broadcasting rule.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/shape.h"

namespace tutti {
namespace {

using testing::expect_error;

TEST(DType, HasNumpysNamesAndSizes) {
  const std::vector<std::pair<DType, std::pair<const char*, std::size_t>>> table = {
      {DType::kFloat32, {"float32", 4}},   {DType::kFloat64, {"float64", 8}},
      {DType::kInt32, {"int32", 4}},       {DType::kInt64, {"int64", 8}},
      {DType::kUInt8, {"uint8", 1}},       {DType::kBool, {"bool", 1}},
      {DType::kBFloat16, {"bfloat16", 2}}, {DType::kFloat16, {"float16", 2}}};
  for (const auto& [dtype, expected] : table) {
    EXPECT_EQ(to_string(dtype), expected.first);
    EXPECT_EQ(size_of(dtype), expected.second);
    EXPECT_EQ(parse_dtype(expected.first), dtype);
  }
  EXPECT_INVALID(parse_dtype("float8"), "float32, float64, int32", "'float8'");
}

TEST(DType, ValuesAreStable) {  // they stand in the plugin ABI
  EXPECT_EQ(static_cast<int>(DType::kFloat32), 0);
  EXPECT_EQ(static_cast<int>(DType::kInt64), 3);
  EXPECT_EQ(static_cast<int>(DType::kBool), 5);
  EXPECT_EQ(static_cast<int>(DType::kBFloat16), 6);
  EXPECT_EQ(static_cast<int>(DType::kFloat16), 7);
}

TEST(ReduceOp, IsReadInAnyCase) {
  EXPECT_EQ(parse_reduce_op("sum"), ReduceOp::kSum);
  EXPECT_EQ(parse_reduce_op("Mean"), ReduceOp::kMean);
  EXPECT_EQ(to_string(ReduceOp::kProduct), "PRODUCT");
  EXPECT_INVALID(parse_reduce_op("average"), "SUM, MEAN, MIN, MAX, PRODUCT", "'average'");
}

TEST(OpId, EveryOperationHasItsOwnName) {
  std::vector<std::string> names;
  for (int op = 0; op < static_cast<int>(OpId::kCount); ++op) {
    names.emplace_back(to_string(static_cast<OpId>(op)));
  }
  EXPECT_EQ(to_string(OpId::kScatterRows), "scatter_rows");
  EXPECT_EQ(to_string(OpId::kMatMul), "matmul");
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape{}.num_elements(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).num_elements(), 24);
  EXPECT_EQ((Shape{0, 3}).num_elements(), 0);
  EXPECT_EQ((Shape{std::int64_t{1} << 62, 0}).num_elements(), 0);
  EXPECT_EQ((Shape{INT64_MAX, 1}).num_elements(), INT64_MAX);
}

// With 0 dimensions, too: products of the others are strides and rows of tensors.
TEST(Shape, RefusesMoreElementsThanCanBeCounted) {
  constexpr std::int64_t kHuge = INT64_MAX;
  for (const std::vector<std::int64_t>& dims : std::vector<std::vector<std::int64_t>>{
           {std::int64_t{1} << 62, 2}, {0, kHuge, kHuge}, {kHuge, 0, kHuge}, {kHuge, kHuge, 0}}) {
    EXPECT_EQ(Shape::count(dims), std::nullopt);
    expect_error(ErrorCode::kInvalidArgument, {concat("[", join(dims), "]"), "more elements"},
                 [&] { const Shape shape{std::span<const std::int64_t>(dims)}; });
  }
  const Shape fits{0, kHuge};
  EXPECT_INVALID(fits.with_front(2), "more elements");
  EXPECT_INVALID(fits.with_dim(0, 2), "more elements");
  EXPECT_INVALID(broadcast({kHuge, 1}, {1, 2}, "test"), "more elements");
  const std::int64_t with_zero[] = {0, 3, 4};
  EXPECT_EQ(Shape::count(with_zero), 12);
  EXPECT_EQ(Shape::count({}), 1);
}

TEST(Shape, RefusesNegativeAndTooManyDimensions) {
  EXPECT_INVALID((Shape{2, -1}), "[2, -1]");
  EXPECT_INVALID((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), "at most 8");
  EXPECT_INVALID((Shape{1, 1, 1, 1, 1, 1, 1, 1}).with_front(2), "at most 8");
}

TEST(Shape, NegativeAxesCountFromTheEnd) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.dim(-1), 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape.normalized_axis(-3, "test"), 0);
  EXPECT_INVALID(shape.normalized_axis(3, "my op"), "my op", "axis 3", "[2, 3, 4]");
  EXPECT_INVALID(shape.dim(-4), "axis -4");
}

TEST(Shape, ChangesAxes) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.with_dim(1, 7), (Shape{2, 7, 4}));
  EXPECT_EQ(shape.without_axis(0), (Shape{3, 4}));
  EXPECT_EQ(shape.without_axis(-1), (Shape{2, 3}));
  EXPECT_EQ(shape.with_front(5), (Shape{5, 2, 3, 4}));
  EXPECT_EQ(shape.to_string(), "[2, 3, 4]");
  EXPECT_NE(shape, (Shape{2, 3}));
}

TEST(Shape, BroadcastsByNumpysRule) {
  EXPECT_EQ(broadcast({2, 3}, {3}, "test"), (Shape{2, 3}));
  EXPECT_EQ(broadcast({2, 1}, {1, 5}, "test"), (Shape{2, 5}));
  EXPECT_EQ(broadcast({}, {4}, "test"), (Shape{4}));
  EXPECT_EQ(broadcast({0, 3}, {1, 3}, "test"), (Shape{0, 3}));
  EXPECT_EQ(broadcast({0}, {1}, "test"), (Shape{0}));
  EXPECT_FALSE(try_broadcast({2, 3}, {4}));
  EXPECT_FALSE(try_broadcast({0}, {2}));
  EXPECT_INVALID(broadcast({2, 3}, {4}, "my op"), "my op", "[2, 3]", "[4]");
}

}  // namespace
}  // namespace tutti
