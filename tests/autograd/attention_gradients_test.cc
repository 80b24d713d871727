// Attention on a tape: what it keeps, and gradients of gradients.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tensor/buffer_allocator.h"
#include "tests/autograd/gradient_check.h"

namespace tutti {
namespace {

using gradient_check::random_tensor;

constexpr std::int64_t kHeads = 2, kFeatures = 8;

/// Bytes that attention over so many steps, forward and backward, has in use at once.
std::size_t peak_of(std::int64_t steps, bool fused) {
  const Tensor x = cast(random_tensor({1, kHeads, steps, kFeatures}, 1), DType::kFloat32);
  const std::size_t before = host_allocator().statistics().in_use;
  host_allocator().reset_peak();
  GradientTape tape;
  tape.watch(x);
  Tensor y;
  if (fused) {
    y = attention(x, x, x, {.is_causal = true});
  } else {
    const Tensor seen = internal::causal_mask(steps, steps, 0, x.device());
    y = internal::mixed_values(internal::attention_shares(x, x, 0.5, seen), x);
  }
  EXPECT_FALSE(tape.gradient(y, x).is_none());
  return host_allocator().statistics().peak_in_use - before;
}

TEST(AttentionGradients, TakeMemoryOfTheNumberOfStepsNotOfItsSquare) {
  const std::size_t of_result = 512 * kHeads * kFeatures * sizeof(float);
  EXPECT_LE(peak_of(512, true), 12 * of_result);
  EXPECT_LE(peak_of(2048, true), 4.1 * static_cast<double>(peak_of(512, true)));
  // What the test would see of scores.
  EXPECT_GE(peak_of(512, false), 512 * 512 * kHeads * sizeof(float));
}

TEST(AttentionGradients, OfTapesThatSeeThemAreMadeOfOtherOperations) {
  const Tensor x = random_tensor({1, 2, 3, 4}, 1);
  const auto ops_of = [&](bool persistent) {
    const thrown::SeenOps seen;
    GradientTape tape({.persistent = persistent});
    tape.watch(x);
    const Tensor y = attention(x, x, x);
    (void)tape.gradient(y, x);
    return seen.ops;
  };
  EXPECT_TRUE(ops_of(false).contains(OpId::kAttentionGrad));
  EXPECT_FALSE(ops_of(true).contains(OpId::kAttentionGrad));
}

}  // namespace
}  // namespace tutti
