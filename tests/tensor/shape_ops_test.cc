// Operations that move elements, against plain loops over coordinates.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/shape_ops.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"

namespace tutti {
namespace shape_ops_test {

using testing::expect_error;
using testing::expect_tensor;
using testing::tensor_of;
using Index = std::vector<std::int64_t>;

/// 0, 1, 2, ...
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

/// The elements of a tensor of `shape`, each computed from its coordinates.
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

TEST(Reshape, RefusesOtherSizes) {
  const Tensor x = counting({2, 6});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("reshape at shape_ops_test.cc:", __LINE__ + 1), "[2, 6]", "[5, 2]"}, [&] {
                 reshape(x, {5, 2});
               });
  expect_error(ErrorCode::kInvalidArgument, {"reshape at", "[5, -1]"}, [&] {
    reshape(x, {5, -1});
  });
  expect_error(ErrorCode::kInvalidArgument, {"at most one -1"}, [&] { reshape(x, {-1, -1}); });
  expect_error(ErrorCode::kInvalidArgument, {"reshape at"}, [] {
    reshape(Tensor::zeros({0, 2}), {0, -1});
  });
}

TEST(Reshape, FlattensExpandsAndSqueezes) {
  EXPECT_EQ(flatten_rows(Tensor::zeros({4, 2, 3})).shape(), (Shape{4, 6}));
  EXPECT_EQ(flatten_rows(Tensor::zeros({0, 2, 3})).shape(), (Shape{0, 6}));
  EXPECT_EQ(flatten_rows(Tensor::zeros({4})).shape(), (Shape{4, 1}));
  const Tensor x = counting({2, 3});
  EXPECT_EQ(expand_dims(x, 0).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(expand_dims(x, -1).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(squeeze(Tensor::zeros({2, 1, 3}), 1).shape(), (Shape{2, 3}));
  expect_error(ErrorCode::kInvalidArgument, {"flatten_rows at shape_ops_test.cc"},
               [] { flatten_rows(Tensor(1.0f)); });
  expect_error(ErrorCode::kInvalidArgument, {"squeeze at shape_ops_test.cc", "[2, 3]"},
               [&] { squeeze(x, 0); });
  expect_error(ErrorCode::kInvalidArgument, {"expand_dims at", "axis 4"},
               [&] { expand_dims(x, 4); });
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
  expect_error(ErrorCode::kInvalidArgument, {"transpose at shape_ops_test.cc", "[0, 0]", "[2, 3]"},
               [] {
                 transpose(counting({2, 3}), {0, 0});
               });
}

TEST(Slice, TakesParts) {
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

TEST(Slice, RefusesPartsOutside) {
  const Tensor x = counting({4, 5});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("slice at shape_ops_test.cc:", __LINE__ + 2), "[4, 5]", "[3, 0]", "[2, 5]"},
               [&] {
                 slice(x, {3, 0}, {2, 5});
               });
  expect_error(ErrorCode::kInvalidArgument, {"slice at"}, [&] { slice(x, {-1, 0}, {1, 5}); });
  expect_error(ErrorCode::kInvalidArgument, {"slice at"}, [&] { slice(x, {5, 0}, {-1, 5}); });
  expect_error(ErrorCode::kInvalidArgument, {"expected 2 values of begin"}, [&] {
    slice(x, {0}, {1, 1});
  });
}

TEST(Concat, JoinsAlongAnyAxisAndEmptyParts) {
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

TEST(Concat, RefusesPartsThatDoNotFit) {
  const Tensor a = Tensor::zeros({2, 2});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("concat at shape_ops_test.cc:", __LINE__ + 1), "[2, 2]", "[3, 2]"}, [&] {
                 concat({a, Tensor::zeros({3, 2})}, 1);
               });
  expect_error(ErrorCode::kInvalidArgument, {"concat at", "float32", "int32"}, [&] {
    concat({a, Tensor::zeros({2, 2}, DType::kInt32)}, 0);
  });
  expect_error(ErrorCode::kInvalidArgument, {"concat at", "at least one"},
               [] { concat(std::span<const Tensor>(), 0); });
  expect_error(ErrorCode::kInvalidArgument, {"concat at", "axis 2"}, [&] { concat({a, a}, 2); });
  expect_error(ErrorCode::kFailedPrecondition, {"concat at", "undefined"}, [&] {
    concat({a, Tensor()}, 0);
  });
}

