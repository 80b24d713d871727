// Initial values as a description: any cut into rows gives the bits of the whole.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/value_generator.h"

#include "tests/support/tensor_matchers.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {
namespace value_generator {

using Kind = ValueGenerator::Kind;
using testing::expect_same_bits;

constexpr RandomKey kKey{11, kInitializerPurpose, 5};

ValueGenerator of(Kind kind, double a, double b, const Shape& shape, DType dtype) {
  return {kind, a, b, kKey, dtype, shape};
}

std::vector<ValueGenerator> all_kinds(const Shape& shape, DType dtype) {
  return {of(Kind::kConstant, 0.1, 0.0, shape, dtype), of(Kind::kUniform, -0.5, 2.0, shape, dtype),
          of(Kind::kNormal, 1.0, 3.0, shape, dtype),
          of(Kind::kTruncatedNormal, 0.0, 0.7, shape, dtype)};
}

Tensor whole_of(const ValueGenerator& generator) {
  return generated_initializer(generator)({Device{}, generator.key});
}

void expect_any_cut_gives_the_whole(const ValueGenerator& generator) {
  const Tensor whole = whole_of(generator);
  const std::int64_t num_rows = generator.shape[0];
  for (const std::int64_t step : {1, 2, 3, 5, 64}) {
    for (std::int64_t first = 0; first < num_rows; first += step) {
      const std::int64_t count = std::min(step, num_rows - first);
      expect_same_bits(generator.rows(first, count), whole.detached_rows(first, count));
    }
  }
  EXPECT_EQ(generator.rows(num_rows, 0).shape(), generator.shape.with_dim(0, 0));
}

TEST(ValueGenerator, AnyCutIntoRowsGivesTheBitsOfTheWhole) {
  for (const Shape& shape : {Shape{67}, Shape{23, 7}, Shape{9, 3, 5}, Shape{4, 0}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      for (const ValueGenerator& each : all_kinds(shape, dtype)) {
        SCOPED_TRACE(concat(static_cast<int>(each.kind), " ", shape, " ", dtype));
        expect_any_cut_gives_the_whole(each);
      }
    }
  }
  expect_any_cut_gives_the_whole(of(Kind::kIdentity, 2.5, 0.0, {9, 7}, DType::kFloat32));
  expect_any_cut_gives_the_whole(of(Kind::kIdentity, 2.5, 0.0, {5, 8}, DType::kFloat64));
}

TEST(ValueGenerator, TheWholeIsWhatTheOperationsOfTheseNamesGive) {
  const Shape shape{6, 5};
  expect_same_bits(whole_of(of(Kind::kUniform, -0.5, 2.0, shape, DType::kFloat32)),
                   random_uniform(shape, kKey, -0.5, 2.0));
  expect_same_bits(whole_of(of(Kind::kNormal, 1.0, 3.0, shape, DType::kFloat32)),
                   random_normal(shape, kKey, 1.0, 3.0));
  expect_same_bits(whole_of(of(Kind::kTruncatedNormal, 0.0, 0.7, shape, DType::kFloat32)),
                   truncated_normal(shape, kKey, 0.0, 0.7));
  // Drawn as float32, then converted.
  expect_same_bits(whole_of(of(Kind::kNormal, 1.0, 3.0, shape, DType::kFloat64)),
                   cast(random_normal(shape, kKey, 1.0, 3.0), DType::kFloat64));
  expect_same_bits(whole_of(of(Kind::kConstant, 0.1, 0.0, shape, DType::kFloat64)),
                   cast(Tensor::full(shape, 0.1), DType::kFloat64));
  testing::expect_tensor(whole_of(of(Kind::kIdentity, 2.0, 0.0, {2, 3}, DType::kFloat32)), {2, 3},
                         {2, 0, 0, 0, 2, 0});
}

TEST(ValueGenerator, AScalarIsOneRow) {
  const ValueGenerator scalar = of(Kind::kNormal, 0.0, 1.0, {}, DType::kFloat32);
  expect_same_bits(scalar.rows(0, 1), random_normal({}, kKey, 0.0, 1.0));
  expect_same_bits(whole_of(scalar), scalar.rows(0, 1));
}

TEST(ValueGenerator, NamesRowsThatAreNotThere) {
  const ValueGenerator generator = of(Kind::kUniform, 0.0, 1.0, {4, 2}, DType::kFloat32);
  EXPECT_ERROR((void)generator.rows(2, 3), kOutOfRange, "[4, 2]", "3 rows from 2");
  EXPECT_ERROR((void)generator.rows(-1, 1), kOutOfRange, "from -1");
  EXPECT_ERROR((void)of(Kind::kIdentity, 1.0, 0.0, {3}, DType::kFloat32).rows(0, 1),
               kInvalidArgument, "identity", "[3]");
}

TEST(ValueGenerator, IsFoundInTheInitializerThatItMade) {
  ValueGenerator generator = of(Kind::kUniform, 0.0, 1.0, {4, 2}, DType::kFloat32);
  const Variable::Initializer initializer = generated_initializer(generator);
  const RandomKey other{3, kInitializerPurpose, 8};
  const auto found = generator_of(initializer, other);
  ASSERT_TRUE(found.has_value());
  generator.key = other;
  EXPECT_EQ(*found, generator);
  expect_same_bits(initializer({Device{}, other}), found->rows(0, 4));
  const Variable::Initializer plain = [](const InitializerContext&) { return Tensor::zeros({1}); };
  EXPECT_FALSE(generator_of(plain, other).has_value());
}

}  // namespace value_generator
}  // namespace
}  // namespace tutti
