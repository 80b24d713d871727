// Two networks trained for eight steps against Keras: a transformer with masks of every kind, and
// one of depthwise and separable convolutions; in float64.
// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/parity_record.h"
#include "tutti/tutti.h"

namespace tutti::parity {
namespace {

constexpr std::int64_t kFirstRows = 6;  // batches of 6 and of 4 rows take turns

SymbolicTensor sum_of(const SymbolicTensor& a, const SymbolicTensor& b) { return Add()({a, b}); }

SymbolicTensor feed_forward(const SymbolicTensor& x) {
  const SymbolicTensor y = Dense(6, {.activation = "silu"})(LayerNormalization()(x));
  return sum_of(x, Dense(8)(y));
}

/// Layers are drawn in the order of network_cases.py.
Functional transformer() {
  const SymbolicTensor source = Input{{6}}, target = Input{{5}}, visible = Input{{5, 5}};
  SymbolicTensor x = Embedding(7, 8, {.mask_zero = true})(source);
  SymbolicTensor y = LayerNormalization()(x);
  x = feed_forward(sum_of(x, MultiHeadAttention(2, 4)({y, y})));
  const SymbolicTensor encoded = LayerNormalization()(x);

  x = Embedding(6, 8, {.mask_zero = true})(target);
  y = LayerNormalization()(x);
  y = MultiHeadAttention(2, 4, {.use_causal_mask = true, .with_mask = true})({y, y, visible});
  x = sum_of(x, y);
  y = LayerNormalization()(x);
  x = feed_forward(sum_of(x, MultiHeadAttention(2, 4, {.value_dim = 3})({y, encoded})));
  x = GlobalAveragePooling1D()(LayerNormalization()(x));
  return Functional({source, target, visible}, {Dense(4)(x)});
}

std::unique_ptr<Optimizer> transformer_optimizer(const std::vector<Variable>& variables) {
  auto optimizer = std::make_unique<AdamW>(
      variables, AdamWOptions{.learning_rate = CosineDecay({.initial_learning_rate = 1.0 / 64,
                                                            .decay_steps = 6,
                                                            .alpha = 1.0 / 8,
                                                            .warmup_target = 1.0 / 16,
                                                            .warmup_steps = 3}),
                              .beta_1 = 7.0 / 8,
                              .beta_2 = 31.0 / 32,
                              .epsilon = 1.0 / 1024,
                              .weight_decay = 1.0 / 8,
                              .clipping = {.global_clipnorm = 0.5}});
  optimizer->exclude_from_weight_decay({"bias", "gamma", "beta"});
  return optimizer;
}

Functional depthwise() {
  const SymbolicTensor image = Input{{13, 11, 2}};
  SymbolicTensor x = Conv2D(4, 3, {.strides = 2, .padding = "same", .activation = "relu6"})(image);
  SymbolicTensor y = SeparableConv2D(4, 3, {.padding = "same", .use_bias = false})(x);
  y = Relu({.max_value = 6.0})(BatchNormalization({.momentum = 0.75, .scale = false})(y));
  y = DepthwiseConv2D(3, {.padding = "same", .dilation_rate = 2, .use_bias = false})(y);
  y = BatchNormalization({.momentum = 0.75, .center = false})(y);
  x = Activation("relu6")(sum_of(x, y));
  x = DepthwiseConv2D(
      {3, 2}, {.strides = 2, .padding = "same", .depth_multiplier = 2, .use_bias = false})(x);
  x = BatchNormalization({.momentum = 0.75, .center = false, .scale = false})(x);
  x = AveragePooling2D(3, {.strides = 2, .padding = "same"})(Activation("relu6")(x));
  return Functional({image}, {Dense(4)(Flatten()(x))});
}

std::unique_ptr<Optimizer> depthwise_optimizer(const std::vector<Variable>& variables) {
  return std::make_unique<Rmsprop>(variables, RmspropOptions{.learning_rate = 1.0 / 64,
                                                             .rho = 7.0 / 8,
                                                             .momentum = 3.0 / 4,
                                                             .epsilon = 1.0 / 1024,
                                                             .centered = true});
}

struct NetworkCase {
  Functional (*make)();
  std::unique_ptr<Optimizer> (*make_optimizer)(const std::vector<Variable>&);
};

/// The networks of network_cases.py.
const std::map<std::string, NetworkCase>& network_table() {
  static const std::map<std::string, NetworkCase> table = {
      {"transformer", {&transformer, &transformer_optimizer}},
      {"depthwise", {&depthwise, &depthwise_optimizer}},
  };
  return table;
}

/// The rows of the batch of this step.
Tensor batch_of(const Tensor& all, std::size_t step) {
  return step % 2 == 0 ? all.detached_rows(0, kFirstRows)
                       : all.detached_rows(kFirstRows, all.shape()[0] - kFirstRows);
}

class NetworkParity : public ::testing::TestWithParam<std::string> {};

TEST_P(NetworkParity, TrainsAsKeras) {
  const Float64 policy;
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("networks");
  const Functional model = network_table().at(GetParam()).make();
  std::vector<Variable> variables = model.variables();
  const std::vector<Tensor> initial = record.list(prefix + "initial");
  ASSERT_EQ(variables.size(), initial.size());
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].assign(initial[i]);
  const auto optimizer = network_table().at(GetParam()).make_optimizer(model.trainable_variables());

  const std::vector<Tensor> inputs = record.list(prefix + "x");
  const std::vector<double> losses = record.at(prefix + "losses").to_doubles();
  for (std::size_t step = 0; step < losses.size(); ++step) {
    std::vector<Tensor> arguments;
    for (const Tensor& all : inputs) arguments.push_back(batch_of(all, step));
    GradientTape tape;
    const Tensor logits = model(arguments, {.training = true});
    const Tensor loss = reduce_mean(losses::sparse_categorical_crossentropy(
        batch_of(record.at(prefix + "labels"), step), logits));
    optimizer->minimize(tape, loss);
    EXPECT_NEAR(loss.item_double(), losses[step], 1e-9 * losses[step]) << "loss of step " << step;
  }
  const std::vector<Tensor> final = record.list(prefix + "final");
  for (std::size_t i = 0; i < variables.size(); ++i)
    expect_close(variables[i].value(), final[i], 1e-9, variables[i].name());
}

TUTTI_PARITY_CASES(NetworkParity, network_table(), "networks");

}  // namespace
}  // namespace tutti::parity
