// Tests elementwise operations and reductions against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "tensor/cpu/float_functions.h"
#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/activation_ops.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::elementwise_test {
using testing::expect_error;
using testing::expect_same_bits;
using testing::expect_tensor;
using testing::random_values;
using testing::tensor_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

double tolerance(DType dtype) {
  if (dtype == DType::kBFloat16) return 0x1p-8;  // half a unit in the last place, relative
  if (dtype == DType::kFloat16) return 0x1p-11;
  return dtype == DType::kFloat64 ? 1e-13 : 2e-6;
}
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

/// Returns element `index` of x broadcast to `shape`, computed coordinate by coordinate.
double broadcast_element(const Tensor& x, const Shape& shape, std::int64_t index) {
  std::vector<std::int64_t> coordinates(static_cast<std::size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    coordinates[static_cast<std::size_t>(axis)] = index % shape.dim(axis);
    index /= shape.dim(axis);
  }
  std::int64_t offset = 0;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const auto at = static_cast<std::size_t>(shape.rank() - x.rank() + axis);
    offset = offset * x.shape().dim(axis) + (x.shape().dim(axis) == 1 ? 0 : coordinates[at]);
  }
  return x.to_doubles()[static_cast<std::size_t>(offset)];
}

struct UnaryCase {
  const char* name;
  Tensor (*op)(const Operand&);
  double (*expected)(double);
  double low, high;
  int roundings = 1;  // number of roundings; a composite operation has one for each part
};

const UnaryCase kUnaryCases[] = {
    {"negate", negate, [](double x) { return -x; }, -3, 3},
    {"exp", tutti::exp, [](double x) { return std::exp(x); }, -5, 5},
    {"log", tutti::log, [](double x) { return std::log(x); }, 0.01, 9},
    {"sqrt", tutti::sqrt, [](double x) { return std::sqrt(x); }, 0, 9},
    {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.1, 9},
    {"square", square, [](double x) { return x * x; }, -3, 3},
    {"abs", tutti::abs, [](double x) { return std::fabs(x); }, -3, 3},
    {"sign", sign, [](double x) { return x > 0   ? 1.0
                                         : x < 0 ? -1.0
                                                 : 0.0; }, -3, 3},
    {"reciprocal", reciprocal, [](double x) { return 1 / x; }, 0.2, 3},
    {"floor", tutti::floor, [](double x) { return std::floor(x); }, -3, 3},
    {"relu", relu, [](double x) { return x > 0 ? x : 0.0; }, -3, 3},
    {"sigmoid", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -9, 9},
    {"tanh", tutti::tanh, [](double x) { return std::tanh(x); }, -3, 3},
    {"softplus", softplus, [](double x) { return std::log(1 + std::exp(x)); }, -9, 9},
    {"elu", elu, [](double x) { return x > 0 ? x : std::exp(x) - 1; }, -3, 3},
    {"gelu", gelu, [](double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }, -4, 4},
    {"gelu_tanh", gelu_tanh,
     [](double x) {
       return 0.5 * x *
              (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
     },
     -4, 4},
    {"silu", silu, [](double x) { return x / (1 + std::exp(-x)); }, -7, 8, 4},
    {"selu", selu,
     [](double x) { return 1.05070098735548 * (x > 0 ? x : 1.67326324235438 * (std::exp(x) - 1)); },
     -7, 8, 4},
    {"relu6", relu6, [](double x) { return std::min(std::max(x, 0.0), 6.0); }, -7, 8},
    {"hard_sigmoid", hard_sigmoid,
     [](double x) { return std::min(std::max(x / 6 + 0.5, 0.0), 1.0); }, -7, 8},
    {"hard_silu", hard_silu, [](double x) { return x * std::min(std::max(x / 6 + 0.5, 0.0), 1.0); },
     -7, 8, 4},
    {"softsign", softsign, [](double x) { return x / (1 + std::fabs(x)); }, -7, 8, 4},
    {"erf", tutti::erf, [](double x) { return std::erf(x); }, -3, 3},
    {"expm1", tutti::expm1, [](double x) { return std::expm1(x); }, -7, 3},
    {"sin", tutti::sin, [](double x) { return std::sin(x); }, -7, 8},
    {"cos", tutti::cos, [](double x) { return std::cos(x); }, -7, 8},
    {"ceil", tutti::ceil, [](double x) { return std::ceil(x); }, -7, 8},
    {"round", tutti::round, [](double x) { return std::nearbyint(x); }, -7, 8},
};

TEST(Elementwise, UnaryOperationsMatchTheirFormulas) {
  for (const UnaryCase& c : kUnaryCases) {
    for (DType dtype : kFloats) {
      for (const Shape& shape : {Shape{}, Shape{37}, Shape{3, 5, 7}, Shape{0, 4}}) {
        SCOPED_TRACE(concat(c.name, " ", dtype, " ", shape));
        const Tensor x = random_values(shape, dtype, c.low, c.high);
        std::vector<double> expected = x.to_doubles();
        for (double& value : expected) value = c.expected(value);
        const Tensor y = c.op(x);
        EXPECT_EQ(y.dtype(), dtype);
        expect_tensor(y, shape, expected, c.roundings * tolerance(dtype));
      }
    }
  }
}

TEST(Elementwise, SlopesSmallNumbersAndTies) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    expect_tensor(leaky_relu(tensor_of({2}, {-2, 3}, dtype)), {2}, {-0.4, 3}, 1e-6);
    expect_tensor(log1p(tensor_of({2}, {1e-10, 1}, dtype)), {2}, {1e-10, std::log(2)}, 1e-7);
    expect_tensor(round(tensor_of({4}, {0.5, 1.5, -2.5, 2.6}, dtype)), {4}, {0, 2, -2, 3});
  }
  EXPECT_INVALID(silu(Tensor::ones({2}, DType::kInt32)), "silu at elementwise_test.cc:", "int32",
                 "[2]");
}

