// Rematerialisation of layers: the bits of what is kept, with less memory.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/model/layers/layers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace remat_test {

/// A residual block with everything that a second call must not do anew: random numbers, moving
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
  std::string weights;  // moving statistics among them
  std::vector<std::vector<double>> gradients;
  std::vector<double> losses;
  bool operator==(const Result&) const = default;
};

/// Three blocks, of which one contains a layer that is computed again itself.
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

}  // namespace remat_test
}  // namespace tutti
