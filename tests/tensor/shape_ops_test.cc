// Compares operations that move, repeat, select and resize elements with plain loops over
// coordinates.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/shape_ops.h"

#include <functional>
#include <limits>
#include <numeric>

#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::shape_ops_test {

using Index = std::vector<std::int64_t>;

/// Returns a tensor of the elements 0, 1, 2, ...
Tensor counting(const Shape& shape, DType dtype = DType::kFloat32) {
  std::vector<double> values(static_cast<std::size_t>(shape.num_elements()));
  std::iota(values.begin(), values.end(), 0.0);
  return tensor_of(shape, values, dtype);
}

std::int64_t offset_of(const Index& index, const Shape& shape) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    offset = offset * shape.dim(axis) + index[static_cast<std::size_t>(axis)];
  }
  return offset;
}

/// Returns the elements of a tensor of `shape`, each computed from its coordinates.
std::vector<double> by_coordinates(const Shape& shape,
                                   const std::function<double(const Index&)>& element) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
    Index index(static_cast<std::size_t>(shape.rank()));
    std::int64_t rest = i;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      index[static_cast<std::size_t>(axis)] = rest % shape.dim(axis);
      rest /= shape.dim(axis);
    }
    values.push_back(element(index));
  }
  return values;
}

TEST(Reshape, InfersOneDimension) {
  const Tensor x = counting({2, 6});
  expect_tensor(reshape(x, {3, -1}), {3, 4}, x.to_doubles());
  expect_tensor(reshape(x, {-1}), {12}, x.to_doubles());
  expect_tensor(reshape(x, Shape{4, 3}), {4, 3}, x.to_doubles());
  EXPECT_EQ(reshape(Tensor::zeros({0, 6}), {-1, 3}).shape(), (Shape{0, 3}));
  EXPECT_EQ(reshape(Tensor(1.0f), {1, -1}).shape(), (Shape{1, 1}));
}

TEST(Reshape, RejectsDifferentElementCount) {
  const Tensor x = counting({2, 6});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("reshape at shape_ops_test.cc:", __LINE__ + 1), "[2, 6]", "[5, 2]"}, [&] {
                 reshape(x, {5, 2});
               });
  EXPECT_INVALID(reshape(x, {5, -1}), "reshape at", "[5, -1]");
  EXPECT_INVALID(reshape(x, {-1, -1}), "at most one -1");
  constexpr std::int64_t kLarge = std::int64_t{1} << 32;
  EXPECT_INVALID(reshape(x, {-1, kLarge, kLarge, 12}), "cannot infer -1");
  EXPECT_INVALID(reshape(Tensor::zeros({0, 2}), {0, -1}), "reshape at");
}

