// Tests dtype policies, layers under device scopes, and rematerialization.
// SPDX-License-Identifier: Apache-2.0

#include "tests/layers/layer_checks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/random.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::mixed_policy_test {

using layer_tests::PolicyScope;

Tensor inputs_of(const Shape& example) {
  std::vector<std::int64_t> dims = {3};
  for (const std::int64_t dim : example) dims.push_back(dim);
  return random_uniform(Shape{std::span<const std::int64_t>(dims)}, {.seed = 5}, -1.0, 1.0);
}

/// Calls `layer` on a batch and takes the gradient of a weighted mean of the result.
struct Step {
  Tensor y;
  std::vector<Gradient> gradients;
};
Step step_of(Layer& layer, const Shape& example) {
  layer.build_for(example);
  GradientTape tape;
  Step step;
  step.y = layer(inputs_of(example), {.training = true});
  const Tensor factors = random_uniform(step.y.shape(), {.seed = 6}, 0.5, 1.5);
  const Tensor loss = reduce_mean(factors * cast(step.y, DType::kFloat32));
  const std::vector<Variable> weights = layer.trainable_variables();
  step.gradients = tape.gradient(loss, weights);
  return step;
}

/// Runs a layer under float32 and under `policy`; the results must agree within the type's
/// precision.
template <class Make>
void check_layer(const char* policy, const Shape& example, const Make& make) {
  const double epsilon = std::string(policy) == "mixed_float16" ? 0x1p-9 : 0x1p-6;
  set_random_seed(3);
  auto exact_layer = make();
  const Step exact = step_of(exact_layer, example);
  set_random_seed(3);
  const PolicyScope scope(policy);
  auto layer = make();
  SCOPED_TRACE(concat(policy, " ", layer.type_name()));
  const Step step = step_of(layer, example);
  EXPECT_EQ(step.y.dtype(), DTypePolicy(policy).compute);
  for (const Variable& weight : layer.variables()) EXPECT_EQ(weight.dtype(), DType::kFloat32);
  const auto close = [&](const Tensor& actual, const Tensor& expected) {
    double largest = 0;
    for (const double value : expected.to_doubles()) largest = std::max(largest, std::abs(value));
    tutti::testing::expect_tensor(
        cast(actual, DType::kFloat64) / std::max(largest, 1e-6), expected.shape(),
        (cast(expected, DType::kFloat64) / std::max(largest, 1e-6)).to_doubles(), 16 * epsilon);
  };
  close(step.y, exact.y);
  const std::vector<Variable> weights = layer.trainable_variables();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    SCOPED_TRACE(weights[i].name());
    ASSERT_TRUE(step.gradients[i].is_dense());
    EXPECT_EQ(step.gradients[i].dense().dtype(), DType::kFloat32);
    close(step.gradients[i].dense(), exact.gradients[i].dense());
  }
}

TEST(MixedPolicy, LayersComputeIn16BitsAndKeepFloat32Weights) {
  for (const char* policy : {"mixed_bfloat16", "mixed_float16"}) {
    check_layer(policy, {6}, [] { return Dense(4, {.activation = "relu"}); });
    check_layer(policy, {6, 6, 3}, [] { return Conv2D(4, 3, {.activation = "tanh"}); });
    check_layer(policy, {6, 6, 3}, [] { return SeparableConv2D(4, 3); });
    check_layer(policy, {4, 4, 3}, [] { return Conv2DTranspose(2, 3); });
    check_layer(policy, {8, 3}, [] { return Conv1D(4, 3); });
    check_layer(policy, {5, 6}, [] { return BatchNormalization(); });
    check_layer(policy, {5, 6}, [] { return LayerNormalization(); });
    check_layer(policy, {5, 6}, [] { return GroupNormalization(2); });
    check_layer(policy, {4, 3}, [] { return LSTM(4); });
    check_layer(policy, {4, 3}, [] { return GRU(4); });
    check_layer(policy, {6, 6, 2}, [] { return MaxPooling2D(); });
    check_layer(policy, {6}, [] { return PReLU(); });
    check_layer(policy, {5, 6}, [] {
      return MultiHeadAttention(2, 4, {.use_bias = false, .use_causal_mask = true});
    });
  }
}

