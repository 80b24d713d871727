// Tests recompute_grad: gradients of values that were not kept, with equal bits.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/recompute.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/tensor/device_memory.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::recompute_test {

Tensor normal(const Shape& shape, std::uint64_t number) {
  return random_normal(shape, RandomKey{4, kUserPurpose, number, 0, 0});
}

/// Block that is called plainly, or through recompute_grad.
using Block =
    std::function<Tensor(const RecomputedFunction&, const Tensor&, const std::vector<Variable>&)>;

Tensor plain(const RecomputedFunction& function, const Tensor& x, const std::vector<Variable>&) {
  return function({&x, 1}).at(0);
}
Tensor again(const RecomputedFunction& function, const Tensor& x,
             const std::vector<Variable>& variables) {
  return recompute_grad(function, {&x, 1}, variables).at(0);
}

std::vector<std::vector<double>> numbers(const std::vector<Gradient>& gradients) {
  std::vector<std::vector<double>> all;
  for (const Gradient& each : gradients) {
    all.push_back(each.is_none() ? std::vector<double>() : each.to_dense().to_doubles());
  }
  return all;
}

/// Values are used several times inside and outside, so the bits of sums depend on their order.
std::vector<std::vector<double>> gradients_with(const Block& block) {
  const std::vector<Variable> w = {Variable(normal({5, 5}, 1)), Variable(normal({5, 5}, 2)),
                                   Variable(normal({3}, 3))};
  const Tensor x = normal({4, 5}, 4);
  GradientTape tape;
  tape.watch(x);
  const auto inner = [&](std::span<const Tensor> in) {
    const Tensor a = matmul(in[0], w[0]), b = matmul(in[0], w[1]), c = matmul(in[0], w[0]);
    return std::vector<Tensor>{tanh(a) * sigmoid(b) + c * in[0]};
  };
  const Tensor h = tanh(matmul(x, w[0]) + x);
  const Tensor first = h + block(inner, h, {w[0], w[1]});
  const Tensor second = first * 0.5f + block(inner, first, {w[0], w[1]}) + h;
  const Tensor loss = reduce_sum(square(second + matmul(second, w[1])));
  auto all = numbers(tape.gradient(loss, w));
  return all;
}

TEST(Recompute, SumsAreAddedInTheOrderOfThePlainWalk) {
  EXPECT_EQ(gradients_with(again), gradients_with(plain));
}

TEST(Recompute, GradientsOfInputs) {
  const auto gradient_with = [](const Block& block) {
    const Tensor x = normal({6}, 1);
    const auto cube = [](std::span<const Tensor> in) {
      return std::vector<Tensor>{in[0] * in[0] * in[0]};
    };
    GradientTape tape;
    tape.watch(x);
    return tape.gradient(reduce_sum(block(cube, x, {}) * x), x).dense().to_doubles();
  };
  EXPECT_EQ(gradient_with(again), gradient_with(plain));
}

TEST(Recompute, GradientsOfGradients) {
  const auto second_with = [](const Block& block) {
    const std::vector<Variable> w = {Variable(normal({6}, 1))};
    const Tensor x = normal({6}, 2);
    const auto inner = [&](std::span<const Tensor> in) {
      return std::vector<Tensor>{in[0] * w[0].value() * square(w[0].value())};
    };
    GradientTape outer, tape;
    const Tensor loss = reduce_sum(block(inner, x, w));
    const Tensor first = tape.gradient(loss, w[0]).dense();
    return outer.gradient(reduce_sum(square(first)), w[0]).dense().to_doubles();
  };
  EXPECT_EQ(second_with(again), second_with(plain));
}

TEST(Recompute, APersistentTapeComputesAgainEachTime) {
  int calls = 0;
  const Variable w(normal({3}, 1));
  const auto inner = [&](std::span<const Tensor> in) {
    ++calls;
    return std::vector<Tensor>{square(w) * in[0], in[0]};
  };
  GradientTape tape({.persistent = true});
  const Tensor x = Tensor::ones({3});
  const std::vector<Tensor> y = recompute_grad(inner, {&x, 1}, {&w, 1});
  EXPECT_EQ(calls, 1);
  const auto once = tape.gradient(reduce_sum(y[0]), w).dense().to_doubles();
  EXPECT_EQ(tape.gradient(reduce_sum(y[0]), w).dense().to_doubles(), once);
  EXPECT_EQ(calls, 3);
  EXPECT_TRUE(tape.gradient(reduce_sum(y[1]), w).is_none());
}

TEST(Recompute, WritesAreMadeOnce) {
  Variable count(Tensor(0.0f), {.trainable = false});
  const Variable w(Tensor(2.0f));
  const auto inner = [&](std::span<const Tensor> in) {
    count.assign_add(1.0);
    return std::vector<Tensor>{in[0] * w};
  };
  const Tensor x(3.0f);
  GradientTape tape;
  const Tensor y = recompute_grad(inner, {&x, 1}, {&w, 1}).at(0);
  EXPECT_EQ(tape.gradient(y, w).dense().item(), 3.0f);
  EXPECT_EQ(count.value().item(), 1.0f);
  (void)recompute_grad(inner, {&x, 1}, {&w, 1});  // without a tape, calls the function directly
  EXPECT_EQ(count.value().item(), 2.0f);
}

TEST(Recompute, MemoryIsThatOfTheInputs) {
  constexpr std::int64_t kCount = 1 << 16;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  const Device device{DeviceType::kCpu, 5};
  set_memory_limit(device, kUnlimitedMemory);
  const auto held_with = [&](const Block& block) {
    const Tensor x = Tensor::ones({kCount}, DType::kFloat32, device);
    const auto inner = [](std::span<const Tensor> in) {
      Tensor y = in[0];
      for (int i = 0; i < 6; ++i) y = tanh(y);
      return std::vector<Tensor>{y};
    };
    GradientTape tape;
    tape.watch(x);
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = block(inner, y, {});
    const std::size_t held = device_memory(device).in_use;
    EXPECT_EQ(tape.gradient(reduce_sum(y), x).dense().num_elements(), kCount);
    return held / kBytes;
  };
  EXPECT_EQ(held_with(plain), 25U);  // x, and 4 * 6 values
  EXPECT_EQ(held_with(again), 5U);   // x, and 4 results
  clear_memory_limit(device);
}

}  // namespace tutti::recompute_test
