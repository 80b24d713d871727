// Plain SGD and the sum of its gradients in registers: the bits of one after the other.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/shared/sgd_pass.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/tensor/cpu/vectorized.h"

namespace tutti {
namespace {

using internal::sum_and_sgd_past_caches;
using internal::UpdateRange;

struct alignas(64) LineOfFloats {
  std::array<float, 16> values;
};

/// Gradients and weights of some ranks, weights at the beginning of a line of memory.
struct RanksOfFloats {
  RanksOfFloats(std::size_t ranks, std::size_t count) : count(count) {
    for (std::size_t r = 0; r < ranks; ++r) {
      gradients.emplace_back(count + 1);
      for (std::size_t i = 0; i < count; ++i) {
        gradients[r][i + 1] = std::sin(0.7f * static_cast<float>(i) + static_cast<float>(r));
      }
      weights.emplace_back(count / 16 + 1);
      for (std::size_t i = 0; i < count; ++i) {
        weight(r)[i] = std::cos(0.3f * static_cast<float>(i));
      }
    }
  }
  float* weight(std::size_t rank) { return weights[rank].front().values.data(); }
  UpdateRange range(std::size_t reader) {
    gradients_at.clear(), weights_at.clear();
    for (std::size_t r = 0; r < gradients.size(); ++r) {  // gradients begin anywhere
      gradients_at.push_back(reinterpret_cast<const std::byte*>(gradients[r].data() + 1));
      weights_at.push_back(reinterpret_cast<std::byte*>(weight(r)));
    }
    return {DType::kFloat32, count, gradients_at, weights_at, {}, reader};
  }

  const std::size_t count;
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<LineOfFloats>> weights;
  std::vector<const std::byte*> gradients_at;
  std::vector<std::byte*> weights_at;
};

bool has_wide_vectors() {
#if defined(__x86_64__)
  return internal::widest_vectors() == internal::Vectors::kAvx512;
#else
  return false;
#endif
}

TEST(SumAndSgd, HasTheBitsOfTheSumAlongTheTreeAndTheRulesOwnStep) {
  const SgdRule rule;
  const UpdateScalars scalars{.learning_rate = 0.05, .gradient_scale = 0.3};
  for (std::size_t ranks = 2; ranks <= 8; ++ranks) {
    for (const std::size_t count : {0u, 1u, 16u, 1003u}) {
      for (const bool mean : {false, true}) {
        RanksOfFloats replicas(ranks, count);
        const UpdateRange range = replicas.range(ranks - 1);
        std::vector<float> sum(count), expected(count);
        std::copy_n(replicas.weight(0), count, expected.data());
        reduce_along_tree(ReduceOp::kSum, DType::kFloat32, range.gradients,
                          reinterpret_cast<std::byte*>(sum.data()), count);
        for (float& each : sum) each = mean ? each / static_cast<float>(ranks) : each;
        rule.apply({DType::kFloat32, count, expected.data(), {}, sum.data(), scalars});

        const bool done = sum_and_sgd_past_caches(rule, scalars, mean, range);
        EXPECT_EQ(done, has_wide_vectors());
        if (!done) std::copy_n(expected.data(), count, replicas.weight(0));
        for (std::size_t r = 0; r < (done ? ranks : 1); ++r) {
          const std::vector<float> got(replicas.weight(r), replicas.weight(r) + count);
          EXPECT_EQ(got, expected) << "rank " << r << " of " << ranks << ", mean " << mean;
        }
      }
    }
  }
}

TEST(SumAndSgd, LeavesWhatItCannotDoAsItIs) {
  RanksOfFloats replicas(2, 64);
  const std::vector<float> before(replicas.weight(0), replicas.weight(0) + 64);
  const auto refuses = [&](const UpdateRule& rule, const UpdateRange& range) {
    return !sum_and_sgd_past_caches(rule, {.learning_rate = 0.1}, false, range) &&
           std::equal(before.begin(), before.end(), replicas.weight(0));
  };
  EXPECT_TRUE(refuses(SgdRule(0.9), replicas.range(0)));
  EXPECT_TRUE(refuses(AdamRule(), replicas.range(0)));
  UpdateRange doubles = replicas.range(0);
  doubles.dtype = DType::kFloat64;
  EXPECT_TRUE(refuses(SgdRule(), doubles));
  UpdateRange shared = replicas.range(0);
  replicas.weights_at[1] = replicas.weights_at[0];
  EXPECT_TRUE(refuses(SgdRule(), shared));
  UpdateRange odd = replicas.range(0);
  replicas.weights_at[1] += 4;
  odd.count = 32;
  EXPECT_TRUE(refuses(SgdRule(), odd));
}

}  // namespace
}  // namespace tutti
