// Tests attention on a GPU: one operation whose memory grows linearly with the steps, and GPTs that
// train with it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_helpers.h"
#include "tests/support/seen_ops.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/generate.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/device_memory.h"

namespace tutti {
namespace {

using gpu_tests::kGpu;
using gpu_tests::numbers;

/// Arguments of one call.
struct AttentionCase {
  std::int64_t heads, shared, steps, value_steps, features, length;
  AttentionOptions options;
};

/// Returns the result and the gradients of query, key and value.
std::vector<Tensor> attention_and_gradients(const AttentionCase& c) {
  const std::vector<Tensor> inputs =
      gpu_tests::on(kGpu, {numbers({2, c.heads, c.steps, c.features}, 1, -2.0, 2.0),
                           numbers({2, c.shared, c.value_steps, c.features}, 2, -2.0, 2.0),
                           numbers({2, c.shared, c.value_steps, c.length}, 3, -2.0, 2.0)});
  GradientTape tape;
  for (const Tensor& x : inputs) tape.watch(x);
  const Tensor y = attention(inputs[0], inputs[1], inputs[2], c.options);
  std::vector<Tensor> results = {y};
  for (const Gradient& gradient : tape.gradient(reduce_sum(square(y)), inputs))
    results.push_back(gradient.to_dense());
  return gpu_tests::on(Device{}, results);
}

TEST(GpuAttention, GivesTheSameBitsEachTime) {
  for (const AttentionCase& c : {AttentionCase{4, 2, 70, 70, 16, 16, {.is_causal = true}},
                                 AttentionCase{2, 2, 65, 130, 17, 9, {}}}) {
    const auto first = attention_and_gradients(c), second = attention_and_gradients(c);
    for (std::size_t i = 0; i < first.size(); ++i) testing::expect_same_bits(second[i], first[i]);
  }
}

/// Returns the peak bytes of the GPU for attention over so many steps, forward and backward.
std::size_t peak_of_attention(std::int64_t steps) {
  const Tensor x = numbers({1, 1, steps, 8}, 1).to(kGpu);
  reset_peak_memory(kGpu);
  const std::size_t before = device_memory(kGpu).in_use;
  const thrown::SeenOps seen;
  GradientTape tape;
  tape.watch(x);
  const Tensor y = attention(x, x, x, {.is_causal = true});
  const Tensor gradient = tape.gradient(y, x).dense();
  const std::size_t peak = device_memory(kGpu).peak;
  EXPECT_EQ(gradient.to(Device{}).shape(), x.shape());  // the work is done
  EXPECT_TRUE(seen.ops.contains(OpId::kAttention) && seen.ops.contains(OpId::kAttentionGrad));
  EXPECT_FALSE(seen.ops.contains(OpId::kSoftmax));
  return peak - before;
}

TEST(GpuAttention, TakesMemoryOfTheNumberOfStepsNotOfItsSquare) {
  const std::size_t of_result = 256 * 8 * sizeof(float);  // scores would take 32 times as much
  const std::size_t peak = peak_of_attention(256);
  EXPECT_LE(peak, 12 * of_result);
  EXPECT_LE(peak_of_attention(1024), 4.1 * static_cast<double>(peak));
}

constexpr std::int64_t kRowsOfGpt = 4;

/// Learns to count by threes modulo 16; holds its losses and its continuation.
struct CountingGpt {
  std::vector<double> losses;
  std::vector<double> written;
};

CountingGpt train_counting_gpt(Device device) {
  set_random_seed(17);
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  Sequential model(Input{{12}}, Embedding(16, 16),
                   TransformerBlock(2, 8, 32, TransformerBlockOptions{.num_key_value_heads = 1}),
                   RMSNormalization(), Dense(16));
  model.compile({.optimizer = AdamOptions{.learning_rate = 0.03},
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  std::vector<std::int64_t> tokens, next;
  for (std::int64_t row = 0; row < kRowsOfGpt; ++row) {
    for (std::int64_t step = 0; step < 12; ++step) {
      tokens.push_back((4 * row + 3 * step) % 16);
      next.push_back((4 * row + 3 * step + 3) % 16);
    }
  }
  CountingGpt result;
  result.losses = model.fit(
      Tensor::from(Shape{kRowsOfGpt, 12}, tokens), Tensor::from(Shape{kRowsOfGpt, 12}, next),
      {.epochs = 16, .batch_size = kRowsOfGpt, .verbose = Verbosity::kSilent})["loss"];
  const thrown::SeenOps seen;
  result.written = generate(model, Tensor::from<std::int64_t>({1, 3}, {1, 4, 7}),
                            {.max_new_tokens = 5, .sampling = {.temperature = 0.0}})
                       .to_doubles();
  EXPECT_TRUE(seen.ops.contains(OpId::kAttention));
  return result;
}

TEST(GpuAttention, AGptTrainsAndWritesAsOnTheCpu) {
  const CountingGpt expected = train_counting_gpt(Device{}), actual = train_counting_gpt(kGpu);
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-3 * expected.losses[i]) << "epoch " << i;
  EXPECT_LT(actual.losses.back(), 0.5 * actual.losses.front());
  EXPECT_EQ(actual.written, (std::vector<double>{1, 4, 7, 10, 13, 0, 3, 6}));
  EXPECT_EQ(actual.written, expected.written);
}

}  // namespace
}  // namespace tutti
