// Layers in device scopes: their weights are there, and so is what they compute.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/layers.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

TEST(DeviceScopeLayers, WeightsAndResultsAreOnItsDevice) {
  constexpr Device kFirst{DeviceType::kCpu, 0}, kSecond{DeviceType::kCpu, 1};
  Dense dense(3, {.activation = "relu"});
  BatchNormalization normalization;
  {
    const DeviceScope scope("/device:CPU:1");
    dense.build_for({4});
    normalization.build_for({3});
  }
  for (const Layer* layer :
       {static_cast<const Layer*>(&dense), static_cast<const Layer*>(&normalization)}) {
    for (const Variable& variable : layer->variables()) {
      EXPECT_THAT(variable.storage().devices(), ::testing::ElementsAre(kSecond)) << variable.name();
    }
  }
  const Tensor x = random_uniform({5, 4}, {.seed = 1});
  EXPECT_EQ(x.device(), kFirst);
  testing::expect_error(ErrorCode::kInvalidArgument, {"dense", "several devices", "cpu:0", "cpu:1"},
                        [&] { dense(x); });
  GradientTape tape;
  tape.watch(x);
  Tensor y;
  {
    const DeviceScope scope(kSecond);
    y = normalization(dense(x), {.training = true});
  }
  EXPECT_EQ(y.device(), kSecond);
  EXPECT_EQ(tape.gradient(square(y), x).dense().device(), kFirst);
}

}  // namespace
}  // namespace tutti
