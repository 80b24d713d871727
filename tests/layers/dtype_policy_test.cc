// Dtype policies: types of weights and inputs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/layer.h"

#include "tests/layers/layer_helpers.h"
#include "tutti/model/layers/core_layers.h"

namespace tutti {
namespace {

struct PolicyForTest {
  explicit PolicyForTest(const char* name) { set_dtype_policy(name); }
  ~PolicyForTest() { set_dtype_policy("float32"); }
};

TEST(DTypePolicyTest, WeightsAndResultsHaveItsType) {
  const PolicyForTest policy("float64");
  Dense dense(2);
  dense.build_for({3});
  for (const Variable& weight : dense.variables()) EXPECT_EQ(weight.dtype(), DType::kFloat64);
  const Tensor y = dense(Tensor::ones({4, 3}));  // float32: cast
  EXPECT_EQ(y.dtype(), DType::kFloat64);
}

TEST(DTypePolicyTest, ALayerKeepsThePolicyUnderWhichItWasMade) {
  Dense single(2);
  const PolicyForTest policy("float64");
  single.build_for({3});
  EXPECT_EQ(single.variables()[0].dtype(), DType::kFloat32);
  EXPECT_EQ(single(Tensor::ones({1, 3}, DType::kFloat64)).dtype(), DType::kFloat32);
}

TEST(DTypePolicyTest, AnUnknownNameListsTheKnownOnes) {
  EXPECT_THAT(
      layer_tests::error_of([] { DTypePolicy("float128"); }),
      ::testing::HasSubstr("no policy is named 'float128'; expected one of float32, float64"));
}

}  // namespace
}  // namespace tutti
