// Matrix products of the CUDA backend against the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tensor/cuda/matrix_product.h"
#include "tests/cuda/math_rig.h"

namespace tutti::math_rig {
namespace {

using cuda_simulation::math_counts;

struct ProductCase {
  Shape a, b, c;
  MatMulAttributes attributes;
};

OpCall product_call(const ProductCase& p, DType dtype, bool with_bias) {
  OpCall call{OpId::kMatMul,
              {testing::random_values(p.a, dtype, -1.0, 1.0, 1),
               testing::random_values(p.b, dtype, -1.0, 1.0, 2)},
              {{p.c, dtype}},
              p.attributes};
  if (with_bias) {
    call.inputs.push_back(testing::random_values({p.c.dim(-1)}, dtype, -1.0, 1.0, 3));
  }
  return call;
}

std::string name_of(const ProductCase& p, bool with_bias) {
  return concat(p.a, p.attributes.transpose_a ? "'" : "", " x ", p.b,
                p.attributes.transpose_b ? "'" : "", with_bias ? " + bias" : "");
}

const std::vector<ProductCase>& product_cases() {
  static const std::vector<ProductCase> cases{
      {{3, 5}, {5, 7}, {3, 7}, {}},
      {{1, 1}, {1, 1}, {1, 1}, {}},
      {{8, 70}, {70, 16}, {8, 16}, {}},  // long sums, made in parts
      {{5, 3}, {5, 7}, {3, 7}, {true, false}},
      {{3, 5}, {7, 5}, {3, 7}, {false, true}},
      {{5, 3}, {7, 5}, {3, 7}, {true, true}},
      {{4, 3, 5}, {4, 5, 2}, {4, 3, 2}, {}},
      {{2, 3, 4, 5}, {2, 3, 5, 2}, {2, 3, 4, 2}, {}},
      {{4, 3, 5}, {5, 2}, {4, 3, 2}, {}},
      {{4, 5, 3}, {5, 2}, {4, 3, 2}, {true, false}},
      {{3, 5}, {4, 2, 5}, {4, 3, 2}, {false, true}},
      {{0, 5}, {5, 7}, {0, 7}, {}},
      {{3, 0}, {0, 7}, {3, 7}, {}},
      {{2, 3, 0}, {2, 0, 4}, {2, 3, 4}, {}}};
  return cases;
}

TEST(CudaMatMul, GivesWhatTheCpuGives) {
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const ProductCase& p : product_cases()) {
      expect_like_cpu(rig, product_call(p, dtype, false), name_of(p, false));
    }
  }
}

TEST(CudaMatMul, AddsABiasAndActivates) {
  for (const DType dtype : kTypes) {
    MathRig rig;
    for (const auto activation : {FusedActivation::kNone, FusedActivation::kRelu,
                                  FusedActivation::kSigmoid, FusedActivation::kTanh}) {
      for (ProductCase p : product_cases()) {
        p.attributes.activation = activation;
        expect_like_cpu(rig, product_call(p, dtype, true), name_of(p, true), 2.0);
        expect_like_cpu(rig, product_call(p, dtype, false), name_of(p, false), 2.0);
      }
    }
  }
}

TEST(CudaMatMul, AddsTheBiasItselfWhereTheLibraryDoesNot) {
  MathRig rig;
  cuda_simulation::set_math_behavior({.refuses_bias = true});
  for (const DType dtype : kTypes) {
    for (const ProductCase& p : product_cases()) {
      expect_like_cpu(rig, product_call(p, dtype, true), name_of(p, true), 2.0);
    }
  }
}

TEST(CudaMatMul, TakesOperandsThatAreNotAligned) {
  MathRig rig;
  for (rig.offset = 1; rig.offset < 4; ++rig.offset) {
    for (const DType dtype : kTypes) {
      expect_like_cpu(rig, product_call({{6, 8}, {8, 16}, {6, 16}, {}}, dtype, true), "offset",
                      2.0);
    }
  }
}

TEST(CudaMatMul, ANanStaysOneUnderRelu) {
  MathRig rig;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const OpCall call{OpId::kMatMul,
                    {Tensor::from<float>({2, 1}, {nan, -1.0f}), Tensor::from<float>({1, 1}, {1.0f}),
                     Tensor::from<float>({1}, {0.5f})},
                    {{{2, 1}, DType::kFloat32}},
                    MatMulAttributes{false, false, FusedActivation::kRelu}};
  const Tensor y = rig.run(call)[0];
  EXPECT_TRUE(std::isnan(y.to_doubles()[0]));
  EXPECT_EQ(y.to_doubles()[1], 0.0);
}

TEST(CudaMatMul, AsksForAnAlgorithmOncePerKindOfProduct) {
  MathRig rig;
  const OpCall call = product_call({{3, 5}, {5, 7}, {3, 7}, {}}, DType::kFloat32, true);
  for (int i = 0; i < 3; ++i) (void)rig.run(call);
  EXPECT_EQ(math_counts().blas_heuristics, 1);
  EXPECT_EQ(math_counts().products, 3);
  (void)rig.run(product_call({{3, 5}, {5, 7}, {3, 7}, {}}, DType::kFloat16, true));
  (void)rig.run(product_call({{4, 5}, {5, 7}, {4, 7}, {}}, DType::kFloat32, true));
  EXPECT_EQ(math_counts().blas_heuristics, 3);
  EXPECT_EQ(rig.libraries.matrix_plans().size(), 3u);
}

TEST(CudaMatMul, TakesManyMatricesOfOneShapeInSeveralLaunches) {
  MathRig rig;
  constexpr std::int64_t kBatch = 70'000;
  expect_like_cpu(
      rig,
      product_call({{kBatch, 1, 2}, {kBatch, 2, 1}, {kBatch, 1, 1}, {}}, DType::kFloat32, true),
      "many");
  EXPECT_EQ(math_counts().products, 2);
}

TEST(CudaMatMul, RowsOfManyMatricesTimesOneAreOneProduct) {
  MathRig rig;
  expect_like_cpu(rig, product_call({{9, 3, 4}, {4, 2}, {9, 3, 2}, {}}, DType::kFloat32, false),
                  "shared");
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
    (void)rig.run(product_call({{3, 5}, {5, 7}, {3, 7}, {}}, DType::kFloat32, true));
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
    (void)rig.run(product_call({{8, 70}, {70, 16}, {8, 16}, {}}, DType::kFloat32, false));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(error.message().find("gpu:0"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace tutti::math_rig