TEST(Reshape, CanFlattenExpandAndSqueeze) {
  EXPECT_EQ(flatten_rows(Tensor::zeros({4, 2, 3})).shape(), (Shape{4, 6}));
  EXPECT_EQ(flatten_rows(Tensor::zeros({0, 2, 3})).shape(), (Shape{0, 6}));
  EXPECT_EQ(flatten_rows(Tensor::zeros({4})).shape(), (Shape{4, 1}));
  const Tensor x = counting({2, 3});
  EXPECT_EQ(expand_dims(x, 0).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(expand_dims(x, -1).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(squeeze(Tensor::zeros({2, 1, 3}), 1).shape(), (Shape{2, 3}));
  EXPECT_INVALID(flatten_rows(Tensor(1.0f)), "flatten_rows at shape_ops_test.cc");
  EXPECT_INVALID(squeeze(x, 0), "squeeze at shape_ops_test.cc", "[2, 3]");
  EXPECT_INVALID(expand_dims(x, 4), "expand_dims at", "axis 4");
}

TEST(Transpose, MovesEveryElementInEveryType) {
  const std::vector<std::pair<Shape, std::vector<int>>> cases = {{{3, 5}, {1, 0}},
                                                                 {{2, 3, 4}, {2, 0, 1}},
                                                                 {{2, 3, 4}, {0, 2, 1}},
                                                                 {{2, 3, 4, 5}, {0, 3, 1, 2}},
                                                                 {{7}, {0}},
                                                                 {{2, 1, 3}, {1, 0, 2}},
                                                                 {{0, 3}, {1, 0}},
                                                                 {{}, {}}};
  for (DType dtype : kAllDTypes) {
    for (const auto& [shape, permutation] : cases) {
      SCOPED_TRACE(concat(dtype, " ", shape, " [", join(permutation), "]"));
      const Tensor x = counting(shape, dtype);
      Index dims;
      for (int axis : permutation) dims.push_back(shape.dim(axis));
      const std::vector<double> elements = x.to_doubles();
      const auto element = [&, &shape = shape, &permutation = permutation](const Index& index) {
        Index source(index.size());
        for (std::size_t i = 0; i < index.size(); ++i) {
          source[static_cast<std::size_t>(permutation[i])] = index[i];
        }
        return elements[static_cast<std::size_t>(offset_of(source, shape))];
      };
      expect_tensor(transpose(x, permutation), Shape(dims), by_coordinates(Shape(dims), element));
    }
  }
  EXPECT_EQ(transpose(counting({2, 3, 4})).shape(), (Shape{4, 3, 2}));
  EXPECT_INVALID(transpose(counting({2, 3}), {0, 0}), "transpose at shape_ops_test.cc", "[0, 0]",
                 "[2, 3]");
}

TEST(Slice, ExtractsSubtensors) {
  const Tensor x = counting({4, 5, 3});
  const std::vector<double> elements = x.to_doubles();
  const std::vector<std::pair<Index, Index>> cases = {
      {{0, 0, 0}, {4, 5, 3}}, {{1, 0, 0}, {2, 5, 3}}, {{1, 2, 1}, {3, 2, 2}},
      {{0, 4, 0}, {4, 1, 3}}, {{2, 1, 2}, {1, 3, 1}}, {{0, 0, 0}, {0, 5, 3}},
      {{4, 5, 3}, {0, 0, 0}}};
  for (const auto& [begin, size] : cases) {
    SCOPED_TRACE(concat("[", join(begin), "] [", join(size), "]"));
    const auto element = [&, &begin = begin](Index index) {
      for (std::size_t i = 0; i < index.size(); ++i) index[i] += begin[i];
      return elements[static_cast<std::size_t>(offset_of(index, x.shape()))];
    };
    expect_tensor(slice(x, begin, size), Shape(size), by_coordinates(Shape(size), element));
  }
  EXPECT_EQ(slice(x, {1, 1, 0}, {-1, 2, -1}).shape(), (Shape{3, 2, 3}));
  expect_tensor(slice(counting({0, 3}), {0, 1}, {0, 2}), {0, 2}, {});
  expect_tensor(slice(Tensor(4.0f), {}, {}), {}, {4});
}

TEST(Slice, RejectsOutOfRangeSlices) {
  const Tensor x = counting({4, 5});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("slice at shape_ops_test.cc:", __LINE__ + 2), "[4, 5]", "[3, 0]", "[2, 5]"},
               [&] {
                 slice(x, {3, 0}, {2, 5});
               });
  EXPECT_INVALID(slice(x, {-1, 0}, {1, 5}), "slice at");
  EXPECT_INVALID(slice(x, {5, 0}, {-1, 5}), "slice at");
  EXPECT_INVALID(slice(x, {0}, {1, 1}), "expected 2 values of begin");
}

