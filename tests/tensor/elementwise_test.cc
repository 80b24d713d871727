// Compares elementwise operations and reductions with plain loops. Tests every 16-bit number, the
// midpoint of each pair of neighbours, bulk conversions, and that each operation rounds once.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/elementwise.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "tensor/cpu/float_functions.h"
#include "tensor/half_conversion.h"
#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/ops/activation_ops.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::elementwise_test {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

double tolerance(DType dtype) {
  // For 16-bit types, the relative tolerance is half a unit in the last place.
  if (dtype == DType::kBFloat16) return 0x1p-8;
  if (dtype == DType::kFloat16) return 0x1p-11;
  return dtype == DType::kFloat64 ? 1e-13 : 2e-6;
}
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

/// Returns element `index` of x broadcast to `shape`, found by its coordinates.
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
  int roundings = 1;  // number of roundings; greater than 1 for a composition of operations
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

TEST(Elementwise, ComputesLeakyReluLog1pAndRound) {
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

/// Returns the distance between `value` and `expected`, in units in the last place of the float
/// nearest to `expected`.
double units_apart(float value, double expected) {
  const float nearest = static_cast<float>(expected);
  if (value == nearest) return 0.0;
  const int exponent = std::max(std::ilogb(nearest == 0.0f ? 0x1p-149f : nearest), -126);
  return std::fabs(value - expected) / std::ldexp(1.0, exponent - 23);
}

TEST(Elementwise, FloatExponentialsAreWithinTwoUnitsInLastPlace) {
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
          // uint8 results wrap around: 3 - 5 is 254, and 4^4 is 0.
          if (dtype == DType::kUInt8) expected[i] = std::fmod(expected[i] + 256.0, 256.0);
        }
        expect_tensor(y, shape, expected, tolerance(dtype));
      }
    }
  }
}

TEST(Elementwise, AddReluMatchesSeparateOperationsBitwise) {
  const std::vector<double> special{kNan,  kInf,  -kInf, 0.0,    -0.0,     1e-7,
                                    -1e-7, 6e-40, 1.0,   -65504, 1 + 1e-3, -1.0};
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBool) continue;
    SCOPED_TRACE(concat(dtype));
    const Tensor a = random_values({33, 19}, dtype, -100, 100, 1);
    const Tensor b = random_values({33, 19}, dtype, -100, 100, 2);
    expect_same_bits(add_relu(a, b), relu(a + b));
    if (!is_floating(dtype)) continue;
    const Tensor row = tensor_of({1, 12}, special, dtype),
                 column = tensor_of({12, 1}, special, dtype);
    const Tensor fused = add_relu(row, column), apart = relu(row + column);
    // For NaNs, compares only their positions, because their bits are unspecified.
    expect_same_bits(cast(equal(fused, fused), dtype), cast(equal(apart, apart), dtype));
    expect_same_bits(where(equal(fused, fused), fused, 0.0),
                     where(equal(apart, apart), apart, 0.0));
  }
}

TEST(Elementwise, LogicalOperationsAndComparisonsAcceptBools) {
  const Tensor a = Tensor::from<bool>({4}, {false, false, true, true});
  const Tensor b = Tensor::from<bool>({4}, {false, true, false, true});
  expect_tensor(logical_and(a, b), {4}, {0, 0, 0, 1});
  expect_tensor(logical_or(a, b), {4}, {0, 1, 1, 1});
  expect_tensor(logical_not(a), {4}, {1, 1, 0, 0});
  expect_tensor(equal(a, b), {4}, {1, 0, 0, 1});
  expect_tensor(not_equal(a, b), {4}, {0, 1, 1, 0});
  EXPECT_EQ(logical_and(a, b).dtype(), DType::kBool);
}