TEST(Elementwise, ExtremeValuesFollowIeee) {
  const std::vector<double> values = {kInf, -kInf, kNan, 0.0, 100.0, -100.0};
  for (DType dtype : kFloats) {
    const Tensor x = tensor_of({6}, values, dtype);
    expect_tensor(sigmoid(x), {6}, {1, 0, kNan, 0.5, 1, 0}, 1e-30);
    expect_tensor(relu(x), {6}, {kInf, 0, kNan, 0, 100, 0});
    expect_tensor(tutti::tanh(x), {6}, {1, -1, kNan, 0, 1, -1});
    expect_tensor(softplus(x), {6}, {kInf, 0, kNan, std::log(2.0), 100, 0},
                  std::max(1e-6, tolerance(dtype)));
    expect_tensor(elu(x), {6}, {kInf, -1, kNan, 0, 100, -1});
    expect_tensor(sign(x), {6}, {1, -1, kNan, 0, 1, -1});
    expect_tensor(tutti::sqrt(x), {6}, {kInf, kNan, kNan, 0, 10, kNan});
    expect_tensor(clip(x, -1, 1), {6}, {1, -1, kNan, 0, 1, -1});
    expect_tensor(maximum(x, 1.0), {6}, {kInf, 1, kNan, 1, 100, 1});
    expect_tensor(minimum(1.0, x), {6}, {1, -kInf, kNan, 0, 1, -100});
  }
}

/// Returns the distance of `value` from `expected` in units in the last place of the float next to
/// `expected`.
double units_apart(float value, double expected) {
  const float nearest = static_cast<float>(expected);
  if (value == nearest) return 0.0;
  const int exponent = std::max(std::ilogb(nearest == 0.0f ? 0x1p-149f : nearest), -126);
  return std::fabs(value - expected) / std::ldexp(1.0, exponent - 23);
}

