// Operations and their gradients on a GPU, compared with the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include "tests/autograd/gradient_cases_elementwise.h"
#include "tests/autograd/gradient_cases_linear.h"
#include "tests/autograd/gradient_cases_other.h"
#include "tests/gpu/gpu_helpers.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti {
namespace {

using gpu_tests::expect_near;
using gpu_tests::kGpu;
using gradient_check::Case;

/// The result of the case's function and the gradients of its weighted sum, on `device`.
std::vector<Tensor> value_and_gradients(const Case& c, const std::vector<Tensor>& inputs,
                                        Device device) {
  const std::vector<Tensor> moved = gpu_tests::on(device, inputs);
  const std::vector<Tensor> sources = gradient_check::checked_inputs(c, moved);
  GradientTape tape;
  for (const Tensor& source : sources) tape.watch(source);
  const Tensor y = c.function(moved);
  EXPECT_EQ(y.device(), device);
  const Tensor weights = cast(gradient_check::random_tensor(y.shape(), 1, 0.5, 1.5), y.dtype());
  std::vector<Tensor> results = {y};
  for (const Gradient& gradient : tape.gradient(reduce_sum(y * weights.to(device)), sources)) {
    results.push_back(gradient.is_none() ? Tensor() : gradient.to_dense());
  }
  return results;
}

void compare_on_gpu(const Case& c) {
  std::vector<Tensor> inputs;
  for (const Tensor& input : gradient_check::make_inputs(c)) {
    inputs.push_back(input.dtype() == DType::kFloat64 ? cast(input, DType::kFloat32) : input);
  }
  const std::vector<Tensor> expected = value_and_gradients(c, inputs, Device{});
  const std::vector<Tensor> actual = value_and_gradients(c, inputs, kGpu);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i == 0 ? std::string("value") : concat("gradient ", i - 1));
    ASSERT_EQ(actual[i].defined(), expected[i].defined());
    if (expected[i].defined()) expect_near(actual[i], expected[i], 3e-5);
  }
}

void compare_all_on_gpu(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(concat(to_string(c.op), " ", c.name));
    try {
      compare_on_gpu(c);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(GpuOperations, UnaryAgreeWithTheCpu) { compare_all_on_gpu(gradient_check::unary_cases()); }
TEST(GpuOperations, BinaryAgreeWithTheCpu) { compare_all_on_gpu(gradient_check::binary_cases()); }
TEST(GpuOperations, ActivationGradsAgreeWithTheCpu) {
  compare_all_on_gpu(gradient_check::activation_grad_cases());
}
TEST(GpuOperations, ReductionsAgreeWithTheCpu) {
  compare_all_on_gpu(gradient_check::reduction_cases());
}
TEST(GpuOperations, MatmulAgreesWithTheCpu) { compare_all_on_gpu(gradient_check::matmul_cases()); }
TEST(GpuOperations, ConvolutionAgreesWithTheCpu) {
  compare_all_on_gpu(gradient_check::convolution_cases());
}
TEST(GpuOperations, PoolingAgreesWithTheCpu) {
  compare_all_on_gpu(gradient_check::pooling_cases());
}
TEST(GpuOperations, NormalizationAgreesWithTheCpu) {
  compare_all_on_gpu(gradient_check::normalization_cases());
}
TEST(GpuOperations, SoftmaxAgreesWithTheCpu) {
  compare_all_on_gpu(gradient_check::softmax_cases());
}
TEST(GpuOperations, AttentionAgreesWithTheCpu) {
  compare_all_on_gpu(gradient_check::attention_cases());
}
TEST(GpuOperations, ShapeAgreesWithTheCpu) { compare_all_on_gpu(gradient_check::shape_cases()); }

TEST(GpuOperations, SecondOrderGradientsStayOnTheDevice) {
  const Tensor x = gpu_tests::numbers({4, 3}, 5), w = gpu_tests::numbers({3, 2}, 6);
  const auto second = [&](Device device) {
    const Tensor there = x.to(device), weights = w.to(device);
    GradientTape outer;
    outer.watch(there);
    Tensor norm;
    {
      GradientTape inner;
      inner.watch(there);
      const Tensor y = reduce_sum(square(tanh(matmul(there, weights))));
      norm = reduce_sum(square(inner.gradient(y, there).dense()));
    }
    return outer.gradient(norm, there).dense();
  };
  expect_near(second(kGpu), second(Device{}), 3e-5);
}

TEST(GpuOperations, RandomTensorsAreThoseOfTheCpu) {
  const RandomKey key{.seed = 3};
  testing::expect_same_bits(random_normal({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                            random_normal({50}, key, 0.0, 1.0, DType::kFloat32));
  testing::expect_same_bits(random_uniform({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                            random_uniform({50}, key, 0.0, 1.0, DType::kFloat32));
  const Tensor x = gpu_tests::numbers({100}, 4);
  expect_near(dropout(x.to(kGpu), 0.5, key), dropout(x, 0.5, key), 1e-6);
}

TEST(GpuOperations, HalfTypesAgreeWithTheCpu) {
  const Tensor a = gpu_tests::numbers({8, 16}, 5), b = gpu_tests::numbers({16, 4}, 6);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const double tolerance = dtype == DType::kBFloat16 ? 2e-2 : 3e-3;
    const auto result = [&](Device device) {
      const Tensor x = cast(a.to(device), dtype), y = cast(b.to(device), dtype);
      return cast(softmax(relu(matmul(x, y) * 2.0f)), DType::kFloat32);
    };
    expect_near(result(kGpu), result(Device{}), tolerance);
  }
}

}  // namespace
}  // namespace tutti