TEST(Elementwise, ScalarLiteralsAdoptTensorType) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt64, DType::kUInt8}) {
    const Tensor x = tensor_of({2}, {3, 4}, dtype);
    EXPECT_EQ((x + 1).dtype(), dtype);
    expect_tensor(x + 1, {2}, {4, 5});
    expect_tensor(10 - x, {2}, {7, 6});
    expect_tensor(less(x, 4), {2}, {1, 0});
  }
  const Tensor x = Tensor::zeros({1}, DType::kFloat64);
  EXPECT_EQ((x + 0.1).item_double(), 0.1);  // 0.1 is not rounded to float first
  expect_error(ErrorCode::kInvalidArgument,
               {concat("add at elementwise_test.cc:", __LINE__ + 1), "int32", "0.5"},
               [&] { Tensor::zeros({1}, DType::kInt32) + 0.5; });
}

TEST(Elementwise, WhereAcceptsNumbersAndEmptyTensors) {
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

TEST(Elementwise, CastTruncatesAndSaturatesWhileClipKeepsType) {
  const Tensor x = tensor_of({7}, {1.9, -1.9, 1e30, -1e30, kNan, kInf, 0.5}, DType::kFloat32);
  expect_tensor(cast(x, DType::kInt32), {7}, {1, -1, 2147483647, -2147483648.0, 0, 2147483647, 0});
  expect_tensor(cast(x, DType::kUInt8), {7}, {1, 0, 255, 0, 0, 255, 0});
  expect_tensor(cast(x, DType::kBool), {7}, {1, 1, 1, 1, 1, 1, 1});
  const Tensor y = Tensor::zeros({2});
  // the type is the same, so y itself is returned
  EXPECT_EQ(cast(y, DType::kFloat32).id(), y.id());
  expect_tensor(clip(tensor_of({4}, {-5, 0, 2, 9}, DType::kInt32), -1, 2.5), {4}, {-1, 0, 2, 2});
  expect_tensor(clip(tensor_of({3}, {0, 5, 255}, DType::kUInt8), -10, 1000), {3}, {0, 5, 255});
  expect_tensor(clip(tensor_of({2}, {-5, 5}, DType::kFloat64), -0.1, 0.1), {2}, {-0.1, 0.1});
  expect_tensor(clip(Tensor::zeros({0}), 0, 1), {0}, {});
  EXPECT_INVALID(clip(Tensor::zeros({1}), 1, 0), "clip at elementwise_test.cc", "low <= high");
}

TEST(Elementwise, ShapeErrorNamesShapesAndLine) {
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

TEST(Elementwise, TypeErrorNamesTypesAndLine) {
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

/// Reduces x over the axes whose bits are set in `bits`, element by element, and keeps these axes
/// with size 1.
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
    // Odd axes are counted from the end, to test negative axes.
    if (bits >> axis & 1u) axes.push_back(axis % 2 ? axis - rank : axis);
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

TEST(Reduction, ReducesAllAxesByDefault) {
  const Tensor x = tensor_of({2, 3}, {1, 2, 3, 4, 5, 6}, DType::kFloat32);
  expect_tensor(reduce_sum(x), {}, {21});
  expect_tensor(reduce_mean(x), {}, {3.5});
  expect_tensor(reduce_mean(x, {{0}, false}), {3}, {2.5, 3.5, 4.5});
  expect_tensor(reduce_mean(x, {{-1}, true}), {2, 1}, {2, 5});
  expect_tensor(reduce_sum(x, {{}, true}), {1, 1}, {21});
  expect_tensor(reduce_sum(Tensor(3.0f)), {}, {3});
}

TEST(Reduction, EmptyTensorYieldsIdentityElement) {
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
  // Adding 0.1f ten million times sequentially in float gives 1087937.
  const std::int64_t count = 10'000'000;
  const Tensor x = Tensor::full({count}, 0.1);
  const double expected = static_cast<double>(0.1f) * static_cast<double>(count);
  EXPECT_NEAR(reduce_sum(x).item_double(), expected, expected * 1e-6);
  EXPECT_NEAR(reduce_mean(x).item_double(), 0.1, 1e-7);
  const Tensor columns = reduce_sum(reshape(x, {count / 10, 10}), {{0}, false});
  for (double sum : columns.to_doubles()) EXPECT_NEAR(sum, expected / 10, expected * 1e-7);
}

TEST(Reduction, SummationOrderDependsOnlyOnLength) {
  // Equal sequences as a row, as a column and inside a larger tensor have bitwise equal sums.
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

TEST(Reduction, KeepsIntegerTypesAndPropagatesNan) {
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

TEST(Reduction, ArgMaxReturnsFirstOfEqualElements) {
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

TEST(Reduction, AxisAndTypeErrorsNameOperationAndLine) {
  const Tensor x = Tensor::zeros({2, 3});
  expect_error(ErrorCode::kInvalidArgument,
               {concat("reduce_sum at elementwise_test.cc:", __LINE__ + 2), "axis 2", "[2, 3]"},
               [&] {
                 reduce_sum(x, {{2}, false});
               });
  EXPECT_INVALID(reduce_max(x, {{1, -1}, false}), "reduce_max at", "appears twice");
  EXPECT_INVALID(argmax(x, -3), "argmax at", "axis -3");
  EXPECT_INVALID(reduce_mean(Tensor::zeros({2}, DType::kInt32)), "reduce_mean at", "int32",
                 "cast()");
  EXPECT_INVALID(reduce_sum(Tensor::zeros({2}, DType::kBool)), "reduce_sum at", "bool");
  EXPECT_INVALID(reduce_any(x), "reduce_any at", "bool", "float32");
}

constexpr DType kHalves[] = {DType::kBFloat16, DType::kFloat16};

/// Returns the number that `bits` encodes according to the definition of the format.
double defined_value(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1u));
  const double fraction = std::ldexp(bits & ((1u << fraction_bits) - 1u), -fraction_bits);
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1.0 + fraction, exponent - bias);
}

template <class Half>
void check_every_value(int exponent_bits, int fraction_bits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    Half half;
    half.bits = static_cast<std::uint16_t>(bits);
    const double expected = defined_value(bits, exponent_bits, fraction_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(half))) << bits;
      const std::uint32_t quiet = bits | 1u << (fraction_bits - 1);
      ASSERT_EQ(Half(static_cast<double>(half)).bits, quiet) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(half), expected) << bits;
    ASSERT_EQ(std::signbit(static_cast<float>(half)), (bits & 0x8000u) != 0) << bits;
    ASSERT_EQ(Half(expected).bits, bits);
  }
}

