// Attention on GPUs, forward and backward, against the CPU's: tiles, causal masks, shared heads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_attention_test {

using testing::compare_with_cpu;
using testing::device_test_call;
using testing::random_values;
using testing::run_on_device;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16};

/// Of a call. The kernels have tiles of 64 queries and 64 keys, and gather 128 columns at once.
struct Sizes {
  std::int64_t batch, heads, shared, steps, value_steps, features, length;
  bool is_causal = false;
  std::int64_t steps_before = 0;

  AttentionAttributes attributes() const {
    const double count = features == 0 ? 1.0 : static_cast<double>(features);
    return {1.0 / std::sqrt(count), is_causal, steps_before};
  }
};

OpCall forward_of(const Sizes& s, DType dtype) {
  const DType of_sums = is_half(dtype) ? DType::kFloat32 : dtype;
  return device_test_call(
      OpId::kAttention,
      {random_values({s.batch, s.heads, s.steps, s.features}, dtype, -3, 3, 1),
       random_values({s.batch, s.shared, s.value_steps, s.features}, dtype, -3, 3, 2),
       random_values({s.batch, s.shared, s.value_steps, s.length}, dtype, -1, 1, 3)},
      {{Shape{s.batch, s.heads, s.steps, s.length}, dtype},
       {Shape{s.batch, s.heads, s.steps}, of_sums}},
      s.attributes());
}

OpCall backward_of(const OpCall& forward) {
  const std::vector<Tensor> results = run_kernel(reference_kernels(), forward);
  std::vector<Tensor> inputs = forward.inputs;
  inputs.insert(inputs.end(), results.begin(), results.end());
  inputs.push_back(random_values(results[0].shape(), results[0].dtype(), -1, 1, 4));
  std::vector<TensorSpec> outputs;
  for (const Tensor& input : forward.inputs) outputs.push_back({input.shape(), input.dtype()});
  return device_test_call(OpId::kAttentionGrad, inputs, outputs, forward.attributes);
}

void compare(const Sizes& s, DType dtype, std::size_t misalignment = 0) {
  SCOPED_TRACE(concat(s.is_causal ? "causal, before: " : "before: ", s.steps_before));
  const OpCall forward = forward_of(s, dtype);
  EXPECT_TRUE(compare_with_cpu(forward, {100}, misalignment));
  EXPECT_TRUE(compare_with_cpu(backward_of(forward), {400}, misalignment));
}

TEST(CudaAttention, AgreesWithTheCpuInEveryType) {
  for (const DType dtype : kTypes) {
    for (const Sizes& s : {Sizes{1, 1, 1, 1, 1, 1, 1}, Sizes{2, 3, 3, 5, 7, 4, 3},
                           Sizes{2, 4, 2, 70, 70, 6, 6, true}, Sizes{1, 2, 1, 3, 90, 20, 17}})
      compare(s, dtype);
    compare({2, 2, 1, 5, 6, 3, 5, true}, dtype, 1);
  }
}

TEST(CudaAttention, OfWholeAndBrokenTilesAgreesWithTheCpu) {
  for (const bool is_causal : {false, true}) {
    for (const auto& [steps, value_steps] :
         {std::pair<std::int64_t, std::int64_t>{64, 64}, {63, 65}, {65, 63}, {129, 128}, {64, 200}})
      compare({1, 2, 2, steps, value_steps, 17, 9, is_causal}, DType::kFloat32);
  }
}

TEST(CudaAttention, BehindACacheSeesWhatCameBefore) {
  for (const std::int64_t before : {0, 1, 63, 64, 100, 150})
    compare({1, 2, 1, 70, 170, 8, 8, true, before}, DType::kFloat32);
}

TEST(CudaAttention, OfOneQuerySeesAllKeysBeforeIt) {
  compare({2, 4, 2, 1, 260, 8, 8, true, 259}, DType::kFloat32);
  compare({1, 2, 2, 1, 65, 8, 8, true, 20}, DType::kFloat64);
}

TEST(CudaAttention, AddsTheGradientsOfAllHeadsThatShareAKey) {
  compare({2, 6, 2, 66, 66, 8, 4, true}, DType::kFloat32);
  compare({1, 8, 1, 10, 70, 8, 4}, DType::kFloat64);
}

TEST(CudaAttention, OfWideHeadsIsGatheredInParts) {
  compare({1, 2, 1, 10, 12, 64, 128, true}, DType::kFloat32);
  compare({1, 1, 1, 70, 66, 129, 260}, DType::kFloat32);
  compare({1, 1, 1, 5, 9, 300, 129}, DType::kFloat64);
}

TEST(CudaAttention, OfNothingIsZeroOrEmpty) {
  for (const Sizes& s : {Sizes{2, 2, 2, 3, 0, 4, 4}, Sizes{0, 2, 2, 3, 4, 4, 4},
                         Sizes{1, 2, 2, 0, 4, 4, 4}, Sizes{1, 2, 2, 3, 4, 4, 0}})
    compare(s, DType::kFloat32);
}

TEST(CudaAttention, WithoutFeaturesIsTheMeanOfWhatIsSeen) {
  compare({1, 2, 1, 130, 130, 0, 64, true}, DType::kFloat32);
}

TEST(CudaAttention, OfLargeScoresStaysFinite) {
  OpCall call = forward_of({1, 1, 1, 2, 3, 1, 1}, DType::kFloat32);
  call.inputs = {Tensor::full({1, 1, 2, 1}, 1e4), Tensor::from<float>({1, 1, 3, 1}, {-1e3, 1e3, 9}),
                 Tensor::from<float>({1, 1, 3, 1}, {1, 2, 3})};
  EXPECT_TRUE(compare_with_cpu(call, {10}));
  testing::expect_tensor(run_on_device(call)[0], {1, 1, 2, 1}, {2, 2}, 1e-6);
}

// A later key may be the first that is NaN: then the query that sees it is, and none before.
TEST(CudaAttention, NanReachesTheQueriesThatSeeIt) {
  OpCall call = forward_of({1, 1, 1, 3, 3, 1, 1, true}, DType::kFloat32);
  call.inputs[1] = Tensor::from<float>({1, 1, 3, 1}, {1, 2, std::nanf("")});
  const std::vector<double> result = run_on_device(call)[0].to_doubles();
  EXPECT_TRUE(std::isfinite(result[0]) && std::isfinite(result[1]));
  EXPECT_TRUE(std::isnan(result[2]));
}

}  // namespace cuda_attention_test
}  // namespace tutti
