// Compares operations, layers and attention on a GPU with those on the CPU: results, gradients, and
// memory.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/autograd/gradient_check.h"
#include "tests/gpu/gpu_helpers.h"
#include "tests/layers/every_layer.h"
#include "tests/support/seen_ops.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/generate.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/device_memory.h"

namespace tutti::testing::layers_test {

using MakeLayer = std::function<std::shared_ptr<Layer>()>;

/// Returns a function that creates a new layer on each call, because copies of a layer would share
/// weights.
template <class L, class... Arguments>
MakeLayer made(const Arguments&... arguments) {
  return [=] { return std::make_shared<L>(arguments...); };
}

/// Returns the layer's results, and the gradients of a randomly weighted sum of the results.
std::vector<Tensor> result_and_gradients(const MakeLayer& make, const std::vector<Tensor>& inputs,
                                         Device device, CallContext context) {
  set_random_seed(5);
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  const std::shared_ptr<Layer> layer = make();
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape().without_axis(0));
  (void)layer->build_for(shapes);
  std::uint64_t seed = 11;
  for (Variable weight : layer->trainable_variables()) {
    weight.assign(numbers(weight.shape(), ++seed, -0.6, 0.8));
  }
  std::vector<Tensor> results;
  strategy.run([&] {
    const std::vector<Tensor> x = on(device, inputs);
    GradientTape tape({.persistent = true});
    const bool has_gradient = is_floating(x[0].dtype());
    for (std::size_t i = 0; i < x.size() && has_gradient; ++i) tape.watch(x[i]);
    Tensor target = Tensor::zeros({});
    for (const Tensor& y : layer->apply(x, context)) {
      EXPECT_EQ(y.device(), device);
      results.push_back(cast(y, DType::kFloat32));
      target = target + reduce_sum(results.back() * numbers(y.shape(), 71).to(device));
    }
    const std::vector<Variable> weights = layer->trainable_variables();
    for (const Gradient& gradient : tape.gradient(target, weights)) {
      results.push_back(gradient.to_dense());
    }
    if (!has_gradient) return;
    for (const Gradient& gradient : tape.gradient(target, x)) {
      results.push_back(gradient.to_dense());
    }
  });
  for (const Variable& variable : layer->variables()) results.push_back(variable.value());
  return results;
}