TEST(Elementwise, ExponentialsOfFloatsAreWithinTwoUnitsInTheLastPlace) {
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 9973) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) continue;
    if (x < 88.72f) {
      ASSERT_LT(units_apart(internal::vector_exp(x), std::exp(double{x})), 2.0) << x;
    }
    ASSERT_LT(units_apart(internal::vector_tanh(x), std::tanh(double{x})), 2.0) << x;
  }
  EXPECT_EQ(internal::vector_exp(std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(internal::vector_exp(88.73f), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(internal::vector_tanh(-0.0f)));
}

TEST(Elementwise, IntegersWrapAround) {
  const Tensor x = Tensor::from<std::int32_t>({2}, {2147483647, -2147483648});
  expect_tensor(x + 1, {2}, {-2147483648.0, -2147483647.0});
  expect_tensor(negate(x), {2}, {-2147483647.0, -2147483648.0});
  expect_tensor(tutti::abs(x), {2}, {2147483647.0, -2147483648.0});
  expect_tensor(Tensor::from<std::uint8_t>({1}, {200}) + 100, {1}, {44});
  expect_tensor(Tensor::from<std::uint8_t>({1}, {3}) - 5, {1}, {254});
  expect_tensor(square(Tensor::from<std::int64_t>({1}, {3000000000})), {1}, {9e18});
}

struct BinaryCase {
  const char* name;
  Tensor (*op)(const Operand&, const Operand&);
  double (*expected)(double, double);
  bool floating_only;
};

const BinaryCase kBinaryCases[] = {
    {"add", add, [](double a, double b) { return a + b; }, false},
    {"subtract", subtract, [](double a, double b) { return a - b; }, false},
    {"multiply", multiply, [](double a, double b) { return a * b; }, false},
    {"divide", divide, [](double a, double b) { return a / b; }, true},
    {"maximum", maximum, [](double a, double b) { return a > b ? a : b; }, false},
    {"minimum", minimum, [](double a, double b) { return a < b ? a : b; }, false},
    {"pow", tutti::pow, [](double a, double b) { return std::pow(a, b); }, false},
    {"floor_divide", floor_divide,
     [](double a, double b) { return b == 0 ? 0.0 : std::floor(a / b); }, false},
    {"floor_mod", floor_mod,
     [](double a, double b) { return b == 0 ? 0.0 : a - b * std::floor(a / b); }, false},
    {"add_relu", add_relu, [](double a, double b) { return std::max(a + b, 0.0); }, false},
    {"equal", equal, [](double a, double b) { return double(a == b); }, false},
    {"not_equal", not_equal, [](double a, double b) { return double(a != b); }, false},
    {"less", less, [](double a, double b) { return double(a < b); }, false},
    {"less_equal", less_equal, [](double a, double b) { return double(a <= b); }, false},
    {"greater", greater, [](double a, double b) { return double(a > b); }, false},
    {"greater_equal", greater_equal, [](double a, double b) { return double(a >= b); }, false},
};

const std::pair<Shape, Shape> kBroadcasts[] = {
    {{5, 7}, {5, 7}},    {{5, 7}, {}},           {{}, {5, 7}},       {{5, 7}, {7}},
    {{7}, {5, 7}},       {{5, 7}, {5, 1}},       {{1, 7}, {5, 1}},   {{2, 3, 4}, {3, 1}},
    {{2, 1, 4}, {3, 1}}, {{2, 1, 4}, {1, 3, 4}}, {{1}, {1, 1}},      {{0, 3}, {3}},
    {{0, 3}, {0, 3}},    {{4, 0}, {4, 1}},       {{1, 40}, {1, 40}}, {{}, {}}};

TEST(Elementwise, BinaryOperationsBroadcastLikeNumpy) {
  for (const BinaryCase& c : kBinaryCases) {
    for (DType dtype : kAllDTypes) {
      if (dtype == DType::kBool || (c.floating_only && !is_floating(dtype))) continue;
      for (const auto& [a_shape, b_shape] : kBroadcasts) {
        SCOPED_TRACE(concat(c.name, " ", dtype, " ", a_shape, " ", b_shape));
        const Tensor a = random_values(a_shape, dtype, 1, 5, 1);
        const Tensor b = random_values(b_shape, dtype, 0, 5, 2);
        const Tensor y = c.op(a, b);
        const Shape shape = broadcast(a_shape, b_shape, "test");
        std::vector<double> expected(static_cast<std::size_t>(shape.num_elements()));
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const auto index = static_cast<std::int64_t>(i);
          expected[i] =
              c.expected(broadcast_element(a, shape, index), broadcast_element(b, shape, index));
          // Integers wrap around: 3 - 5, and 4^4 in 8 bits.
          if (dtype == DType::kUInt8) expected[i] = std::fmod(expected[i] + 256.0, 256.0);
        }
        expect_tensor(y, shape, expected, tolerance(dtype));
      }
    }
  }
}

