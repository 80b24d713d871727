// Reductions against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/reduction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace reduction_test {

using testing::expect_error;
using testing::expect_same_bits;
using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct ReductionCase {
  const char* name;
  Tensor (*op)(const Operand&, ReduceOptions);
  double (*combine)(double, double);
  double start;
};

const ReductionCase kCases[] = {
    {"reduce_sum", reduce_sum, [](double a, double b) { return a + b; }, 0},
    {"reduce_product", reduce_product, [](double a, double b) { return a * b; }, 1},
    {"reduce_max", reduce_max, [](double a, double b) { return a > b ? a : b; }, -kInf},
    {"reduce_min", reduce_min, [](double a, double b) { return a < b ? a : b; }, kInf},
};

/// The reduction of x over the axes in `bits`, element by element, with the axes kept as 1.
std::vector<double> reduce_plainly(const Tensor& x, std::uint32_t bits, const ReductionCase& c) {
  Shape kept = x.shape();
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (bits >> axis & 1u) kept = kept.with_dim(axis, 1);
  }
  std::vector<double> result(static_cast<std::size_t>(kept.num_elements()), c.start);
  const std::vector<double> elements = x.to_doubles();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), offset = 0, stride = 1;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      if (!(bits >> axis & 1u)) offset += rest % x.shape().dim(axis) * stride;
      rest /= x.shape().dim(axis);
      stride *= kept.dim(axis);
    }
    double& value = result[static_cast<std::size_t>(offset)];
    value = c.combine(value, elements[i]);
  }
  return result;
}

std::vector<int> axes_of(std::uint32_t bits, int rank) {
  std::vector<int> axes;
  for (int axis = 0; axis < rank; ++axis) {
    if (bits >> axis & 1u) axes.push_back(axis % 2 ? axis - rank : axis);  // both spellings
  }
  return axes;
}

TEST(Reduction, MatchesPlainLoopsOverEverySetOfAxes) {
  for (const ReductionCase& c : kCases) {
    for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64}) {
      for (const Shape& shape : {Shape{9}, Shape{4, 70}, Shape{2, 3, 4}, Shape{2, 3, 2, 5}}) {
        const Tensor x = random_values(shape, dtype, 1, 3);
        for (std::uint32_t bits = 1; bits < 1u << shape.rank(); ++bits) {
          if (c.op == reduce_product && shape.num_elements() > 30) continue;
          SCOPED_TRACE(concat(c.name, " ", dtype, " ", shape, " axes ", bits));
          const Tensor y = c.op(x, {axes_of(bits, shape.rank()), true});
          EXPECT_EQ(y.dtype(), dtype);
          const std::vector<double> expected = reduce_plainly(x, bits, c);
          expect_tensor(y, y.shape(), expected, dtype == DType::kFloat32 ? 1e-5 : 1e-13);
          EXPECT_EQ(y.rank(), shape.rank());
          const Tensor without = c.op(x, {axes_of(bits, shape.rank()), false});
          EXPECT_EQ(without.to_doubles(), y.to_doubles());
          EXPECT_EQ(without.rank(), shape.rank() - __builtin_popcount(bits));
        }
      }
    }
  }
}

TEST(Reduction, WithoutAxesReducesAll) {
  const Tensor x = tensor_of({2, 3}, {1, 2, 3, 4, 5, 6}, DType::kFloat32);
  expect_tensor(reduce_sum(x), {}, {21});
  expect_tensor(reduce_mean(x), {}, {3.5});
  expect_tensor(reduce_mean(x, {{0}, false}), {3}, {2.5, 3.5, 4.5});
  expect_tensor(reduce_mean(x, {{-1}, true}), {2, 1}, {2, 5});
  expect_tensor(reduce_sum(x, {{}, true}), {1, 1}, {21});
  expect_tensor(reduce_sum(Tensor(3.0f)), {}, {3});
}

TEST(Reduction, OfNothing) {
  const Tensor x = Tensor::zeros({0, 2});
  expect_tensor(reduce_sum(x, {{0}, false}), {2}, {0, 0});
  expect_tensor(reduce_product(x, {{0}, false}), {2}, {1, 1});
  expect_tensor(reduce_mean(x), {}, {std::nan("")});
  expect_tensor(reduce_max(x), {}, {-kInf});
  expect_tensor(reduce_min(x), {}, {kInf});
  expect_tensor(reduce_max(Tensor::zeros({0}, DType::kInt32)), {}, {-2147483648.0});
  expect_tensor(reduce_min(Tensor::zeros({0}, DType::kUInt8)), {}, {255});
  expect_tensor(reduce_any(Tensor::zeros({0}, DType::kBool)), {}, {0});
  expect_tensor(reduce_all(Tensor::zeros({0}, DType::kBool)), {}, {1});
  expect_tensor(reduce_sum(x, {{1}, false}), {0}, {});
  expect_tensor(argmax(x), {0}, {});
  EXPECT_INVALID(argmax(x, 0), "argmax at reduction_test.cc", "[0, 2]");
}

