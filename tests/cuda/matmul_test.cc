// How matrix products call the library.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tensor/cuda/matrix_product.h"
#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

using cuda_simulation::math_counts;

OpCall product_call(const Shape& a, const Shape& b, const Shape& c, bool with_bias,
                    DType dtype = DType::kFloat32) {
  OpCall call{OpId::kMatMul,
              {testing::random_values(a, dtype, -1.0, 1.0, 1),
               testing::random_values(b, dtype, -1.0, 1.0, 2)},
              {{c, dtype}},
              MatMulAttributes{}};
  if (with_bias) call.inputs.push_back(testing::random_values({c.dim(-1)}, dtype, -1.0, 1.0, 3));
  return call;
}

TEST(CudaMatMul, AddsTheBiasItselfWhereTheLibraryDoesNot) {
  MathRig rig;
  cuda_simulation::set_math_behavior({.refuses_bias = true});
  for (const testing::OpCase& c : testing::op_family("products").cases()) {
    if (c.call.inputs.size() == 3 && !c.has_special_numbers) {
      rig.expect_like_reference(c.call, c.ulps);
    }
  }
}

TEST(CudaMatMul, AsksForAnAlgorithmOncePerKindOfProduct) {
  MathRig rig;
  const OpCall call = product_call({3, 5}, {5, 7}, {3, 7}, true);
  for (int i = 0; i < 3; ++i) (void)rig.run(call);
  EXPECT_EQ(math_counts().blas_heuristics, 1);
  EXPECT_EQ(math_counts().products, 3);
  (void)rig.run(product_call({3, 5}, {5, 7}, {3, 7}, true, DType::kFloat16));
  (void)rig.run(product_call({4, 5}, {5, 7}, {4, 7}, true));
  EXPECT_EQ(math_counts().blas_heuristics, 3);
  EXPECT_EQ(rig.libraries.matrix_plans().size(), 3u);
}

TEST(CudaMatMul, TakesManyMatricesOfOneShapeInSeveralLaunches) {
  MathRig rig;
  constexpr std::int64_t kBatch = 70'000;
  rig.expect_like_reference(product_call({kBatch, 1, 2}, {kBatch, 2, 1}, {kBatch, 1, 1}, true));
  EXPECT_EQ(math_counts().products, 2);
}

TEST(CudaMatMul, RowsOfManyMatricesTimesOneAreOneProduct) {
  MathRig rig;
  rig.expect_like_reference(product_call({9, 3, 4}, {4, 2}, {9, 3, 2}, false));
  EXPECT_EQ(math_counts().products, 1);
  EXPECT_EQ(rig.libraries.matrix_plans().size(), 1u);
}

// 1 + 2^-12 has more fraction bits than TF32 keeps.
TEST(CudaMatMul, RoundsFloat32ToTf32OnlyWhenAllowed) {
  const float value = 1.0f + 0x1p-12f;
  const OpCall call{OpId::kMatMul,
                    {Tensor::from<float>({1, 1}, {value}), Tensor::from<float>({1, 1}, {1.0f})},
                    {{{1, 1}, DType::kFloat32}},
                    MatMulAttributes{}};
  MathRig rig;
  EXPECT_EQ(rig.run(call)[0].item(), value);
  cuda::MathOptions options;
  options.allow_tf32 = true;
  rig.libraries.set_options(options);
  EXPECT_EQ(rig.run(call)[0].item(), 1.0f);
}

TEST(CudaMatMul, SaysWhatItCannotDo) {
  MathRig rig;
  cuda_simulation::set_math_behavior({.refuses_products = true});
  try {
    (void)rig.run(product_call({3, 5}, {5, 7}, {3, 7}, true));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnimplemented);
    EXPECT_EQ(error.message(),
              "matrix product [1, 3, 5] x [5, 7]: cuBLAS has no algorithm for float32");
  }
}

TEST(CudaMatMul, SaysWhenThereIsNoMemoryForItsWorkspace) {
  MathRig rig;
  rig.workspace.limit = 16;
  try {
    (void)rig.run(product_call({8, 70}, {70, 16}, {8, 16}, false));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(error.message().find("gpu:0"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace tutti::math_rig
