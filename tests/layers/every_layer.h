// Table of all layers, for tests that apply to each of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/model/layers/layers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing {

/// A layer, its copy, and the shape of one example of each input.
struct DescribedLayer {
  // `copy` is a copy of `layer`; both share the weights that build_for() creates in `layer`
  std::shared_ptr<Layer> layer, copy;
  std::vector<Shape> inputs;
};

template <class L>
DescribedLayer layer_case(L layer, std::vector<Shape> inputs) {
  return {std::make_shared<L>(layer), std::make_shared<L>(layer), std::move(inputs)};
}

/// Returns every layer, with non-default options.
inline std::vector<DescribedLayer> every_layer() {
  const Shape image{6, 6, 2}, steps{4, 3};
  return {
      layer_case(Dense(3, {.activation = "relu",
                           .use_bias = false,
                           .kernel_initializer = initializers::random_normal(0.5, 0.1),
                           .kernel_regularizer = regularizers::l1_l2(0.1, 0.2),
                           .kernel_constraint = constraints::max_norm({.axis = {0, 1}}),
                           .name = "d"}),
                 {{4}}),
      layer_case(Embedding(5, 2, {.mask_zero = true}), {{3}}),
      layer_case(PositionEmbedding(6, {.embeddings_initializer = "normal"}), {steps}),
      layer_case(Masking(1.5), {steps}),
      layer_case(Conv2D(4, {3, 1}, {.strides = {2, 1}, .padding = "same", .groups = 2}), {image}),
      layer_case(DepthwiseConv2D(3, {.depth_multiplier = 2, .activation = "tanh"}), {image}),
      layer_case(SeparableConv2D(3, 3, {.dilation_rate = 2}), {image}),
      layer_case(Conv2DTranspose(3, 3, {.strides = 2, .padding = "same"}), {image}),
      layer_case(Conv1D(4, 2, {.padding = "causal", .dilation_rate = 2, .groups = 2}), {{5, 2}}),
      layer_case(Conv1D(3, 3, {.strides = 2, .padding = "same", .use_bias = false}), {steps}),
      layer_case(MaxPooling2D({2, 3}, {.strides = 1, .padding = "same"}), {image}),
      layer_case(AveragePooling2D(2), {image}),
      layer_case(MaxPooling1D(2, {.strides = 1}), {steps}),
      layer_case(AveragePooling1D(3, {.strides = 1, .padding = "same"}), {steps}),
      layer_case(GlobalAveragePooling2D(), {image}),
      layer_case(GlobalMaxPooling2D(), {image}),
      layer_case(GlobalAveragePooling1D(), {steps}),
      layer_case(GlobalMaxPooling1D(), {steps}),
      layer_case(BatchNormalization({.momentum = 0.5, .epsilon = 0.25, .center = false}), {image}),
      layer_case(LayerNormalization({.axes = {1, 2}, .epsilon = 0.5}), {steps}),
      layer_case(LayerNormalization({.axes = {1}, .scale = false}), {steps}),
      layer_case(GroupNormalization(2, {.epsilon = 0.5}), {image}),
      layer_case(RMSNormalization({.axes = {1, 2}, .epsilon = 0.5}), {steps}),
      layer_case(UnitNormalization({.axes = {1}}), {steps}),
      layer_case(LocalResponseNormalization({.depth_radius = 1, .alpha = 0.5}), {image}),
      layer_case(Dropout(0.25), {steps}),
      layer_case(GaussianNoise(0.5), {steps}),
      layer_case(GaussianDropout(0.25), {steps}),
      layer_case(SpatialDropout1D(0.25), {steps}),
      layer_case(SpatialDropout2D(0.25), {image}),
      layer_case(GaussianNoise(0.0), {steps}),
      layer_case(GaussianDropout(0.0), {steps}),
      layer_case(SpatialDropout2D(0.0), {image}),
      layer_case(Activation("gelu"), {steps}),
      layer_case(Relu({.max_value = 0.5, .negative_slope = 0.1, .threshold = 0.2}), {steps}),
      layer_case(Sigmoid(), {steps}),
      layer_case(Tanh(), {steps}),
      layer_case(Elu({.alpha = 0.5}), {steps}),
      layer_case(Gelu(), {steps}),
      layer_case(Softmax(), {steps}),
      layer_case(LeakyRelu(0.2), {steps}),
      layer_case(PReLU({.alpha_initializer = initializers::constant(0.3), .shared_axes = {1}}),
                 {steps}),
      layer_case(Flatten(), {steps}),
      layer_case(Reshape({2, -1}), {steps}),
      layer_case(Permute({2, 1}), {steps}),
      layer_case(RepeatVector(3), {{4}}),
      layer_case(ZeroPadding2D({1, 2, 0, 3}), {image}),
      layer_case(Cropping2D({1, 0, 2, 1}), {image}),
      layer_case(ZeroPadding1D({2, 1}), {steps}),
      layer_case(UpSampling2D({2, 3}, {.interpolation = "bilinear"}), {image}),
      layer_case(Add(), {steps, steps, {1, 3}}),
      layer_case(Subtract(), {steps, steps}),
      layer_case(Multiply(), {steps, {4, 1}}),
      layer_case(Average(), {steps, steps}),
      layer_case(Maximum(), {steps, steps}),
      layer_case(Minimum(), {steps, steps}),
      layer_case(Concatenate({.axis = 1}), {steps, steps}),
      layer_case(Dot({.axes = {2, 2}, .normalize = true}), {steps, steps}),
      layer_case(Dot({.axes = {1, 1}}), {{2, 3}, {2}}),
      layer_case(SimpleRNN(2, {.activation = "relu", .go_backwards = true}), {steps}),
      layer_case(SimpleRNN(2, {.use_bias = false, .return_sequences = true}), {steps}),
      layer_case(LSTM(2, {.return_sequences = true, .unit_forget_bias = false}), {steps}),
      layer_case(LSTM(2, {.return_sequences = true, .return_state = true}), {steps}),
      layer_case(LSTM(2, {.dropout = 0.5, .recurrent_dropout = 0.5, .go_backwards = true}),
                 {steps, {2}, {2}}),
      layer_case(GRU(2, {.use_bias = false, .reset_after = false}), {steps}),
      layer_case(GRU(2, {.return_state = true, .reset_after = false}), {steps, {2}}),
      layer_case(Bidirectional(GRU(2, {.return_sequences = true}), {.merge_mode = "sum"}), {steps}),
      layer_case(TimeDistributed(Dense(2, "tanh")), {steps}),
      layer_case(TimeDistributed(Conv2D(2, 2)), {{2, 3, 3, 1}}),
      layer_case(MultiHeadAttention(2, 3, {.output_dim = 5, .use_causal_mask = true}),
                 {steps, steps}),
      layer_case(MultiHeadAttention(1, 2, {.value_dim = 3, .output_dim = 2}),
                 {{2, 4}, {3, 5}, {3, 2}}),
      layer_case(MultiHeadAttention(2, 2, {.dropout = 0.5, .use_bias = false}), {steps}),
      layer_case(MultiHeadAttention(4, 2, {.num_key_value_heads = 2, .rotary_max_wavelength = 50}),
                 {steps}),
      layer_case(RotaryEmbedding({.max_wavelength = 50}), {{4, 2, 6}}),
      layer_case(SwiGLU(5, {.output_dim = 2, .use_bias = true}), {steps}),
      layer_case(TransformerBlock(2, 4, 5, {.rotary_max_wavelength = 50}), {steps}),
      layer_case(TransformerBlock(2, 4, 5,
                                  {.num_key_value_heads = 1,
                                   .rotary_max_wavelength = std::nullopt,
                                   .use_causal_mask = false,
                                   .dropout = 0.25,
                                   .epsilon = 0.5,
                                   .use_bias = true}),
                 {steps}),
      layer_case(Rescaling(2.0, {.offset = -1.0}), {image}),
      layer_case(RandomFlip({.mode = "vertical"}), {image}),
      layer_case(RandomBrightness(0.25, {.value_range = {0.0, 1.0}}), {image}),
      layer_case(RandomContrast(0.5), {image}),
      layer_case(CenterCrop({3, 4}), {image}),
  };
}

/// Returns `rows` rows for each input of a layer: integers for an embedding, numbers from -1 to 1
/// for other layers.
inline std::vector<Tensor> rows_for(const DescribedLayer& described, std::int64_t rows) {
  std::vector<Tensor> x;
  for (const Shape& shape : described.inputs) {
    x.push_back(random_uniform(shape.with_front(rows), {.seed = 3 + x.size()}, -1.0, 1.0));
    const bool is_embedding = described.layer->type_name() == "Embedding";
    if (is_embedding) x.back() = cast(abs(x.back()) * 4, DType::kInt64);
  }
  return x;
}

}  // namespace tutti::testing