TEST(Elementwise, AddReluHasTheBitsOfTheTwoOperations) {
  const std::vector<double> special{kNan,  kInf,  -kInf, 0.0,    -0.0,     1e-7,
                                    -1e-7, 6e-40, 1.0,   -65504, 1 + 1e-3, -1.0};
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    SCOPED_TRACE(concat(dtype));
    const Tensor a = random_values({33, 19}, dtype, -100, 100, 1);
    const Tensor b = random_values({33, 19}, dtype, -100, 100, 2);
    testing::expect_same_bits(add_relu(a, b), relu(a + b));
    if (!is_floating(dtype)) continue;
    const Tensor row = tensor_of({1, 12}, special, dtype),
                 column = tensor_of({12, 1}, special, dtype);
    const Tensor fused = add_relu(row, column), apart = relu(row + column);
    // Which NaN results is unspecified.
    testing::expect_same_bits(cast(equal(fused, fused), dtype), cast(equal(apart, apart), dtype));
    testing::expect_same_bits(where(equal(fused, fused), fused, 0.0),
                              where(equal(apart, apart), apart, 0.0));
  }
}

TEST(Elementwise, LogicWorksOnBools) {
  const Tensor a = Tensor::from<bool>({4}, {false, false, true, true});
  const Tensor b = Tensor::from<bool>({4}, {false, true, false, true});
  expect_tensor(logical_and(a, b), {4}, {0, 0, 0, 1});
  expect_tensor(logical_or(a, b), {4}, {0, 1, 1, 1});
  expect_tensor(logical_not(a), {4}, {1, 1, 0, 0});
  expect_tensor(equal(a, b), {4}, {1, 0, 0, 1});
  expect_tensor(not_equal(a, b), {4}, {0, 1, 1, 0});
  EXPECT_EQ(logical_and(a, b).dtype(), DType::kBool);
}

TEST(Elementwise, PlainNumbersTakeTheOtherOperandsType) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt64, DType::kUInt8}) {
    const Tensor x = tensor_of({2}, {3, 4}, dtype);
    EXPECT_EQ((x + 1).dtype(), dtype);
    expect_tensor(x + 1, {2}, {4, 5});
    expect_tensor(10 - x, {2}, {7, 6});
    expect_tensor(less(x, 4), {2}, {1, 0});
  }
  const Tensor x = Tensor::zeros({1}, DType::kFloat64);
  EXPECT_EQ((x + 0.1).item_double(), 0.1);  // no intermediate rounding to float
  expect_error(ErrorCode::kInvalidArgument,
               {concat("add at elementwise_test.cc:", __LINE__ + 1), "int32", "0.5"},
               [&] { Tensor::zeros({1}, DType::kInt32) + 0.5; });
}

TEST(Elementwise, WhereTakesNumbersAndEmptyTensors) {
  const Tensor condition = Tensor::from<bool>({2}, {true, false});
  expect_tensor(where(condition, tensor_of({2}, {5, 6}, DType::kInt64), 0), {2}, {5, 0});
  expect_tensor(where(condition, 1.0, 2.0), {2}, {1, 2});
  expect_tensor(where(Tensor::zeros({0, 2}, DType::kBool), Tensor::zeros({2}), 1.0), {0, 2}, {});
}

TEST(Elementwise, CastConvertsBetweenAllTypes) {
  const std::vector<double> values = {0, 1, 2, 200};
  for (DType from : kAllDTypes) {
    for (DType to : kAllDTypes) {
      SCOPED_TRACE(concat(from, " to ", to));
      const Tensor x = tensor_of({4}, values, from);
      std::vector<double> expected = x.to_doubles();
      if (to == DType::kBool) expected = {0, 1, 1, 1};
      const Tensor y = cast(x, to);
      EXPECT_EQ(y.dtype(), to);
      expect_tensor(y, {4}, expected);
      expect_tensor(cast(Tensor::zeros({0, 2}, from), to), {0, 2}, {});
    }
  }
}