void compare_layer(const MakeLayer& make, const std::vector<Tensor>& inputs,
                   double tolerance = 3e-5) {
  SCOPED_TRACE(make()->type_name());
  for (const bool training : {true, false}) {
    const CallContext context{.training = training};
    try {
      const auto expected = result_and_gradients(make, inputs, Device{}, context);
      const auto actual = result_and_gradients(make, inputs, kGpu, context);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        SCOPED_TRACE(concat("result ", i));
        expect_near(actual[i], expected[i], tolerance);
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(GpuLayers, EveryLayerAgreesWithCpu) {
  const std::size_t count = every_layer().size();
  for (std::size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    compare_layer([i] { return every_layer()[i].layer; }, rows_for(every_layer()[i], 3));
  }
}

TEST(GpuLayers, MaskedLayersAgreeWithCpu) {
  Tensor x = numbers({2, 5, 3}, 1);
  // The second sequence begins with a masked step, so its first query is masked. It also has a
  // masked step between unmasked steps.
  const Tensor counts = Tensor::from<float>({2, 5, 1}, {1, 1, 1, 0, 0, 0, 1, 0, 1, 1});
  x = x * counts;
  const auto make = [] {
    return std::make_shared<Sequential>(Input{{5, 3}}, Masking(),
                                        MultiHeadAttention(2, 4, {.use_causal_mask = true}),
                                        Bidirectional(LSTM(3, {.return_sequences = true})));
  };
  compare_layer(make, {x});
}

TEST(GpuLayers, MixedPoliciesComputeInSixteenBits) {
  for (const char* policy : {"mixed_bfloat16", "mixed_float16"}) {
    set_dtype_policy(policy);
    compare_layer(made<Dense>(5, DenseOptions{.activation = "relu"}), {numbers({4, 6}, 1)}, 3e-2);
    compare_layer(made<Conv2D>(6, 3), {numbers({2, 8, 8, 4}, 1)}, 3e-2);
  }
  set_dtype_policy("float32");
}

class GpuGradients : public OpTableTest {};

TEST_P(GpuGradients, AgreeWithTheCpu) {
  for (const gradient_check::Case& c : gradient_check::cases_of(GetParam())) {
    expect_near_cpu(c, value_and_gradients(c, kGpu), 3e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, GpuGradients, ValuesIn(op_families()), family_name);

TEST(GpuOperations, SecondOrderGradientsRemainOnDevice) {
  const Tensor x = numbers({4, 3}, 5), w = numbers({3, 2}, 6);
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

TEST(GpuOperations, RandomTensorsMatchCpu) {
  const RandomKey key{.seed = 3};
  expect_same_bits(random_normal({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                   random_normal({50}, key, 0.0, 1.0, DType::kFloat32));
  expect_same_bits(random_uniform({50}, key, 0.0, 1.0, DType::kFloat32, kGpu).to(Device{}),
                   random_uniform({50}, key, 0.0, 1.0, DType::kFloat32));
}

/// Arguments of one attention() call.
struct AttentionCase {
  std::int64_t heads, shared, steps, value_steps, features, length;
  AttentionOptions options;
};

/// Returns the result and the gradients with respect to query, key and value.
std::vector<Tensor> attention_and_gradients(const AttentionCase& c) {
  const std::vector<Tensor> inputs =
      on(kGpu, {numbers({2, c.heads, c.steps, c.features}, 1, -2.0, 2.0),
                numbers({2, c.shared, c.value_steps, c.features}, 2, -2.0, 2.0),
                numbers({2, c.shared, c.value_steps, c.length}, 3, -2.0, 2.0)});
  GradientTape tape;
  for (const Tensor& x : inputs) tape.watch(x);
  const Tensor y = attention(inputs[0], inputs[1], inputs[2], c.options);
  std::vector<Tensor> results = {y};
  for (const Gradient& gradient : tape.gradient(reduce_sum(square(y)), inputs))
    results.push_back(gradient.to_dense());
  return on(Device{}, results);
}

TEST(GpuAttention, RepeatedRunsAreBitIdentical) {
  for (const AttentionCase& c : {AttentionCase{4, 2, 70, 70, 16, 16, {.is_causal = true}},
                                 AttentionCase{2, 2, 65, 130, 17, 9, {}}}) {
    const auto first = attention_and_gradients(c), second = attention_and_gradients(c);
    for (std::size_t i = 0; i < first.size(); ++i) expect_same_bits(second[i], first[i]);
  }
}

/// Returns the peak GPU memory, in bytes, that attention over a sequence of `steps` steps adds in
/// its forward and backward passes.
std::size_t peak_of_attention(std::int64_t steps) {
  const Tensor x = numbers({1, 1, steps, 8}, 1).to(kGpu);
  reset_peak_memory(kGpu);
  const std::size_t before = device_memory(kGpu).in_use;
  const SeenOps seen;
  GradientTape tape;
  tape.watch(x);
  const Tensor y = attention(x, x, x, {.is_causal = true});
  const Tensor gradient = tape.gradient(y, x).dense();
  const std::size_t peak = device_memory(kGpu).peak;
  EXPECT_EQ(gradient.to(Device{}).shape(), x.shape());  // waits until the work is done
  EXPECT_TRUE(seen.ops.contains(OpId::kAttention) && seen.ops.contains(OpId::kAttentionGrad));
  EXPECT_FALSE(seen.ops.contains(OpId::kSoftmax));
  return peak - before;
}

TEST(GpuAttention, MemoryGrowsLinearlyWithSequenceLength) {
  // The attention scores would take 32 times as much memory as the result.
  const std::size_t of_result = 256 * 8 * sizeof(float);
  const std::size_t peak = peak_of_attention(256);
  EXPECT_LE(peak, 12 * of_result);
  EXPECT_LE(peak_of_attention(1024), 4.1 * static_cast<double>(peak));
}

constexpr std::int64_t kRowsOfGpt = 4;

/// Losses and generated tokens of a transformer that learns to count by threes modulo 16.
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
  const SeenOps seen;
  result.written = generate(model, Tensor::from<std::int64_t>({1, 3}, {1, 4, 7}),
                            {.max_new_tokens = 5, .sampling = {.temperature = 0.0}})
                       .to_doubles();
  EXPECT_TRUE(seen.ops.contains(OpId::kAttention));
  return result;
}

TEST(GpuAttention, GptTrainsAndGeneratesAsOnCpu) {
  const CountingGpt expected = train_counting_gpt(Device{}), actual = train_counting_gpt(kGpu);
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-3 * expected.losses[i]) << "epoch " << i;
  EXPECT_LT(actual.losses.back(), 0.5 * actual.losses.front());
  EXPECT_EQ(actual.written, (std::vector<double>{1, 4, 7, 10, 13, 0, 3, 6}));
  EXPECT_EQ(actual.written, expected.written);
}

}  // namespace tutti::testing::layers_test
