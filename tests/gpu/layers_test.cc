// Tests layers on a GPU: results and gradients of weights and inputs, compared with the CPU's.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/gpu/gpu_helpers.h"
#include "tests/layers/every_layer.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/strategies.h"

namespace tutti {
namespace {

using gpu_tests::expect_near;
using gpu_tests::kGpu;
using gpu_tests::numbers;

using MakeLayer = std::function<std::shared_ptr<Layer>()>;

/// Makes a new layer in each call, because copies would share its weights.
template <class L, class... Arguments>
MakeLayer made(const Arguments&... arguments) {
  return [=] { return std::make_shared<L>(arguments...); };
}

/// Returns the layer's results, and the gradients of their weighted sum with weights from a fixed
/// seed.
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
    const std::vector<Tensor> x = gpu_tests::on(device, inputs);
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

TEST(GpuLayers, AllAgreeWithTheCpu) {
  const std::size_t count = layer_tests::every_layer().size();
  for (std::size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    compare_layer([i] { return layer_tests::every_layer()[i].layer; },
                  rows_for(layer_tests::every_layer()[i], 3));
  }
}

TEST(GpuLayers, MasksAgreeWithTheCpu) {
  Tensor x = numbers({2, 5, 3}, 1);
  // The second sequence begins with a gap, whose query is masked, and has another gap inside.
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

}  // namespace
}  // namespace tutti