TEST(Elementwise, CastTruncatesTowardsZeroAndSaturatesAndClipKeepsTheType) {
  const Tensor x = tensor_of({7}, {1.9, -1.9, 1e30, -1e30, kNan, kInf, 0.5}, DType::kFloat32);
  expect_tensor(cast(x, DType::kInt32), {7}, {1, -1, 2147483647, -2147483648.0, 0, 2147483647, 0});
  expect_tensor(cast(x, DType::kUInt8), {7}, {1, 0, 255, 0, 0, 255, 0});
  expect_tensor(cast(x, DType::kBool), {7}, {1, 1, 1, 1, 1, 1, 1});
  const Tensor y = Tensor::zeros({2});
  EXPECT_EQ(cast(y, DType::kFloat32).id(), y.id());  // nothing to do
  expect_tensor(clip(tensor_of({4}, {-5, 0, 2, 9}, DType::kInt32), -1, 2.5), {4}, {-1, 0, 2, 2});
  expect_tensor(clip(tensor_of({3}, {0, 5, 255}, DType::kUInt8), -10, 1000), {3}, {0, 5, 255});
  expect_tensor(clip(tensor_of({2}, {-5, 5}, DType::kFloat64), -0.1, 0.1), {2}, {-0.1, 0.1});
  expect_tensor(clip(Tensor::zeros({0}), 0, 1), {0}, {});
  EXPECT_INVALID(clip(Tensor::zeros({1}), 1, 0), "clip at elementwise_test.cc", "low <= high");
}

TEST(Elementwise, WrongShapesNameOperationShapesAndLine) {
  const Tensor a = Tensor::zeros({2, 3});
  const Tensor b = Tensor::zeros({4});
  for (const BinaryCase& c : kBinaryCases) {
    EXPECT_INVALID(c.op(a, b), c.name, "[2, 3]", "[4]", "elementwise_test.cc:");
  }
  expect_error(ErrorCode::kInvalidArgument,
               {concat("add at elementwise_test.cc:", __LINE__ + 1, ": shapes do not broadcast")},
               [&] { a + b; });
  EXPECT_INVALID(where(Tensor::zeros({4}, DType::kBool), a, 1.0), "where at elementwise_test.cc",
                 "[2, 3]", "[4]");
  EXPECT_INVALID(relu_grad(a, b), "relu_grad at elementwise_test.cc", "[2, 3]", "[4]");
}

TEST(Elementwise, WrongTypesNameOperationTypesAndLine) {
  const Tensor x = Tensor::zeros({2});
  const Tensor n = Tensor::zeros({2}, DType::kInt32);
  const Tensor b = Tensor::zeros({2}, DType::kBool);
  expect_error(ErrorCode::kInvalidArgument,
               {concat("add at elementwise_test.cc:", __LINE__ + 1), "float32", "int32", "cast()"},
               [&] { x + n; });
  EXPECT_INVALID(n / n, "divide at", "int32", "cast()");
  EXPECT_INVALID(b + b, "add at", "bool");
  EXPECT_INVALID(add_relu(b, b), "add_relu at", "bool");
  EXPECT_INVALID(add_relu(x, n), "add_relu at", "float32", "int32");
  EXPECT_INVALID(tutti::exp(n), "exp at", "int32");
  EXPECT_INVALID(logical_and(x, x), "logical_and at", "bool", "float32");
  EXPECT_INVALID(where(x, x, x), "where at", "bool", "float32");
  EXPECT_ERROR(x + Tensor(), kFailedPrecondition, "add at elementwise_test.cc", "undefined");
  EXPECT_ERROR(relu(Tensor()), kFailedPrecondition, "relu at elementwise_test.cc", "undefined");
}