TEST(MixedPolicy, StatisticsAreThoseOfFloat32) {
  const PolicyScope scope("mixed_float16");
  BatchNormalization layer;
  layer.build_for(Shape{1});
  // The squares exceed float16.
  const Tensor x = Tensor::from<float>({2, 1}, {1000.0f, 3000.0f});
  const Tensor y = layer(x, {.training = true});
  tutti::testing::expect_tensor(y, {2, 1}, {-1, 1});
  tutti::testing::expect_tensor(layer.variables()[3].value(), {1}, {0.99 + 0.01 * 1e6}, 1e-6);
}

TEST(MixedPolicy, SmallVectorsKeepTheirDirection) {
  const PolicyScope scope("mixed_float16");
  UnitNormalization layer;
  layer.build_for(Shape{2});
  // The squares underflow to 0 in float16.
  tutti::testing::expect_tensor(layer(Tensor::from<float>({1, 2}, {3e-5f, 4e-5f})), {1, 2},
                                {0.6, 0.8}, 2e-3);
}

TEST(MixedPolicy, EmbeddingsAreReadIn16Bits) {
  const PolicyScope scope("mixed_bfloat16");
  Embedding layer(5, 3);
  layer.build_for(Shape{2});
  GradientTape tape;
  const Tensor y = layer(Tensor::from<std::int64_t>({1, 2}, {4, 4}));
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
  const std::vector<Variable> weights = layer.variables();
  const Gradient gradient = tape.gradient(reduce_sum(y), weights)[0];
  const Tensor dense = gradient.is_dense() ? gradient.dense() : gradient.slices().to_dense();
  EXPECT_EQ(dense.dtype(), DType::kFloat32);
  EXPECT_EQ(reduce_sum(dense).item(), 6.0f);
}

class LeftOperand : public LayerOf<LeftOperand> {
 public:
  LeftOperand() = default;

 protected:
  Shape build(const Shape& input) override {
    add_weight("ones", input, {.name = "weight"});
    add_weight("ones", input, {.name = "counter", .trainable = false, .autocast = false});
    return input;
  }
  Tensor call(const Tensor& input, CallContext) const override {
    EXPECT_EQ(weight(1).value().dtype(), DType::kFloat32);
    return weight(0) + input;
  }
};

TEST(MixedPolicy, AutocastVariableAsLeftOperandHasAGradient) {
  const PolicyScope scope("mixed_float16");
  LeftOperand layer;
  layer.build_for(Shape{2});
  GradientTape tape;
  const Tensor y = layer(Tensor::ones({3, 2}));
  EXPECT_EQ(y.dtype(), DType::kFloat16);
  const std::vector<Variable> weights = layer.trainable_variables();
  ASSERT_EQ(weights.size(), 1u);
  const Gradient gradient = tape.gradient(reduce_sum(y), weights)[0];
  ASSERT_TRUE(gradient.is_dense());
  tutti::testing::expect_tensor(gradient.dense(), {2}, {3, 3});
  EXPECT_EQ(gradient.dense().dtype(), DType::kFloat32);
}

TEST(MixedPolicy, AScopeEndsWithTheLayer) {
  const Variable weight(Tensor::ones({1}));
  {
    const AutocastScope outer(DType::kBFloat16);
    EXPECT_EQ(weight.value().dtype(), DType::kBFloat16);
    const AutocastScope inner(std::nullopt);
    EXPECT_EQ(weight.value().dtype(), DType::kFloat32);
  }
  EXPECT_EQ(weight.value().dtype(), DType::kFloat32);
}