TEST(Concat, JoinsAlongAnyAxisIncludingEmptyTensors) {
  const Tensor a = tensor_of({2, 2}, {1, 2, 3, 4}, DType::kInt64);
  const Tensor b = tensor_of({2, 1}, {5, 6}, DType::kInt64);
  expect_tensor(concat({a, b}, 1), {2, 3}, {1, 2, 5, 3, 4, 6});
  expect_tensor(concat({a, a}, 0), {4, 2}, {1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(concat({a, Tensor::zeros({0, 2}, DType::kInt64), a}, 0), {4, 2},
                {1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(concat({Tensor::zeros({2, 0}, DType::kInt64), a}, -1), {2, 2}, {1, 2, 3, 4});
  expect_tensor(concat({Tensor::zeros({0, 2}), Tensor::zeros({0, 2})}, 0), {0, 2}, {});
  expect_tensor(concat({a}, 0), {2, 2}, {1, 2, 3, 4});
  const Tensor c = counting({2, 2, 2});
  expect_tensor(concat({c, c}, 1), {2, 4, 2}, {0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7});
}

TEST(Concat, RejectsMismatchedTensors) {
  const Tensor a = Tensor::zeros({2, 2});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("concat at shape_ops_test.cc:", __LINE__ + 1), "[2, 2]", "[3, 2]"}, [&] {
                 concat({a, Tensor::zeros({3, 2})}, 1);
               });
  EXPECT_INVALID(concat({a, Tensor::zeros({2, 2}, DType::kInt32)}, 0), "concat at", "float32",
                 "int32");
  EXPECT_INVALID(concat(std::span<const Tensor>(), 0), "concat at", "at least one");
  EXPECT_INVALID(concat({a, a}, 2), "concat at", "axis 2");
  EXPECT_ERROR(concat({a, Tensor()}, 0), kFailedPrecondition, "concat at", "undefined");
}

TEST(Split, SplitsAxisEquallyOrBySizes) {
  const std::vector<Tensor> halves = split(counting({10}), 2);
  ASSERT_EQ(halves.size(), 2u);
  expect_tensor(halves[0], {5}, {0, 1, 2, 3, 4});
  expect_tensor(halves[1], {5}, {5, 6, 7, 8, 9});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("split at shape_ops_test.cc:", __LINE__ + 1), "[10]", "10", "3"},
               [&] { split(counting({10}), 3); });
  EXPECT_INVALID(split(counting({10}), 0), "split at");
  const std::vector<Tensor> parts = split(counting({2, 4}), std::vector<std::int64_t>{1, 0, 3}, 1);
  ASSERT_EQ(parts.size(), 3u);
  expect_tensor(parts[0], {2, 1}, {0, 4});
  expect_tensor(parts[1], {2, 0}, {});
  expect_tensor(parts[2], {2, 3}, {1, 2, 3, 5, 6, 7});
  EXPECT_EQ(split(Tensor::zeros({0, 3}), 2)[1].shape(), (Shape{0, 3}));
  EXPECT_INVALID(split(counting({4}), std::vector<std::int64_t>{3, 2}), "split at", "[3, 2]",
                 "sum 5", "[4]");
  EXPECT_INVALID(split(counting({4}), std::vector<std::int64_t>{5, -1}), "split at", "[5, -1]");
}

TEST(Pad, SurroundsTensorWithConstant) {
  expect_tensor(pad(counting({2, 2}), {1, 0}, {0, 2}, 9), {3, 4},
                {9, 9, 9, 9, 0, 1, 9, 9, 2, 3, 9, 9});
  expect_tensor(pad(counting({3}, DType::kInt32), {0}, {1}), {4}, {0, 1, 2, 0});
  expect_tensor(pad(Tensor::zeros({0, 2}), {1, 0}, {1, 0}, 5), {2, 2}, {5, 5, 5, 5});
  expect_tensor(pad(Tensor::zeros({0}), {0}, {0}), {0}, {});
  EXPECT_INVALID(pad(counting({3}), {-1}, {0}), "pad at shape_ops_test.cc", "[-1]");
  EXPECT_INVALID(pad(counting({3}, DType::kUInt8), {1}, {0}, 0.5), "pad at", "uint8");
}

TEST(BroadcastTo, RepeatsElements) {
  expect_tensor(broadcast_to(counting({3}), {2, 3}), {2, 3}, {0, 1, 2, 0, 1, 2});
  expect_tensor(broadcast_to(counting({2, 1}), {2, 3}), {2, 3}, {0, 0, 0, 1, 1, 1});
  expect_tensor(broadcast_to(Tensor(7.0f), {2, 2}), {2, 2}, {7, 7, 7, 7});
  expect_tensor(broadcast_to(counting({1, 2, 1}, DType::kBool), {2, 2, 2}), {2, 2, 2},
                {0, 0, 1, 1, 0, 0, 1, 1});
  expect_tensor(broadcast_to(counting({1, 3}), {0, 3}), {0, 3}, {});
  EXPECT_INVALID(broadcast_to(counting({3}), {2, 2}), "broadcast_to at shape_ops_test.cc", "[3]",
                 "[2, 2]");
  EXPECT_INVALID(broadcast_to(counting({2, 3}), {3}), "broadcast_to at");
}