/// Tests numbers just below, at, and just above the midpoint of each pair of adjacent numbers.
template <class Half>
void check_every_border(int exponent_bits, int fraction_bits) {
  const std::uint32_t infinity = ((1u << exponent_bits) - 1u) << fraction_bits;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = defined_value(bits, exponent_bits, fraction_bits);
    const double before = bits > 0 ? defined_value(bits - 1, exponent_bits, fraction_bits) : 0.0;
    // Above the largest finite number, the spacing is assumed to be the same as below it.
    const double high = bits + 1 < infinity ? defined_value(bits + 1, exponent_bits, fraction_bits)
                                            : low + (low - before);
    const double middle = (low + high) / 2;
    ASSERT_EQ(Half(std::nextafter(middle, low)).bits, bits);
    ASSERT_EQ(Half(middle).bits, bits + (bits & 1u)) << bits;
    ASSERT_EQ(Half(std::nextafter(middle, high)).bits, bits + 1);
    ASSERT_EQ(Half(-middle).bits, (bits + (bits & 1u)) | 0x8000u) << bits;
  }
}

TEST(Half, EveryBFloat16MatchesDefinitionAndRoundTrips) { check_every_value<BFloat16>(8, 7); }
TEST(Half, EveryFloat16MatchesDefinitionAndRoundTrips) { check_every_value<Float16>(5, 10); }
TEST(Half, EveryBFloat16MidpointRoundsToEven) { check_every_border<BFloat16>(8, 7); }
TEST(Half, EveryFloat16MidpointRoundsToEven) { check_every_border<Float16>(5, 10); }