TEST(MixedPolicy, OneLayerMayHaveItsOwn) {
  const PolicyScope scope("mixed_float16");
  Dense head(2);
  head.set_dtype_policy("float32");
  head.build_for(Shape{3});
  EXPECT_EQ(head(Tensor::ones({1, 3}, DType::kFloat16)).dtype(), DType::kFloat32);
  EXPECT_EQ(head.dtype_policy().name, "float32");
  EXPECT_ERROR(head.set_dtype_policy("float64"), kFailedPrecondition, "before the layer is added");
}

TEST(MixedPolicy, LossesOfHalfPredictionsAreFloat32) {
  const Loss loss("mse");
  const Tensor value =
      loss.per_example(Tensor::zeros({2, 1}), Tensor::full({2, 1}, 300, DType::kFloat16));
  EXPECT_EQ(value.dtype(), DType::kFloat32);
  tutti::testing::expect_tensor(value, {2}, {90000, 90000});  // exceeds float16
}

TEST(DTypePolicyTest, WeightsAndResultsHaveItsType) {
  const PolicyScope policy("float64");
  Dense dense(2);
  dense.build_for({3});
  for (const Variable& weight : dense.variables()) EXPECT_EQ(weight.dtype(), DType::kFloat64);
  const Tensor y = dense(Tensor::ones({4, 3}));  // float32: cast
  EXPECT_EQ(y.dtype(), DType::kFloat64);
}

TEST(DTypePolicyTest, ALayerKeepsThePolicyUnderWhichItWasMadeIfItIsKnown) {
  Dense single(2);
  const PolicyScope policy("float64");
  single.build_for({3});
  EXPECT_EQ(single.variables()[0].dtype(), DType::kFloat32);
  EXPECT_EQ(single(Tensor::ones({1, 3}, DType::kFloat64)).dtype(), DType::kFloat32);
  EXPECT_INVALID(DTypePolicy("float128"),
                 "no policy is named 'float128'; expected one of float32, float64");
}

TEST(DeviceScopeLayers, WeightsAndResultsAreOnItsDevice) {
  constexpr Device kFirst{DeviceType::kCpu, 0}, kSecond{DeviceType::kCpu, 1};
  Dense dense(3, {.activation = "relu"});
  BatchNormalization normalization;
  {
    const DeviceScope scope("/device:CPU:1");
    dense.build_for({4});
    normalization.build_for({3});
  }
  for (const Layer* layer :
       {static_cast<const Layer*>(&dense), static_cast<const Layer*>(&normalization)}) {
    for (const Variable& variable : layer->variables()) {
      EXPECT_THAT(variable.storage().devices(), ::testing::ElementsAre(kSecond)) << variable.name();
    }
  }
  const Tensor x = random_uniform({5, 4}, {.seed = 1});
  EXPECT_EQ(x.device(), kFirst);
  EXPECT_INVALID(dense(x), "dense", "several devices", "cpu:0", "cpu:1");
  GradientTape tape;
  tape.watch(x);
  Tensor y;
  {
    const DeviceScope scope(kSecond);
    y = normalization(dense(x), {.training = true});
  }
  EXPECT_EQ(y.device(), kSecond);
  EXPECT_EQ(tape.gradient(square(y), x).dense().device(), kFirst);
}

/// Residual block with everything that recomputation must not repeat: random numbers, moving
/// statistics, a loss of its own.
class Block final : public LayerOf<Block> {
 public:
  explicit Block(std::string name) : LayerOf<Block>(std::move(name)) {}
  Dense& dense() { return dense_; }

 protected:
  Shape build(const Shape& input) override {
    add_layer(norm_, input);
    add_layer(dense_, input);
    add_layer(dropout_, input);
    add_layer(out_, input);
    return input;
  }
  Tensor call(const Tensor& x, CallContext context) const override {
    const Tensor hidden = dropout_(dense_(norm_(x, context), context), context);
    add_loss(context, reduce_sum(square(hidden)) * 0.01f);
    return x + dropout_(out_(hidden, context), context);
  }

 private:
  BatchNormalization norm_;
  Dense dense_{12, {.activation = "tanh"}};
  Dropout dropout_{0.5};
  Dense out_{12};
};