TEST(OneHot, MarksIndicesInRange) {
  const Tensor indices = tensor_of({4}, {1, 0, 3, -1}, DType::kInt64);
  expect_tensor(one_hot(indices, 3), {4, 3}, {0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  const Tensor marked = one_hot(tensor_of({1, 2}, {0, 1}, DType::kInt32), 2, DType::kInt64, 5, -5);
  EXPECT_EQ(marked.dtype(), DType::kInt64);
  expect_tensor(marked, {1, 2, 2}, {5, -5, -5, 5});
  expect_tensor(one_hot(Tensor::zeros({0}, DType::kInt64), 3), {0, 3}, {});
  EXPECT_INVALID(one_hot(Tensor::zeros({2}), 3), "one_hot at shape_ops_test.cc", "float32");
}

TEST(Gather, SelectsRows) {
  const Tensor params = counting({4, 2});
  expect_tensor(gather(params, tensor_of({3}, {3, 0, 3}, DType::kInt64)), {3, 2},
                {6, 7, 0, 1, 6, 7});
  expect_tensor(gather(params, tensor_of({1, 2}, {1, 2}, DType::kInt32)), {1, 2, 2}, {2, 3, 4, 5});
  expect_tensor(gather(counting({3}), tensor_of({}, {2}, DType::kInt64)), {}, {2});
  expect_tensor(gather(params, Tensor::zeros({0}, DType::kInt64)), {0, 2}, {});
}

TEST(Gather, ErrorNamesOutOfRangeIndexAndPosition) {
  const Tensor params = counting({4, 2});
  for (double bad : {4.0, -1.0}) {
    EXPECT_INVALID(gather(params, tensor_of({3}, {0, 1, bad}, DType::kInt64)),
                   "gather at shape_ops_test.cc:", "0 .. 3", concat("got ", bad), "position 2");
  }
  EXPECT_INVALID(gather(params, Tensor::zeros({1})), "gather at", "float32");
  EXPECT_INVALID(gather(Tensor(1.0f), Tensor::zeros({1}, DType::kInt64)), "gather at",
                 "[rows, ...]");
}

TEST(ScatterRows, AddsInPositionOrder) {
  const Tensor values = tensor_of({3, 2}, {1, 2, 10, 20, 100, 200}, DType::kFloat64);
  expect_tensor(scatter_rows(values, tensor_of({3}, {1, 1, 0}, DType::kInt64), {3, 2}), {3, 2},
                {100, 200, 11, 22, 0, 0});
  // In float32, (1 + 1e8) - 1e8 is 0, whereas 1 + (1e8 - 1e8) is 1.
  const Tensor order = tensor_of({3}, {1, 1e8, -1e8}, DType::kFloat32);
  expect_tensor(scatter_rows(order, Tensor::zeros({3}, DType::kInt32), {1}), {1}, {0});
  expect_tensor(scatter_rows(Tensor::zeros({0, 2}), Tensor::zeros({0}, DType::kInt64), {2, 2}),
                {2, 2}, {0, 0, 0, 0});
  EXPECT_INVALID(scatter_rows(counting({1, 2}), tensor_of({1}, {2}, DType::kInt64), {2, 2}),
                 "scatter_rows at", "0 .. 1", "got 2", "position 0");
  EXPECT_INVALID(scatter_rows(counting({1, 3}), tensor_of({1}, {0}, DType::kInt64), {2, 2}),
                 "scatter_rows at shape_ops_test.cc", "[1, 3]", "[2, 2]");
}

// For [0, 4, 8], the expected values are those of Keras 3's UpSampling2D((1, 2),
// interpolation="bilinear").
TEST(Upsample2d, BilinearUsesHalfPixelCenters) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const UpsampleOptions wide{1, 2, Interpolation::kBilinear};
    expect_tensor(upsample2d(tensor_of({1, 1, 3, 1}, {0, 4, 8}, dtype), wide), {1, 1, 6, 1},
                  {0, 1, 3, 5, 7, 8});
    const UpsampleOptions both{2, 2, Interpolation::kBilinear};
    expect_tensor(upsample2d(tensor_of({1, 2, 2, 1}, {0, 4, 8, 12}, dtype), both), {1, 4, 4, 1},
                  {0, 1, 3, 4, 2, 3, 5, 6, 6, 7, 9, 10, 8, 9, 11, 12});
  }
}