TEST(Stack, AddsAnAxis) {
  const std::vector<Tensor> values = {counting({2}), counting({2})};
  expect_tensor(stack(values), {2, 2}, {0, 1, 0, 1});
  expect_tensor(stack({Tensor(1.0f), Tensor(2.0f)}), {2}, {1, 2});
  expect_error(ErrorCode::kInvalidArgument, {"stack at shape_ops_test.cc", "[2]", "[3]"}, [] {
    stack(std::vector<Tensor>{counting({2}), counting({3})});
  });
}

TEST(Split, SplitsEquallyOrNamesTheSizes) {
  const std::vector<Tensor> halves = split(counting({10}), 2);
  ASSERT_EQ(halves.size(), 2u);
  expect_tensor(halves[0], {5}, {0, 1, 2, 3, 4});
  expect_tensor(halves[1], {5}, {5, 6, 7, 8, 9});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("split at shape_ops_test.cc:", __LINE__ + 1), "[10]", "10", "3"},
               [] { split(counting({10}), 3); });
  expect_error(ErrorCode::kInvalidArgument, {"split at"}, [] { split(counting({10}), 0); });
}

TEST(Split, TakesSizesAndAxes) {
  const std::vector<Tensor> parts = split(counting({2, 4}), std::vector<std::int64_t>{1, 0, 3}, 1);
  ASSERT_EQ(parts.size(), 3u);
  expect_tensor(parts[0], {2, 1}, {0, 4});
  expect_tensor(parts[1], {2, 0}, {});
  expect_tensor(parts[2], {2, 3}, {1, 2, 3, 5, 6, 7});
  EXPECT_EQ(split(Tensor::zeros({0, 3}), 2)[1].shape(), (Shape{0, 3}));
  expect_error(ErrorCode::kInvalidArgument, {"split at", "[3, 2]", "sum 5", "[4]"}, [] {
    split(counting({4}), std::vector<std::int64_t>{3, 2});
  });
  expect_error(ErrorCode::kInvalidArgument, {"split at", "[5, -1]"}, [] {
    split(counting({4}), std::vector<std::int64_t>{5, -1});
  });
}

TEST(Pad, SurroundsWithAValue) {
  expect_tensor(pad(counting({2, 2}), {1, 0}, {0, 2}, 9), {3, 4},
                {9, 9, 9, 9, 0, 1, 9, 9, 2, 3, 9, 9});
  expect_tensor(pad(counting({3}, DType::kInt32), {0}, {1}), {4}, {0, 1, 2, 0});
  expect_tensor(pad(Tensor::zeros({0, 2}), {1, 0}, {1, 0}, 5), {2, 2}, {5, 5, 5, 5});
  expect_tensor(pad(Tensor::zeros({0}), {0}, {0}), {0}, {});
  expect_error(ErrorCode::kInvalidArgument, {"pad at shape_ops_test.cc", "[-1]"},
               [] { pad(counting({3}), {-1}, {0}); });
  expect_error(ErrorCode::kInvalidArgument, {"pad at", "uint8"},
               [] { pad(counting({3}, DType::kUInt8), {1}, {0}, 0.5); });
}

TEST(BroadcastTo, RepeatsElements) {
  expect_tensor(broadcast_to(counting({3}), {2, 3}), {2, 3}, {0, 1, 2, 0, 1, 2});
  expect_tensor(broadcast_to(counting({2, 1}), {2, 3}), {2, 3}, {0, 0, 0, 1, 1, 1});
  expect_tensor(broadcast_to(Tensor(7.0f), {2, 2}), {2, 2}, {7, 7, 7, 7});
  expect_tensor(broadcast_to(counting({1, 2, 1}, DType::kBool), {2, 2, 2}), {2, 2, 2},
                {0, 0, 1, 1, 0, 0, 1, 1});
  expect_tensor(broadcast_to(counting({1, 3}), {0, 3}), {0, 3}, {});
  expect_error(ErrorCode::kInvalidArgument, {"broadcast_to at shape_ops_test.cc", "[3]", "[2, 2]"},
               [] {
                 broadcast_to(counting({3}), {2, 2});
               });
  expect_error(ErrorCode::kInvalidArgument, {"broadcast_to at"}, [] {
    broadcast_to(counting({2, 3}), {3});
  });
}