TEST(Elementwise, BitwiseNotInvertsEveryBitOfIntegers) {
  const auto check = []<class T>(const std::vector<T>& values) {
    const Tensor x = Tensor::from<T>(Shape{static_cast<std::int64_t>(values.size())}, values);
    const Tensor inverted = ~x;
    EXPECT_EQ(inverted.dtype(), x.dtype());
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(inverted.host_span<T>()[i], static_cast<T>(~values[i])) << +values[i];
  };
  using Limits32 = std::numeric_limits<std::int32_t>;
  using Limits64 = std::numeric_limits<std::int64_t>;
  check(std::vector<std::int32_t>{0, 1, -1, 12345, Limits32::min(), Limits32::max()});
  check(std::vector<std::int64_t>{0, 1, -1, (std::int64_t{1} << 53) + 1, Limits64::min(),
                                  Limits64::max()});
  check(std::vector<std::uint8_t>{0, 1, 0x5a, 255});
  const Tensor no = ~Tensor::from<bool>({2}, {true, false});
  EXPECT_EQ(no.to_doubles(), (std::vector<double>{0, 1}));
  EXPECT_INVALID((void)~Tensor::ones({2}), "bitwise_not", "float32", "cast()");
}

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

/// Reduces x over the axes in `bits`, element by element, keeping the axes with size 1.
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
    if (bits >> axis & 1u) axes.push_back(axis % 2 ? axis - rank : axis);  // both kinds of axes
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
  EXPECT_INVALID(argmax(x, 0), "argmax at elementwise_test.cc", "[0, 2]");
}

TEST(Reduction, SumsOfManyFloatsAreAccurate) {
  // A sequential sum of ten million times 0.1f would give 1087937.
  const std::int64_t count = 10'000'000;
  const Tensor x = Tensor::full({count}, 0.1);
  const double expected = static_cast<double>(0.1f) * static_cast<double>(count);
  EXPECT_NEAR(reduce_sum(x).item_double(), expected, expected * 1e-6);
  EXPECT_NEAR(reduce_mean(x).item_double(), 0.1, 1e-7);
  const Tensor columns = reduce_sum(reshape(x, {count / 10, 10}), {{0}, false});
  for (double sum : columns.to_doubles()) EXPECT_NEAR(sum, expected / 10, expected * 1e-7);
}

TEST(Reduction, OrderOfAdditionsDependsOnTheLengthAlone) {
  // A sequence as a row, as a column and inside a larger tensor gives equal bits.
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

TEST(Reduction, KeepsTheTypeOfIntegersFindsNanAndAnyAndAll) {
  EXPECT_EQ(reduce_sum(Tensor::full({300}, 1, DType::kUInt8)).item_int(), 300 - 256);
  EXPECT_EQ(reduce_sum(Tensor::full({3}, 2e9, DType::kInt64)).item_int(), 6'000'000'000);
  EXPECT_EQ(reduce_sum(Tensor::full({3}, 7, DType::kInt32)).dtype(), DType::kInt32);
  const Tensor x = tensor_of({2, 2}, {1, std::nan(""), 3, 4}, DType::kFloat32);
  expect_tensor(reduce_max(x, {{1}, false}), {2}, {std::nan(""), 4});
  expect_tensor(reduce_min(x, {{0}, false}), {2}, {1, std::nan("")});
  const Tensor flags = Tensor::from<bool>({3, 2}, {true, true, true, false, false, false});
  expect_tensor(reduce_any(flags, {{1}, false}), {3}, {1, 1, 0});
  expect_tensor(reduce_all(flags, {{1}, false}), {3}, {1, 0, 0});
  expect_tensor(reduce_all(flags), {}, {0});
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
  EXPECT_INVALID(sum_to_shape(x, {2}), "sum_to_shape at elementwise_test.cc", "[2, 2, 3]", "[2]");
}

TEST(Reduction, WrongAxesAndTypesNameOperationAndLine) {
  const Tensor x = Tensor::zeros({2, 3});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("reduce_sum at elementwise_test.cc:", __LINE__ + 2), "axis 2", "[2, 3]"},
               [&] {
                 reduce_sum(x, {{2}, false});
               });
  EXPECT_INVALID(reduce_max(x, {{1, -1}, false}), "reduce_max at", "stands twice");
  EXPECT_INVALID(argmax(x, -3), "argmax at", "axis -3");
  EXPECT_INVALID(reduce_mean(Tensor::zeros({2}, DType::kInt32)), "reduce_mean at", "int32",
                 "cast()");
  EXPECT_INVALID(reduce_sum(Tensor::zeros({2}, DType::kBool)), "reduce_sum at", "bool");
  EXPECT_INVALID(reduce_any(x), "reduce_any at", "bool", "float32");
}

}  // namespace tutti::elementwise_test