TEST(Reduction, SumsOfManyFloatsAreAccurate) {
  // One after the other, ten million times 0.1f would give 1087937.
  const std::int64_t count = 10'000'000;
  const Tensor x = Tensor::full({count}, 0.1);
  const double expected = static_cast<double>(0.1f) * static_cast<double>(count);
  EXPECT_NEAR(reduce_sum(x).item_double(), expected, expected * 1e-6);
  EXPECT_NEAR(reduce_mean(x).item_double(), 0.1, 1e-7);
  const Tensor columns = reduce_sum(reshape(x, {count / 10, 10}), {{0}, false});
  for (double sum : columns.to_doubles()) EXPECT_NEAR(sum, expected / 10, expected * 1e-7);
}

TEST(Reduction, OrderOfAdditionsDependsOnTheLengthAlone) {
  // The same sequence as a row, as a column and inside a larger tensor gives the same bits.
  const Tensor x = random_values({3000}, DType::kFloat32, -1, 1);
  const Tensor sum = reduce_sum(x);
  const Tensor as_column = reduce_sum(reshape(x, {3000, 1}), {{0}, false});
  expect_same_bits(reshape(as_column, Shape{}), sum);
  const Tensor table = stack(std::vector<Tensor>{x, x, x});  // [3, 3000]
  const Tensor rows = reduce_sum(table, {{1}, false});
  const Tensor columns = reduce_sum(transpose(table), {{0}, false});
  expect_same_bits(rows, columns);
  expect_same_bits(reshape(rows.detached_rows(1, 1), Shape{}), sum);
}

TEST(Reduction, IntegersAddUpInTheirOwnType) {
  EXPECT_EQ(reduce_sum(Tensor::full({300}, 1, DType::kUInt8)).item_int(), 300 - 256);
  EXPECT_EQ(reduce_sum(Tensor::full({3}, 2e9, DType::kInt64)).item_int(), 6'000'000'000);
  EXPECT_EQ(reduce_sum(Tensor::full({3}, 7, DType::kInt32)).dtype(), DType::kInt32);
}

TEST(Reduction, NanIsExtreme) {
  const Tensor x = tensor_of({2, 2}, {1, std::nan(""), 3, 4}, DType::kFloat32);
  expect_tensor(reduce_max(x, {{1}, false}), {2}, {std::nan(""), 4});
  expect_tensor(reduce_min(x, {{0}, false}), {2}, {1, std::nan("")});
}

TEST(Reduction, AnyAndAll) {
  const Tensor x = Tensor::from<bool>({3, 2}, {true, true, true, false, false, false});
  expect_tensor(reduce_any(x, {{1}, false}), {3}, {1, 1, 0});
  expect_tensor(reduce_all(x, {{1}, false}), {3}, {1, 0, 0});
  expect_tensor(reduce_all(x), {}, {0});
}

TEST(Reduction, ArgMaxTakesTheFirstOfEquals) {
  const Tensor x = tensor_of({2, 4}, {1, 7, 7, 0, 5, 5, 2, 5}, DType::kFloat32);
  const Tensor y = argmax(x);
  EXPECT_EQ(y.dtype(), DType::kInt64);
  expect_tensor(y, {2}, {1, 0});
  expect_tensor(argmax(x, 0), {4}, {1, 0, 0, 1});
  expect_tensor(argmin(x), {2}, {3, 2});
  expect_tensor(argmin(tensor_of({3}, {4, 2, 2}, DType::kInt64)), {}, {1});
}

TEST(Reduction, SumToShapeUndoesBroadcasting) {
  const Tensor x = tensor_of({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, DType::kFloat32);
  expect_tensor(sum_to_shape(x, {3}), {3}, {22, 26, 30});
  expect_tensor(sum_to_shape(x, {2, 1}), {2, 1}, {1 + 2 + 3 + 7 + 8 + 9, 4 + 5 + 6 + 10 + 11 + 12});
  expect_tensor(sum_to_shape(x, {2, 1, 1}), {2, 1, 1}, {21, 57});
  expect_tensor(sum_to_shape(x, {}), {}, {78});
  EXPECT_EQ(sum_to_shape(x, x.shape()).id(), x.id());
  expect_tensor(sum_to_shape(Tensor::zeros({0, 3}), {1, 3}), {1, 3}, {0, 0, 0});
  EXPECT_INVALID(sum_to_shape(x, {2}), "sum_to_shape at reduction_test.cc", "[2, 2, 3]", "[2]");
}

TEST(Reduction, WrongAxesAndTypesNameOperationAndLine) {
  const Tensor x = Tensor::zeros({2, 3});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("reduce_sum at reduction_test.cc:", __LINE__ + 1), "axis 2", "[2, 3]"}, [&] {
                 reduce_sum(x, {{2}, false});
               });
  EXPECT_INVALID(reduce_max(x, {{1, -1}, false}), "reduce_max at", "stands twice");
  EXPECT_INVALID(argmax(x, -3), "argmax at", "axis -3");
  EXPECT_INVALID(reduce_mean(Tensor::zeros({2}, DType::kInt32)), "reduce_mean at", "int32",
                 "cast()");
  EXPECT_INVALID(reduce_sum(Tensor::zeros({2}, DType::kBool)), "reduce_sum at", "bool");
  EXPECT_INVALID(reduce_any(x), "reduce_any at", "bool", "float32");
}

}  // namespace reduction_test
}  // namespace tutti