TEST(Half, ExtremesBecomeInfinityOrZero) {
  EXPECT_EQ(Float16(65519.99).bits, 0x7bffu);
  EXPECT_EQ(Float16(65520.0).bits, 0x7c00u);
  EXPECT_EQ(Float16(1e300).bits, 0x7c00u);
  EXPECT_EQ(Float16(-1e300).bits, 0xfc00u);
  EXPECT_EQ(Float16(5e-324).bits, 0u);
  EXPECT_EQ(Float16(-1e-30).bits, 0x8000u);
  EXPECT_EQ(BFloat16(std::numeric_limits<double>::max()).bits, 0x7f80u);
  EXPECT_EQ(BFloat16(1e-60).bits, 0u);
}

template <class T>
std::uint16_t rounded_bits(float value) {
  return T(static_cast<double>(value)).bits;
}

std::vector<float> interesting_floats() {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               65504.0f,
                               65519.9f,
                               65520.0f,
                               65536.0f,
                               1e30f,
                               0x1p-24f,
                               0x1p-25f,
                               0x1.8p-25f,
                               0x1p-14f,
                               0x1.ffcp-15f,
                               0x1.ffep-15f,
                               0x1p-149f,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::quiet_NaN()};
  const RandomStream stream(RandomKey{3, kUserPurpose});
  // Random bits cover all exponents, NaNs and denormals.
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    values.push_back(std::bit_cast<float>(stream.bits(i)));
    // Few random bit patterns are in float16's range, so the next line adds numbers in that range.
    values.push_back(
        static_cast<float>(std::ldexp(stream.uniform64(i), -26 + static_cast<int>(i % 44))));
  }
  const std::size_t count = values.size();
  for (std::size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

template <class T>
void check_conversions() {
  std::vector<T> all(65536);
  for (std::uint32_t bits = 0; bits < 65536; ++bits)
    all[bits].bits = static_cast<std::uint16_t>(bits);
  std::vector<float> wide(all.size());
  widen(dtype_of<T>(), reinterpret_cast<const std::byte*>(all.data()), wide.data(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    // Compares bits, because a NaN is not equal to itself.
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]),
              std::bit_cast<std::uint32_t>(static_cast<float>(all[i])))
        << i;
  }
  // Covers every 16-bit number, and the midpoint between it and the next one, where rounding must
  // break a tie.
  std::vector<float> values = interesting_floats();
  for (std::size_t i = 0; i + 1 < wide.size(); ++i) {
    values.push_back(wide[i]);
    values.push_back(static_cast<float>((static_cast<double>(wide[i]) + wide[i + 1]) / 2));
  }
  std::vector<T> narrow_values(values.size());
  narrow(values.data(), dtype_of<T>(), reinterpret_cast<std::byte*>(narrow_values.data()),
         values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(narrow_values[i].bits, rounded_bits<T>(values[i])) << std::hexfloat << values[i];
}

TEST(HalfTensor, BulkConversionMatchesScalarConversion) {
  check_conversions<BFloat16>();
  check_conversions<Float16>();
}

TEST(HalfTensor, StoresAndPrintsValues) {
  for (const DType dtype : kHalves) {
    const Tensor x = Tensor::full({2}, 1.5, dtype);
    EXPECT_EQ(x.num_bytes(), 4u);
    EXPECT_EQ(x.to_doubles(), (std::vector<double>{1.5, 1.5}));
    EXPECT_EQ(x.detached_rows(0, 1).item(), 1.5f);
    EXPECT_EQ(x.detached_rows(1, 1).item_int(), 1);
    EXPECT_NE(x.to_string().find("[1.5, 1.5]"), std::string::npos) << x;
    EXPECT_NE(x.to_string().find(to_string(dtype)), std::string::npos) << x;
  }
  EXPECT_EQ(Tensor::full({}, 1.0 / 3, DType::kBFloat16).item(), 0x1.56p-2f);
  EXPECT_EQ(Tensor::full({}, 1.0 / 3, DType::kFloat16).item(), 0x1.554p-2f);
  const Tensor made = Tensor::from<Float16>({1}, {Float16(0.5)});
  EXPECT_EQ(made.dtype(), DType::kFloat16);
  EXPECT_INVALID((void)made.host_span<BFloat16>(), "float16");
}

