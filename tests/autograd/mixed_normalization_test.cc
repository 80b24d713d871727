// Batch normalisation of 16-bit data with float32 parameters: the bits of casting there and back.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/tensor/random_values.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

struct MixedNormalization {
  explicit MixedNormalization(DType half)
      : x(testing::random_values({6, 5, 4}, half, -2.0, 2.0, 1)),
        dy(testing::random_values({6, 5, 4}, half, -1.0, 1.0, 2)),
        gamma(testing::random_values({4}, DType::kFloat32, 0.5, 1.5, 3)),
        beta(testing::random_values({4}, DType::kFloat32, -1.0, 1.0, 4)),
        mean(testing::random_values({4}, DType::kFloat32, -0.5, 0.5, 5)),
        variance(testing::random_values({4}, DType::kFloat32, 0.5, 2.0, 6)) {}

  /// y, statistics, and the gradients of sum(y dy) for x, gamma and beta.
  template <class Fn>
  std::vector<Tensor> differentiated(const Fn& normalize) const {
    const std::vector<Tensor> sources{x, gamma, beta};
    GradientTape tape;
    for (const Tensor& tensor : sources) tape.watch(tensor);
    std::vector<Tensor> results = normalize();
    const Tensor loss = reduce_sum(results[0] * dy);
    for (const Gradient& gradient : tape.gradient(loss, sources)) {
      results.push_back(gradient.dense());
    }
    return results;
  }
  std::vector<Tensor> train(const Tensor& input) const {
    const BatchNormResult result = batch_norm_training(input, gamma, beta, 1e-3);
    return {cast(result.y, x.dtype()), result.mean, result.variance};
  }
  std::vector<Tensor> infer(const Tensor& input) const {
    return {cast(batch_norm_inference(input, gamma, beta, mean, variance, 1e-3), x.dtype())};
  }
  Tensor wide() const { return cast(x, DType::kFloat32); }

  Tensor x, dy, gamma, beta, mean, variance;
};

void expect_equal(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].dtype(), expected[i].dtype()) << i;
    EXPECT_EQ(actual[i].to_doubles(), expected[i].to_doubles()) << i;
  }
}

TEST(MixedNormalizationTest, GivesTheBitsOfCastingThereAndBack) {
  for (const DType half : {DType::kBFloat16, DType::kFloat16}) {
    const MixedNormalization c(half);
    expect_equal(c.differentiated([&] { return c.train(c.x); }),
                 c.differentiated([&] { return c.train(c.wide()); }));
    expect_equal(c.differentiated([&] { return c.infer(c.x); }),
                 c.differentiated([&] { return c.infer(c.wide()); }));
  }
}

TEST(MixedNormalizationTest, RefusesParametersOfDifferentTypes) {
  const MixedNormalization c(DType::kBFloat16);
  try {
    (void)batch_norm_training(c.x, c.gamma, cast(c.beta, DType::kBFloat16), 1e-3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("expected bfloat16 or float32 [4]"), std::string::npos)
        << error.message();
  }
}

}  // namespace
}  // namespace tutti