TEST(Upsample2d, ErrorsNameShapeAndLine) {
  EXPECT_INVALID(upsample2d(Tensor::ones({3, 4})), "upsample2d at shape_ops_test.cc:", "[3, 4]");
  EXPECT_INVALID(upsample2d(Tensor::ones({1, 2, 2, 1}), {0, 2, Interpolation::kNearest}),
                 "upsample2d", "[1, 2, 2, 1]", "0 x 2");
  EXPECT_INVALID(upsample2d_grad(Tensor::ones({1, 5, 4, 1}), {1, 2, 2, 1}, {}),
                 "upsample2d_grad at shape_ops_test.cc:", "[1, 2, 2, 1]", "[1, 5, 4, 1]");
}

TEST(CumulativeSum, ExclusiveAndReverseOptionsMatchTensorFlow) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64}) {
    const Tensor x = tensor_of({3}, {1, 2, 4}, dtype);
    expect_tensor(cumulative_sum(x), {3}, {1, 3, 7});
    expect_tensor(cumulative_sum(x, {0, true, false}), {3}, {0, 1, 3});
    expect_tensor(cumulative_sum(x, {0, false, true}), {3}, {7, 6, 4});
    expect_tensor(cumulative_sum(x, {0, true, true}), {3}, {6, 4, 0});
    const Tensor cube = tensor_of({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}, dtype);
    expect_tensor(cumulative_sum(cube, {1, false, false}), {2, 2, 2}, {1, 2, 4, 6, 5, 6, 12, 14});
    EXPECT_EQ(cumulative_sum(Tensor::zeros({0, 3}, dtype)).shape(), (Shape{0, 3}));
  }
  EXPECT_INVALID(cumulative_sum(Tensor::ones({2, 3}), {2, false, false}),
                 "cumulative_sum at shape_ops_test.cc:", "axis 2", "[2, 3]");
  EXPECT_INVALID(cumulative_sum(Tensor::ones({2}, DType::kBool)), "cumulative_sum", "bool");
}

TEST(TopK, ReturnsLargestFirstAndBreaksTiesByIndex) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kUInt8}) {
    const TopKResult result = top_k(tensor_of({2, 4}, {3, 9, 1, 9, 5, 5, 5, 2}, dtype), 3);
    expect_tensor(result.values, {2, 3}, {9, 9, 3, 5, 5, 5});
    expect_tensor(result.indices, {2, 3}, {1, 3, 0, 0, 1, 2});
    EXPECT_EQ(result.indices.dtype(), DType::kInt64);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TopKResult with_nan = top_k(Tensor::from<float>({3}, {1.0f, nan, 5.0f}), 2);
  expect_tensor(with_nan.indices, {2}, {1, 2});
  EXPECT_EQ(top_k(Tensor::zeros({0, 4}), 2).values.shape(), (Shape{0, 2}));
  EXPECT_INVALID(top_k(Tensor::ones({2, 3}), 4), "top_k at shape_ops_test.cc:", "[2, 3]", "k 4");
}

TEST(ArrayManipulation, ReverseFlipsAxes) {
  for (DType dtype : kAllDTypes) {
    const Tensor x = tensor_of({2, 3}, {1, 0, 0, 1, 1, 0}, dtype);
    expect_tensor(reverse(x, {1}), {2, 3}, {0, 0, 1, 0, 1, 1});
    expect_tensor(reverse(x, {0}), {2, 3}, {1, 1, 0, 1, 0, 0});
    expect_tensor(reverse(x, {0, -1}), {2, 3}, {0, 1, 1, 0, 0, 1});
    EXPECT_EQ(reverse(Tensor::zeros({0, 3}, dtype), {0}).shape(), (Shape{0, 3}));
  }
  EXPECT_INVALID(reverse(Tensor::ones({2, 3}), {2}), "reverse at shape_ops_test.cc:", "axis 2",
                 "[2, 3]");
  EXPECT_INVALID(reverse(Tensor::ones({2, 3}), {1, -1}), "reverse", "distinct axes", "[2, 3]");
}