TEST(HalfTensor, EachOperationRoundsOnce) {
  for (const DType dtype : kHalves) {
    const Tensor a = random_values({7, 9}, dtype, -2, 2, 1),
                 b = random_values({9, 5}, dtype, -2, 2, 2);
    const Tensor wide_a = cast(a, DType::kFloat32), wide_b = cast(b, DType::kFloat32);
    expect_same_bits(matmul(a, b), cast(matmul(wide_a, wide_b), dtype));
    expect_same_bits(exp(a), cast(exp(wide_a), dtype));
    expect_same_bits(a * 3.0 + a,
                     cast(cast(cast(wide_a * 3.0, dtype), DType::kFloat32) + wide_a, dtype));
    expect_same_bits(softmax(a), cast(softmax(wide_a), dtype));
    expect_same_bits(reduce_mean(a, {.axes = {1}}),
                     cast(reduce_mean(wide_a, {.axes = {1}}), dtype));
    expect_same_bits(greater(a, 0.0), greater(wide_a, 0.0));
    const Tensor image = random_values({2, 5, 5, 3}, dtype, -1, 1, 3);
    const Tensor filter = random_values({3, 3, 3, 4}, dtype, -1, 1, 4);
    expect_same_bits(
        conv2d(image, filter),
        cast(conv2d(cast(image, DType::kFloat32), cast(filter, DType::kFloat32)), dtype));
  }
}

TEST(HalfTensor, SumsAccumulateInFloat32) {
  for (const DType dtype : kHalves) {
    // A sequential 16-bit sum would stall at 256 in bfloat16, and at 2048 in float16.
    EXPECT_EQ(reduce_sum(Tensor::ones({5000}, dtype)).item(),
              dtype == DType::kFloat16 ? 5000 : 4992);
    EXPECT_EQ(reduce_mean(Tensor::full({5000}, 60000, dtype)).item(),
              Tensor::full({}, 60000, dtype).item());
  }
}

TEST(HalfTensor, DataMovementPreservesBits) {
  for (const DType dtype : kHalves) {
    const Tensor x = random_values({4, 6}, dtype, -3, 3);
    const Tensor wide = cast(x, DType::kFloat32);
    expect_same_bits(transpose(x), cast(transpose(wide), dtype));
    expect_same_bits(slice(x, {1, 2}, {2, 3}), cast(slice(wide, {1, 2}, {2, 3}), dtype));
    expect_same_bits(concat({x, x}, 1), cast(concat({wide, wide}, 1), dtype));
    const Tensor rows = Tensor::from<std::int64_t>({3}, {3, 0, 3});
    expect_same_bits(gather(x, rows), cast(gather(wide, rows), dtype));
    const Tensor positive = greater(x, 0.0);
    expect_same_bits(where(positive, x, x * 0.5), cast(where(positive, wide, wide * 0.5), dtype));
    expect_same_bits(where(positive, x, 0.0), cast(where(positive, wide, 0.0), dtype));
    expect_tensor(one_hot(Tensor::from<std::int64_t>({2}, {1, 0}), 2, dtype), {2, 2}, {0, 1, 1, 0});
  }
}

TEST(HalfTensor, AcceptsIntegerLabelsAndRejectsMixedTypes) {
  for (const DType dtype : kHalves) {
    const Tensor logits = random_values({5, 3}, dtype, -3, 3);
    const Tensor labels = Tensor::from<std::int64_t>({5}, {0, 2, 1, 1, 0});
    expect_same_bits(
        sparse_softmax_cross_entropy(labels, logits),
        cast(sparse_softmax_cross_entropy(labels, cast(logits, DType::kFloat32)), dtype));
  }
  EXPECT_INVALID((void)(Tensor::ones({2}, DType::kFloat16) + Tensor::ones({2}, DType::kBFloat16)),
                 "float16", "bfloat16", "cast()");
}

}  // namespace tutti::testing::elementwise_test