struct Result {
  std::string weights;  // including moving statistics
  std::vector<std::vector<double>> gradients;
  std::vector<double> losses;
  bool operator==(const Result&) const = default;
};

/// Trains three blocks, one of which contains a layer that is itself recomputed.
Result trained(bool is_remat) {
  set_random_seed(3);
  std::vector<Block> blocks = {Block("a"), Block("b"), Block("c")};
  Result result;
  std::vector<Variable> variables;
  for (Block& block : blocks) {
    block.build_for(Shape{12});
    block.set_remat(is_remat);
    for (const Variable& each : block.variables()) variables.push_back(each);
  }
  blocks[1].dense().set_remat(is_remat);
  EXPECT_EQ(blocks[0].is_remat(), is_remat);
  std::vector<Variable> trainable;
  for (const Variable& each : variables) {
    if (each.trainable()) trainable.push_back(each);
  }
  const Tensor x = random_normal({6, 12}, RandomKey{3, kUserPurpose, 1, 0, 0});
  for (int step = 0; step < 2; ++step) {
    const RandomContextScope random({3, static_cast<std::uint64_t>(step), 0});
    std::vector<Tensor> added;
    GradientTape tape;
    Tensor y = x;
    for (const Block& block : blocks) y = block(y, {.training = true, .added_losses = &added});
    Tensor loss = reduce_sum(square(blocks[0](y, {.training = true}) - 1.0f));  // called twice
    EXPECT_EQ(added.size(), 3U);
    for (const Tensor& each : added) loss = loss + each;
    for (const Gradient& gradient : tape.gradient(loss, trainable)) {
      result.gradients.push_back(gradient.dense().to_doubles());
    }
    result.losses.push_back(loss.item_double());
  }
  result.weights = hash_variables(variables);
  return result;
}

TEST(Remat, TheBitsAreThoseOfWhatIsKept) {
  const Result kept = trained(false), again = trained(true);
  EXPECT_EQ(again.losses, kept.losses);
  EXPECT_EQ(again.weights, kept.weights) << "moving statistics move once";
  EXPECT_EQ(again.gradients, kept.gradients);
}

TEST(Remat, MasksReachTheLayerAndWhatFollows) {
  const auto gradient_with = [](bool is_remat) {
    set_random_seed(5);
    Masking masking;
    LSTM lstm(4, {.return_sequences = true}), last(3);
    masking.build_for(Shape{5, 2});
    lstm.build_for(Shape{5, 2});
    last.build_for(Shape{5, 4});
    lstm.set_remat(is_remat);
    const Tensor x = Tensor::from<float>({1, 5, 2}, {1, 2, 3, 4, 5, 6, 0, 0, 0, 0});
    const MaskScope masks;
    GradientTape tape;
    const Tensor y = last(lstm(masking(x)));
    std::vector<double> all = y.to_doubles();
    for (const Gradient& each : tape.gradient(reduce_sum(square(y)), lstm.trainable_variables())) {
      for (const double value : each.dense().to_doubles()) all.push_back(value);
    }
    return all;
  };
  EXPECT_EQ(gradient_with(true), gradient_with(false));
}

TEST(Remat, SixteenBitLayersComputeAgainInTheirType) {
  const auto gradients_with = [](bool is_remat) {
    set_random_seed(5);
    Dense dense =
        is_remat ? remat(Dense(6, {.activation = "relu"})) : Dense(6, {.activation = "relu"});
    dense.set_dtype_policy(DTypePolicy("mixed_bfloat16"));
    dense.build_for(Shape{7});
    const Tensor x = random_normal({3, 7}, RandomKey{3, kUserPurpose, 1, 0, 0});
    GradientTape tape;
    const Tensor y = dense(x);
    EXPECT_EQ(y.dtype(), DType::kBFloat16);
    const Tensor loss = reduce_sum(square(cast(y, DType::kFloat32)));
    return tape.gradient(loss, dense.trainable_variables()[0]).dense().to_doubles();
  };
  EXPECT_EQ(gradients_with(true), gradients_with(false));
}

}  // namespace tutti::mixed_policy_test