TEST(ArrayManipulation, TileAndRepeatDuplicateElements) {
  const Tensor x = tensor_of({2, 2}, {1, 2, 3, 4}, DType::kInt32);
  expect_tensor(tile(x, {2, 1}), {4, 2}, {1, 2, 3, 4, 1, 2, 3, 4});
  expect_tensor(tile(x, {1, 2}), {2, 4}, {1, 2, 1, 2, 3, 4, 3, 4});
  expect_tensor(tile(x, {0, 2}), {0, 4}, {});
  expect_tensor(repeat(x, 2, 1), {2, 4}, {1, 1, 2, 2, 3, 3, 4, 4});
  expect_tensor(repeat(x, 2, 0), {4, 2}, {1, 2, 1, 2, 3, 4, 3, 4});
  EXPECT_EQ(repeat(Tensor::zeros({0, 3}), 2, 1).shape(), (Shape{0, 6}));
  EXPECT_INVALID(tile(x, {3}), "tile at shape_ops_test.cc:", "2 multiples", "[2, 2]", "[3]");
  EXPECT_INVALID(repeat(x, -1, 0), "repeat at shape_ops_test.cc:", "[2, 2]", "-1");
}

TEST(ArrayManipulation, StackAndUnstackAlongAxis) {
  const Tensor a = tensor_of({2}, {1, 2}, DType::kFloat32),
               b = tensor_of({2}, {3, 4}, DType::kFloat32);
  const Tensor values[] = {a, b};
  const Tensor columns = stack(values, 1);
  expect_tensor(columns, {2, 2}, {1, 3, 2, 4});
  expect_tensor(stack(values, 0), {2, 2}, {1, 2, 3, 4});
  expect_tensor(stack(values, -1), {2, 2}, {1, 3, 2, 4});
  expect_tensor(stack({a, b}, 1), {2, 2}, {1, 3, 2, 4});
  expect_tensor(stack({Tensor(1.0f), Tensor(2.0f)}), {2}, {1, 2});
  EXPECT_INVALID(stack({a}, 2), "stack at shape_ops_test.cc:", "axis 2", "[2]");
  const std::vector<Tensor> parts = unstack(columns, 1);
  ASSERT_EQ(parts.size(), 2u);
  expect_tensor(parts[1], {2}, {3, 4});
  EXPECT_EQ(unstack(Tensor::zeros({0, 3}), 1)[2].shape(), (Shape{0}));
  const Tensor unequal[] = {a, Tensor::ones({3})};
  EXPECT_INVALID(stack(unequal, 1), "stack at shape_ops_test.cc:", "[2]", "[3]");
  EXPECT_INVALID(unstack(columns, 2), "unstack at shape_ops_test.cc:", "axis 2", "[2, 2]");
}

TEST(ArrayManipulation, GathersAlongAxis) {
  const Tensor x = tensor_of({2, 3}, {1, 2, 3, 4, 5, 6}, DType::kFloat64);
  const Tensor indices = Tensor::from<std::int64_t>({2}, {2, 0});
  expect_tensor(gather(x, indices, 1), {2, 2}, {3, 1, 6, 4});
  const Tensor grid = Tensor::from<std::int32_t>({1, 2}, {1, 1});
  expect_tensor(gather(x, grid, -1), {2, 1, 2}, {2, 2, 5, 5});
  expect_tensor(gather(x, Tensor::from<std::int64_t>({}, {1}), 1), {2}, {2, 5});
  EXPECT_EQ(gather(Tensor::zeros({0, 3}), indices, 1).shape(), (Shape{0, 2}));
  EXPECT_INVALID(gather(x, Tensor::from<std::int64_t>({1}, {3}), 1),
                 "gather at shape_ops_test.cc:", "0 .. 2", "got 3");
  EXPECT_INVALID(gather(x, indices, 2), "gather at shape_ops_test.cc:", "axis 2", "[2, 3]");
}

}  // namespace tutti::testing::shape_ops_test