TEST(OneHot, MarksIndicesInRange) {
  const Tensor indices = tensor_of({4}, {1, 0, 3, -1}, DType::kInt64);
  expect_tensor(one_hot(indices, 3), {4, 3}, {0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0});
  const Tensor marked = one_hot(tensor_of({1, 2}, {0, 1}, DType::kInt32), 2, DType::kInt64, 5, -5);
  EXPECT_EQ(marked.dtype(), DType::kInt64);
  expect_tensor(marked, {1, 2, 2}, {5, -5, -5, 5});
  expect_tensor(one_hot(Tensor::zeros({0}, DType::kInt64), 3), {0, 3}, {});
  expect_error(ErrorCode::kInvalidArgument, {"one_hot at shape_ops_test.cc", "float32"},
               [] { one_hot(Tensor::zeros({2}), 3); });
}

TEST(Gather, TakesRows) {
  const Tensor params = counting({4, 2});
  expect_tensor(gather(params, tensor_of({3}, {3, 0, 3}, DType::kInt64)), {3, 2},
                {6, 7, 0, 1, 6, 7});
  expect_tensor(gather(params, tensor_of({1, 2}, {1, 2}, DType::kInt32)), {1, 2, 2}, {2, 3, 4, 5});
  expect_tensor(gather(counting({3}), tensor_of({}, {2}, DType::kInt64)), {}, {2});
  expect_tensor(gather(params, Tensor::zeros({0}, DType::kInt64)), {0, 2}, {});
}

TEST(Gather, NamesTheIndexOutOfRangeAndItsPosition) {
  const Tensor params = counting({4, 2});
  for (double bad : {4.0, -1.0}) {
    expect_error(ErrorCode::kInvalidArgument,
                 {"gather at shape_ops_test.cc:", "0 .. 3", concat("got ", bad), "position 2"},
                 [&] {
                   gather(params, tensor_of({3}, {0, 1, bad}, DType::kInt64));
                 });
  }
  expect_error(ErrorCode::kInvalidArgument, {"gather at", "float32"},
               [&] { gather(params, Tensor::zeros({1})); });
  expect_error(ErrorCode::kInvalidArgument, {"gather at", "[rows, ...]"},
               [] { gather(Tensor(1.0f), Tensor::zeros({1}, DType::kInt64)); });
}

TEST(ScatterRows, AddsInPositionOrder) {
  const Tensor values = tensor_of({3, 2}, {1, 2, 10, 20, 100, 200}, DType::kFloat64);
  expect_tensor(scatter_rows(values, tensor_of({3}, {1, 1, 0}, DType::kInt64), {3, 2}), {3, 2},
                {100, 200, 11, 22, 0, 0});
  // (1 + 1e8) - 1e8 is 0 in float32, 1 + (1e8 - 1e8) would be 1.
  const Tensor order = tensor_of({3}, {1, 1e8, -1e8}, DType::kFloat32);
  expect_tensor(scatter_rows(order, Tensor::zeros({3}, DType::kInt32), {1}), {1}, {0});
  expect_tensor(scatter_rows(Tensor::zeros({0, 2}), Tensor::zeros({0}, DType::kInt64), {2, 2}),
                {2, 2}, {0, 0, 0, 0});
  expect_error(ErrorCode::kInvalidArgument, {"scatter_rows at", "0 .. 1", "got 2", "position 0"},
               [] {
                 scatter_rows(counting({1, 2}), tensor_of({1}, {2}, DType::kInt64), {2, 2});
               });
  expect_error(ErrorCode::kInvalidArgument,
               {"scatter_rows at shape_ops_test.cc", "[1, 3]", "[2, 2]"}, [] {
                 scatter_rows(counting({1, 3}), tensor_of({1}, {0}, DType::kInt64), {2, 2});
               });
}

}  // namespace shape_ops_test
}  // namespace tutti
