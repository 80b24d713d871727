// Elementwise operations against plain loops in double.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "tensor/cpu/float_functions.h"
#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"
#include "tutti/tensor/ops/activation_ops.h"

namespace tutti {
namespace elementwise_test {

using testing::expect_error;
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

/// Element `index` of the broadcast of x to `shape`, found coordinate by coordinate.
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
  int roundings = 1;  // number of roundings; an operation made of several has one for each
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

/// Units in the last place of the float next to `expected` between it and `value`.
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
          // Integers wrap around: 3 - 5 and 4^4 of 8 bits.
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
    // Which NaN comes out is not promised.
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
  EXPECT_EQ((x + 0.1).item_double(), 0.1);  // not rounded to float on the way
  expect_error(ErrorCode::kInvalidArgument,
               {concat("add at elementwise_test.cc:", __LINE__ + 1), "int32", "0.5"},
               [] { Tensor::zeros({1}, DType::kInt32) + 0.5; });
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

TEST(Elementwise, CastTruncatesTowardsZeroAndSaturates) {
  const Tensor x = tensor_of({7}, {1.9, -1.9, 1e30, -1e30, kNan, kInf, 0.5}, DType::kFloat32);
  expect_tensor(cast(x, DType::kInt32), {7}, {1, -1, 2147483647, -2147483648.0, 0, 2147483647, 0});
  expect_tensor(cast(x, DType::kUInt8), {7}, {1, 0, 255, 0, 0, 255, 0});
  expect_tensor(cast(x, DType::kBool), {7}, {1, 1, 1, 1, 1, 1, 1});
  const Tensor y = Tensor::zeros({2});
  EXPECT_EQ(cast(y, DType::kFloat32).id(), y.id());  // nothing to do
}

TEST(Elementwise, ClipKeepsTheType) {
  expect_tensor(clip(tensor_of({4}, {-5, 0, 2, 9}, DType::kInt32), -1, 2.5), {4}, {-1, 0, 2, 2});
  expect_tensor(clip(tensor_of({3}, {0, 5, 255}, DType::kUInt8), -10, 1000), {3}, {0, 5, 255});
  expect_tensor(clip(tensor_of({2}, {-5, 5}, DType::kFloat64), -0.1, 0.1), {2}, {-0.1, 0.1});
  expect_tensor(clip(Tensor::zeros({0}), 0, 1), {0}, {});
  EXPECT_INVALID(clip(Tensor::zeros({1}), 1, 0), "clip at elementwise_test.cc", "low <= high");
}

TEST(ElementwiseGrad, MatchesDifferencesOfTheActivations) {
  struct Case {
    const char* name;
    Tensor (*activation)(const Operand&);
    Tensor (*grad)(const Operand&, const Operand&);
    bool from_result;
  };
  const Case cases[] = {
      {"relu", relu, relu_grad, true},        {"sigmoid", sigmoid, sigmoid_grad, true},
      {"tanh", tutti::tanh, tanh_grad, true}, {"elu", elu, elu_grad, true},
      {"gelu", gelu, gelu_grad, false},       {"gelu_tanh", gelu_tanh, gelu_tanh_grad, false}};
  const double step = 1e-6;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Tensor x = random_values({41}, DType::kFloat64, -3, 3);
    const Tensor dy = random_values({41}, DType::kFloat64, -1, 1, 2);
    const Tensor slope = (c.activation(x + step) - c.activation(x - step)) / (2 * step);
    const Tensor expected = dy * slope;
    const Tensor& from = c.from_result ? c.activation(x) : x;
    expect_tensor(c.grad(dy, from), {41}, expected.to_doubles(), 1e-8);
    expect_tensor(c.grad(cast(dy, DType::kFloat32), cast(from, DType::kFloat32)), {41},
                  expected.to_doubles(), 1e-5);
    expect_tensor(c.grad(Tensor::zeros({0, 2}), Tensor::zeros({0, 2})), {0, 2}, {});
  }
  EXPECT_INVALID(relu_grad(Tensor::zeros({2}), Tensor::zeros({3})),
                 "relu_grad at elementwise_test.cc", "[2]", "[3]");
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

}  // namespace elementwise_test
}  // namespace tutti
