// The residual networks of the examples: sizes known from elsewhere, and gradients for every
// weight.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "examples/common/resnet.h"
#include "tutti/tutti.h"

namespace tutti {
namespace resnet_test {

Tensor images(std::int64_t rows, std::int64_t size) {
  return random_normal({rows, size, size, 3}, {.seed = 4, .purpose = kUserPurpose});
}

/// Each weight has a gradient, finite and not all zeros.
void expect_gradients(const Sequential& model, const Tensor& x) {
  GradientTape tape;
  const Tensor logits = model(x, {.training = true});
  const Tensor labels = Tensor::from(Shape{x.shape()[0]}, std::vector<std::int64_t>(2, 3));
  const Tensor loss = reduce_mean(losses::sparse_categorical_crossentropy(labels, logits));
  const std::vector<Variable> weights = model.trainable_variables();
  const std::vector<Gradient> gradients = tape.gradient(loss, weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ASSERT_FALSE(gradients[i].is_none()) << weights[i].name();
    const float size = reduce_sum(abs(gradients[i].to_dense())).item();
    EXPECT_TRUE(std::isfinite(size) && size > 0.0f) << weights[i].name() << ": " << size;
  }
}

TEST(Resnet50, HasTheParametersOfTorchvisions) {
  const Sequential model = examples::resnet50();
  EXPECT_EQ(model.num_trainable_parameters(), 25'557'032);
  // Two moving averages per channel of 53 normalisations.
  EXPECT_EQ(model.num_parameters() - model.num_trainable_parameters(), 2 * 26'560);
  EXPECT_EQ(model.trainable_variables().size(), 161u);
  EXPECT_EQ(model.output_shape(), Shape{1000});
}

TEST(Resnet50, GradientsReachEveryWeight) {
  const Sequential model = examples::resnet50(32, 10);
  EXPECT_EQ(model.num_trainable_parameters(), 25'557'032 - 990 * 2049);
  expect_gradients(model, images(2, 32));
}

TEST(Resnet50, HeadStaysInFloat32UnderAMixedPolicy) {
  set_dtype_policy("mixed_bfloat16");
  const Sequential model = examples::resnet50(32, 10);
  set_dtype_policy("float32");
  EXPECT_EQ(model(images(1, 32)).dtype(), DType::kFloat32);
  EXPECT_EQ(model.trainable_variables()[0].dtype(), DType::kFloat32);
}

TEST(SmallResnet, HasTheParametersOfResnet20) {
  EXPECT_EQ(examples::small_resnet(3).num_trainable_parameters(), 272'474);
  EXPECT_EQ(examples::small_resnet(1).num_trainable_parameters(), 78'042);
}

TEST(SmallResnet, GradientsReachEveryWeight) {
  expect_gradients(examples::small_resnet(1, 16), images(2, 16));
}

}  // namespace resnet_test
}  // namespace tutti
