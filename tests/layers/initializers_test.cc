// Initializers: ranges, variances, names, keys.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tests/layers/layer_helpers.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/model/layers/initializers.h"
#include "tutti/model/layers/regularization.h"

namespace tutti {
namespace {

using namespace layer_tests;

TEST(InitializerTest, DistributionsCanBeMadeByRows) {
  const RandomKey key{9, kInitializerPurpose, 2};
  for (const char* name : {"zeros", "ones", "glorot_uniform", "glorot_normal", "he_uniform",
                           "he_normal", "lecun_uniform", "lecun_normal", "uniform", "normal",
                           "truncated_normal", "identity", "variance_scaling"}) {
    SCOPED_TRACE(name);
    const Variable::Initializer initializer = Initializer(name).for_shape({10, 4});
    const auto generator = generator_of(initializer, key);
    ASSERT_TRUE(generator.has_value());
    testing::expect_same_bits(generator->rows(3, 5),
                              initializer({Device{}, key}).detached_rows(3, 5));
  }
  EXPECT_FALSE(generator_of(Initializer("orthogonal").for_shape({10, 4}), key).has_value());
}

TEST(InitializerTest, ValuesDependOnTheKey) {
  const auto make = Initializer("he_normal").for_shape({8});
  const InitializerContext first{{}, {.seed = 1, .a = 1}}, second{{}, {.seed = 1, .a = 2}};
  EXPECT_EQ(make(first).to_doubles(), make(first).to_doubles());
  EXPECT_NE(make(first).to_doubles(), make(second).to_doubles());
}

TEST(InitializerTest, ErrorsNameTheChoiceAndTheShapes) {
  EXPECT_ERROR(Initializer initializer("glorot"), kInvalidArgument,
               "no initializer is named 'glorot'; expected one of zeros, ones, "
               "glorot_uniform");
  EXPECT_ERROR(initializers::values(Tensor::ones({3})).for_shape({2})(InitializerContext{}),
               kInvalidArgument, "expected values of shape [2], got [3]");
}

TEST(InitializerTest, DrawsInFloat32ForEveryType) {
  const InitializerContext context{{}, {.seed = 4, .purpose = kInitializerPurpose, .a = 1}};
  const Tensor f64 = Initializer("glorot_uniform").for_shape({3, 2}, DType::kFloat64)(context);
  EXPECT_EQ(f64.dtype(), DType::kFloat64);
  EXPECT_EQ(f64.to_doubles(),
            Initializer("glorot_uniform").for_shape({3, 2})(context).to_doubles());
  EXPECT_EQ(Initializer("orthogonal").for_shape({2, 3, 4})(context).shape(), (Shape{2, 3, 4}));
  EXPECT_ERROR(Initializer("orthogonal").for_shape({3})(context), kInvalidArgument,
               "rank 2 or more, got shape [3]");
}

TEST(ConstraintTest, BringNormsAndSignsBack) {
  // Columns of norm 5, 0.5 and 0.
  const Tensor w = Tensor::from<float>({2, 3}, {3, 0.3, 0, -4, -0.4, 0});
  expect_values(Constraint("non_neg")(w), {3, 0.3, 0, 0, 0, 0});
  expect_values(constraints::max_norm({.max_value = 1.0})(w), {0.6, 0.3, 0, -0.8, -0.4, 0});
  expect_values(Constraint("unit_norm")(w), {0.6, 0.6, 0, -0.8, -0.8, 0});
  expect_values(constraints::min_max_norm({.min_value = 1.0, .max_value = 2.0})(w),
                {1.2, 0.6, 0, -1.6, -0.8, 0});
  expect_values(constraints::min_max_norm({.min_value = 1.0, .max_value = 2.0, .rate = 0.5})(w),
                {2.1, 0.45, 0, -2.8, -0.6, 0});
  expect_values(constraints::unit_norm(1)(w), {3 / std::sqrt(9.09), 0.3 / std::sqrt(9.09), 0,
                                               -4 / std::sqrt(16.16), -0.4 / std::sqrt(16.16), 0});
  // Filters of a convolution: one norm over all of their elements, here 5 and 13.
  const Tensor filters = Tensor::from<float>({2, 1, 2, 2}, {3, 0, 4, 12, 0, 3, 0, 4});
  expect_values(constraints::unit_norm({0, 1, 2})(filters),
                {3 / 5.0, 0, 4 / 5.0, 12 / 13.0, 0, 3 / 13.0, 0, 4 / 13.0});
  expect_values(constraints::max_norm({.max_value = 10.0, .axis = {0, 1, 2}})(filters),
                {3, 0, 4, 120 / 13.0, 0, 30 / 13.0, 0, 40 / 13.0});
  EXPECT_TRUE(Constraint("").empty());
  EXPECT_ERROR(Constraint constraint("maxnorm"), kInvalidArgument,
               "expected one of max_norm, non_neg, unit_norm, min_max_norm");
}

}  // namespace
}  // namespace tutti
