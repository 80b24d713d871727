// Compares layers, initializers and composite operations with Keras and TensorFlow, in float64.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <numeric>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/functional.h"
#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/initializers.h"
#include "tutti/model/layers/layers.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/merging.h"
#include "tutti/model/layers/normalizations.h"
#include "tutti/model/layers/regularization.h"
#include "tutti/model/sequential.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::layer_parity_test {

/// Returns the relative tolerance. Keras's gelu divides by a float32 square root of 2. TensorFlow's
/// bilinear resizing always returns float32, and its local response normalisation accepts only
/// float32.
double tolerance_of(const std::string& name) {
  if (name == "gelu") return 2e-7;
  if (name == "local_response_normalization") return 2e-6;
  return name == "up_sampling2d_bilinear" ? 1e-5 : 1e-9;
}

using MakeLayer = std::function<std::shared_ptr<Layer>()>;

template <class L, class... Args>
MakeLayer make(Args... args) {
  return [=] { return std::make_shared<L>(args...); };
}

/// Returns a model in which these layers follow a Masking layer, which masks all-zero steps.
template <class... Layers>
std::shared_ptr<Layer> masked(Layers... layers) {
  return std::make_shared<Sequential>(Input{{5, 3}}, Masking(), layers...);
}

std::shared_ptr<Layer> masked_attention() {
  const SymbolicTensor x = Input{{5, 3}};
  const SymbolicTensor y = MultiHeadAttention(2, 4, {.use_causal_mask = true})({Masking()(x)});
  return std::make_shared<Functional>(std::vector{x}, std::vector{GlobalAveragePooling1D()(y)});
}

std::shared_ptr<Layer> masked_sum() {
  const SymbolicTensor x = Input{{5, 3}};
  const SymbolicTensor y = Masking()(x);
  const SymbolicTensor both = Concatenate()({y, Add()({y, Dense(3)(y)})});
  return std::make_shared<Functional>(std::vector{x}, std::vector{LSTM(2)(both)});
}

std::map<std::string, MakeLayer> more_layer_table() {
  const RecurrentOptions sequences{.return_sequences = true};
  const RecurrentOptions backwards{.return_sequences = true, .go_backwards = true};
  return {
      {"global_average_pooling1d", make<GlobalAveragePooling1D>()},
      {"global_max_pooling1d", make<GlobalMaxPooling1D>()},
      {"masked_lstm", [] { return masked(LSTM(4)); }},
      {"masked_lstm_backwards", [=] { return masked(LSTM(3, backwards)); }},
      {"masked_gru", [=] { return masked(GRU(4, sequences), SimpleRNN(3)); }},
      {"masked_bidirectional", [=] { return masked(Bidirectional(GRU(3, sequences)), LSTM(2)); }},
      {"masked_average",
       [] {
         return masked(Dense(4, {.activation = "tanh"}), LayerNormalization(),
                       TimeDistributed(Dense(2)), GlobalAveragePooling1D());
       }},
      {"masked_attention", &masked_attention},
      {"masked_sum", &masked_sum},
      {"embedding", make<Embedding>(6, 3)},
      {"embedding_with_gaps",
       [] {
         return std::make_shared<Sequential>(Input{{5}}, Embedding(6, 3, {.mask_zero = true}),
                                             GRU(2));
       }},
      {"local_response_normalization",
       make<LocalResponseNormalization>(LocalResponseNormalizationOptions{
           .depth_radius = 1, .bias = 1.5, .alpha = 0.5, .beta = 0.75})},
      {"zero_padding1d", make<ZeroPadding1D>(Margins1D(1, 2))},
      {"lstm_from_states", make<LSTM>(4)},
      {"bidirectional_sum",
       [] { return std::make_shared<Bidirectional>(SimpleRNN(3), BidirectionalOptions{"sum"}); }},
      {"prelu_shared", make<PReLU>(PReLUOptions{.shared_axes = {1, 2}})},
      {"batch_normalization_plain",
       make<BatchNormalization>(BatchNormalizationOptions{.center = false, .scale = false})},
      {"dot_normalized", make<Dot>(DotOptions{.axes = {2, 1}, .normalize = true})},
      {"multi_head_attention_of_nothing",
       make<MultiHeadAttention>(2, 4,
                                MultiHeadAttentionOptions{.dropout = 0.5, .with_mask = true})},
      {"rms_normalization", make<RMSNormalization>(RMSNormalizationOptions{.epsilon = 0x1p-10})},
      {"rms_normalization_of_two_axes",
       make<RMSNormalization>(RMSNormalizationOptions{.axes = {1, 2}, .epsilon = 0x1p-4})},
      {"multi_head_attention_grouped",
       make<MultiHeadAttention>(6, 4, MultiHeadAttentionOptions{.num_key_value_heads = 2})},
      {"multi_head_attention_of_one_key",
       make<MultiHeadAttention>(
           3, 4, MultiHeadAttentionOptions{.num_key_value_heads = 1, .use_causal_mask = true})},
      {"rotary_attention",
       make<MultiHeadAttention>(
           4, 6,
           MultiHeadAttentionOptions{
               .num_key_value_heads = 2, .rotary_max_wavelength = 30.0, .use_causal_mask = true})},
      {"swiglu", make<SwiGLU>(4, SwiGLUOptions{.output_dim = 2})},
      {"transformer_block",
       make<TransformerBlock>(4, 6, 4,
                              TransformerBlockOptions{
                                  .num_key_value_heads = 2, .epsilon = 0x1p-10, .use_bias = true})},
      {"masked_bidirectional_sequences",
       [=] {
         return masked(Bidirectional(LSTM(3, sequences)),
                       Bidirectional(GRU(2, sequences), {.merge_mode = "ave"}));
       }},
      {"masked_bidirectional_last",
       [=] {
         return masked(Bidirectional(SimpleRNN(3, sequences), {.merge_mode = "mul"}),
                       Bidirectional(LSTM(2)));
       }},
      {"masked_zero_outputs",
       [] { return masked(LSTM(3, {.return_sequences = true, .zero_output_for_mask = true})); }},
      {"masked_zero_output_last", [] { return masked(GRU(3, {.zero_output_for_mask = true})); }},
  };
}

/// Returns the layers in layer_cases.py.
const std::map<std::string, MakeLayer>& layer_table() {
  const std::string same = "same";
  static const RecurrentOptions sequences{.return_sequences = true};
  static const std::map<std::string, MakeLayer> table = [&] {
    std::map<std::string, MakeLayer> all = {
        {"dense", make<Dense>(3)},
        {"dense_relu", make<Dense>(3, DenseOptions{.activation = "relu"})},
        {"dense_no_bias_tanh",
         make<Dense>(3, DenseOptions{.activation = "tanh", .use_bias = false})},
        {"dense_rank_3", make<Dense>(4)},
        {"conv2d_valid", make<Conv2D>(4, 3)},
        {"conv2d_same_stride_2",
         make<Conv2D>(4, 3, Conv2DOptions{.strides = 2, .padding = "same", .activation = "relu"})},
        {"conv2d_kernel_2x3", make<Conv2D>(2, Size2D(2, 3), Conv2DOptions{.use_bias = false})},
        {"max_pooling2d", make<MaxPooling2D>()},
        {"max_pooling2d_same",
         make<MaxPooling2D>(3, Pooling2DOptions{.strides = 2, .padding = "same"})},
        {"average_pooling2d", make<AveragePooling2D>()},
        {"average_pooling2d_same",
         make<AveragePooling2D>(3, Pooling2DOptions{.strides = 2, .padding = "same"})},
        {"global_average_pooling2d", make<GlobalAveragePooling2D>()},
        {"global_max_pooling2d", make<GlobalMaxPooling2D>()},
        {"batch_normalization_training",
         make<BatchNormalization>(BatchNormalizationOptions{.momentum = 0.9})},
        {"batch_normalization_inference", make<BatchNormalization>()},
        {"batch_normalization_of_rows",
         make<BatchNormalization>(BatchNormalizationOptions{.epsilon = 1e-5})},
        {"flatten", make<Flatten>()},
        {"reshape", make<Reshape>(std::vector<std::int64_t>{-1, 3})},
        {"rescaling", make<Rescaling>(1 / 256.0, RescalingOptions{.offset = -0.5})},
        {"relu", make<Activation>("relu")},
        {"sigmoid", make<Activation>("sigmoid")},
        {"tanh", make<Activation>("tanh")},
        {"elu", make<Activation>("elu")},
        {"gelu", make<Activation>("gelu")},
        {"softmax", make<Activation>("softmax")},
        {"leaky_relu", make<LeakyRelu>(0.25)},
        {"prelu", make<PReLU>()},
        {"elu_alpha", make<Elu>(EluOptions{.alpha = 0.5})},
        {"leaky_relu_steep", make<LeakyRelu>(1.5)},
        {"relu_options",
         make<Relu>(ReluOptions{.max_value = 0.5, .negative_slope = 0.25, .threshold = 0.125})},
        {"conv2d_dilated", make<Conv2D>(4, 3, Conv2DOptions{.dilation_rate = 2})},
        {"conv2d_groups", make<Conv2D>(6, 2, Conv2DOptions{.groups = 3, .activation = "tanh"})},
        {"depthwise_conv2d",
         make<DepthwiseConv2D>(3, DepthwiseConv2DOptions{.depth_multiplier = 2})},
        {"depthwise_conv2d_same",
         make<DepthwiseConv2D>(2, DepthwiseConv2DOptions{.strides = 2, .padding = "same"})},
        {"separable_conv2d",
         make<SeparableConv2D>(4, 3,
                               SeparableConv2DOptions{.padding = same, .depth_multiplier = 2})},
        {"conv2d_transpose", make<Conv2DTranspose>(4, 3, Conv2DTransposeOptions{.strides = 2})},
        {"conv2d_transpose_same",
         make<Conv2DTranspose>(2, 3, Conv2DTransposeOptions{.strides = 2, .padding = "same"})},
        {"conv1d", make<Conv1D>(4, 2, Conv1DOptions{.strides = 2})},
        {"conv1d_causal",
         make<Conv1D>(4, 3, Conv1DOptions{.padding = "causal", .dilation_rate = 2})},
        {"max_pooling1d", make<MaxPooling1D>(2)},
        {"average_pooling1d", make<AveragePooling1D>(2)},
        {"zero_padding2d", make<ZeroPadding2D>(Margins2D(1, 2, 0, 3))},
        {"cropping2d", make<Cropping2D>(Margins2D(1, 2, 0, 3))},
        {"up_sampling2d", make<UpSampling2D>(Size2D(2, 3))},
        {"up_sampling2d_bilinear",
         make<UpSampling2D>(2, UpSampling2DOptions{.interpolation = "bilinear"})},
        {"permute", make<Permute>(std::vector<int>{3, 1, 2})},
        {"repeat_vector", make<RepeatVector>(3)},
        {"layer_normalization", make<LayerNormalization>()},
        {"layer_normalization_of_two_axes", make<LayerNormalization>(LayerNormalizationOptions{
                                                .axes = {1, 2}, .epsilon = 1.0 / 1024})},
        {"group_normalization", make<GroupNormalization>(3)},
        {"instance_normalization", make<GroupNormalization>(1)},
        {"unit_normalization", make<UnitNormalization>()},
        {"simple_rnn", make<SimpleRNN>(4)},
        {"simple_rnn_sequences",
         make<SimpleRNN>(4, RecurrentOptions{.return_sequences = true, .go_backwards = true})},
        {"lstm", make<LSTM>(4)},
        {"lstm_sequences", make<LSTM>(3, RecurrentOptions{.return_sequences = true})},
        {"gru", make<GRU>(4)},
        {"gru_reset_before",
         make<GRU>(4, RecurrentOptions{.return_sequences = true, .reset_after = false})},
        {"bidirectional_lstm", [] { return std::make_shared<Bidirectional>(LSTM(3, sequences)); }},
        {"time_distributed_dense", [] { return std::make_shared<TimeDistributed>(Dense(4)); }},
        {"multi_head_attention", make<MultiHeadAttention>(2, 4)},
        {"multi_head_attention_causal",
         make<MultiHeadAttention>(
             2, 4, MultiHeadAttentionOptions{.value_dim = 3, .use_causal_mask = true})},
        {"add", make<Add>()},
        {"subtract", make<Subtract>()},
        {"multiply", make<Multiply>()},
        {"average", make<Average>()},
        {"maximum", make<Maximum>()},
        {"minimum", make<Minimum>()},
        {"concatenate", make<Concatenate>()},
        {"concatenate_axis_1", make<Concatenate>(ConcatenateOptions{.axis = 1})},
        {"dot", make<Dot>(DotOptions{.axes = {1, 1}})},
    };
    all.merge(more_layer_table());
    return all;
  }();
  return table;
}

bool trains(const std::string& name) {
  return name.starts_with("batch_normalization") && !name.ends_with("inference");
}

class LayerParity : public TestWithParam<std::string> {};

TEST_P(LayerParity, MatchesKerasForwardAndBackward) {
  const Float64 policy;
  const Record& record = record_of("layers");
  const std::string prefix = GetParam() + "/";
  const std::shared_ptr<Layer> layer = layer_table().at(GetParam())();
  const std::vector<Tensor> inputs = record.list(prefix + "x");
  std::vector<Shape> shapes;  // shape of one example of each input
  for (const Tensor& input : inputs) {
    const Shape& shape = input.shape();
    shapes.emplace_back(std::vector<std::int64_t>(shape.begin() + 1, shape.end()));
  }
  layer->build_for(shapes);
  const std::vector<Variable> weights = layer->variables();
  const std::vector<Tensor> values = record.list(prefix + "w");
  ASSERT_EQ(weights.size(), values.size());
  for (std::size_t i = 0; i < weights.size(); ++i) Variable(weights[i]).assign(values[i]);

  std::vector<Variable> sources;
  for (const Tensor& input : inputs) {
    if (is_floating(input.dtype()))
      sources.emplace_back(input, VariableOptions{.name = concat("x", sources.size())});
  }
  // number of inputs with gradients, which precede masks; indices and masks have no gradients
  const std::size_t floating_inputs = sources.size();
  for (const Variable& weight : layer->trainable_variables()) sources.push_back(weight);
  GradientTape tape;
  std::vector<Tensor> arguments = inputs;
  for (std::size_t i = 0; i < floating_inputs; ++i) arguments[i] = sources[i].value();
  const Tensor y = (*layer)(arguments, {.training = trains(GetParam())});
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  const std::vector<Gradient> gradients = tape.gradient(target, sources);

  expect_close(y, record.at(prefix + "y"), tolerance_of(GetParam()), "y");
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::string name =
        i < floating_inputs ? concat(prefix, "dx", i) : concat(prefix, "dw", i - floating_inputs);
    expect_close(gradients[i].to_dense(), record.at(name), tolerance_of(GetParam()),
                 "gradient of " + sources[i].name());
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string after = concat(prefix, "after", i);
    if (record.has(after)) {
      expect_close(weights[i].value(), record.at(after), tolerance_of(GetParam()),
                   weights[i].name());
    }
  }
}

TUTTI_PARITY_CASES(LayerParity, layer_table(), "layers");

namespace init = initializers;

const std::map<std::string, Shape>& kernels() {
  static const std::map<std::string, Shape> table = {
      {"matrix", {300, 500}}, {"image", {5, 5, 64, 96}}, {"vector", {150000}}};
  return table;
}

/// Returns the random initializers of initializer_cases.py.
const std::map<std::string, Initializer>& initializer_table() {
  static const std::map<std::string, Initializer> table = {
      {"glorot_uniform", init::glorot_uniform()},
      {"glorot_normal", init::glorot_normal()},
      {"he_uniform", init::he_uniform()},
      {"he_normal", init::he_normal()},
      {"lecun_uniform", init::lecun_uniform()},
      {"lecun_normal", init::lecun_normal()},
      {"random_uniform", init::random_uniform()},
      {"random_uniform_limits", init::random_uniform(-0.25, 0.75)},
      {"random_normal", init::random_normal()},
      {"random_normal_mean", init::random_normal(0.5, 0.25)},
      {"truncated_normal", init::truncated_normal()},
      {"variance_scaling", init::variance_scaling()},
      {"variance_scaling_out_uniform",
       init::variance_scaling({.scale = 3.0,
                               .mode = init::FanMode::kOut,
                               .distribution = init::Distribution::kUniform})},
      {"variance_scaling_average_untruncated",
       init::variance_scaling({.scale = 0.5,
                               .mode = init::FanMode::kAverage,
                               .distribution = init::Distribution::kUntruncatedNormal})},
  };
  return table;
}

/// Returns the deterministic initializers of initializer_cases.py.
const std::map<std::string, Initializer>& fixed_initializer_table() {
  static const std::map<std::string, Initializer> table = {{"zeros", init::zeros()},
                                                           {"ones", init::ones()},
                                                           {"constant", init::constant(0.375)},
                                                           {"identity", init::identity(1.5)}};
  return table;
}

Tensor drawn(const Initializer& initializer, const Shape& shape) {
  return initializer.for_shape(shape)(InitializerContext{});
}

class InitializerParity : public TestWithParam<std::string> {};

TEST_P(InitializerParity, MatchesKerasMomentsAndLimits) {
  for (const auto& [kernel, shape] : kernels()) {
    const auto expected = record_of("initializers").at(GetParam() + "/" + kernel).to_doubles();
    const auto values = drawn(initializer_table().at(GetParam()), shape).to_doubles();
    const auto count = static_cast<double>(values.size());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0.0, largest = 0.0;
    for (const double value : values) {
      squares += (value - mean) * (value - mean);
      largest = std::max(largest, std::abs(value));
    }
    // For two samples of 150,000 values, the standard error of the difference of means is 0.0037
    // standard deviations, and that of the difference of standard deviations is 0.3 %.
    EXPECT_NEAR(mean, expected[0], 0.02 * expected[1]) << kernel;
    EXPECT_NEAR(std::sqrt(squares / count), expected[1], 0.012 * expected[1]) << kernel;
    const bool cut = GetParam().find("random_normal") == std::string::npos &&
                     GetParam().find("untruncated") == std::string::npos;
    EXPECT_NEAR(largest, expected[2], (cut ? 0.005 : 0.25) * expected[2]) << kernel;
  }
}

INSTANTIATE_TEST_SUITE_P(All, InitializerParity, ValuesIn(names_of(initializer_table())),
                         [](const auto& info) { return info.param; });

TEST(FixedInitializerParity, MatchesKeras) {
  for (const auto& [name, initializer] : fixed_initializer_table())
    expect_close(drawn(initializer, {3, 4}), record_of("initializers").at(name + "/equal"), 0.0,
                 name);
}

TEST(OrthogonalInitializerParity, GramMatricesMatchKeras) {
  const std::map<std::string, Shape> shapes = {
      {"tall", {12, 5}}, {"wide", {5, 12}}, {"image", {2, 3, 4, 7}}};
  for (const auto& [name, shape] : shapes) {
    const Tensor matrix = reshape(drawn(init::orthogonal(1.5), shape), {-1, shape[-1]});
    const bool tall = matrix.shape()[0] >= matrix.shape()[1];
    const Tensor gram = matmul(matrix, matrix, {.transpose_a = tall, .transpose_b = !tall});
    const auto expected = record_of("initializers").at("orthogonal/" + name).to_doubles();
    EXPECT_THAT(gram.to_doubles(), Pointwise(DoubleNear(1e-5), expected));
  }
}

TEST(InitializerParityTable, CoversEveryRecordedCase) {
  std::set<std::string> names = names_of(initializer_table());
  names.merge(names_of(fixed_initializer_table()));
  names.insert("orthogonal");
  EXPECT_EQ(names, record_of("initializers").cases());
}

using FunctionOfOne = std::function<Tensor(const Tensor&)>;

Tensor in_float64(const Tensor& x) { return cast(x, DType::kFloat64); }

/// Returns a constant from tensor_cases.py.
const Tensor& constant(const char* name) { return record_of("tensors").at(name); }

/// Returns the functions of tensor_cases.py.
const std::map<std::string, FunctionOfOne>& tensor_function_table() {
  static const std::map<std::string, FunctionOfOne> table = {
      {"sort", [](const Tensor& x) { return sort(x, {.axis = 1}); }},
      {"sort_descending", [](const Tensor& x) { return sort(x, {.descending = true}); }},
      {"argsort_of_ties", [](const Tensor& x) { return in_float64(argsort(x)); }},
      {"argsort_of_ties_descending",
       [](const Tensor& x) { return in_float64(argsort(x, {.descending = true})); }},
      {"argsort_axis_0", [](const Tensor& x) { return in_float64(argsort(x, {.axis = 0})); }},
      {"variance", [](const Tensor& x) { return reduce_variance(x); }},
      {"variance_axis", [](const Tensor& x) { return reduce_variance(x, {.axes = {1}}); }},
      {"std",
       [](const Tensor& x) {
         return reduce_std(x, {.axes = {0, 2}, .keep_dims = true});
       }},
      {"logsumexp", [](const Tensor& x) { return reduce_logsumexp(x, {.axes = {2}}); }},
      {"logsumexp_all", [](const Tensor& x) { return reduce_logsumexp(x); }},
      {"logsumexp_keep",
       [](const Tensor& x) { return reduce_logsumexp(x, {.axes = {1}, .keep_dims = true}); }},
      {"cumprod", [](const Tensor& x) { return cumulative_product(x, {.axis = 2}); }},
      {"cumprod_exclusive",
       [](const Tensor& x) { return cumulative_product(x, {.axis = 1, .exclusive = true}); }},
      {"cumprod_reverse",
       [](const Tensor& x) {
         return cumulative_product(x, {.axis = -1, .exclusive = true, .reverse = true});
       }},
      {"roll", [](const Tensor& x) { return roll(x, 7, 2); }},
      {"roll_back", [](const Tensor& x) { return roll(x, -1, 0); }},
      {"tril", [](const Tensor& x) { return tril(x); }},
      {"triu", [](const Tensor& x) { return triu(x); }},
      {"scatter",
       [](const Tensor& x) {
         return scatter(Tensor::from<std::int64_t>({3, 1}, {1, 0, 1}), x, {4, 5});
       }},
      {"scatter_elements",
       [](const Tensor& x) {
         return scatter(Tensor::from<std::int32_t>({4, 2}, {0, 4, 2, 0, 2, 1, 0, 4}), x, {3, 5});
       }},
      {"boolean_mask",
       [](const Tensor& x) {
         return boolean_mask(x, Tensor::from<bool>({3}, {true, false, true}));
       }},
      {"boolean_mask_of_elements",
       [](const Tensor& x) {
         return boolean_mask(x, Tensor::from<bool>({3, 5}, {true, false, true, true, false,   //
                                                            false, false, false, true, true,  //
                                                            true, true, true, true, true}));
       }},
      {"isnan", [](const Tensor& x) { return in_float64(isnan(x)); }},
      {"isinf", [](const Tensor& x) { return in_float64(isinf(x)); }},
      {"isfinite", [](const Tensor& x) { return in_float64(isfinite(x)); }},
      {"floor_mod", [](const Tensor& x) { return x % 2.0; }},
      {"floor_mod_by_negative", [](const Tensor& x) { return x % -2.0; }},
      {"floor_divide", [](const Tensor& x) { return floor_divide(x, 2.0); }},
      {"einsum_product",
       [](const Tensor& x) {
         return einsum("ij,jk->ik", {x, constant("matrix")});
       }},
      {"einsum_batch",
       [](const Tensor& x) {
         return einsum("bij,bjk->bik", {x, constant("stack")});
       }},
      {"einsum_trace", [](const Tensor& x) { return einsum("ii->", {x}); }},
      {"einsum_diagonal", [](const Tensor& x) { return einsum("...ii->...i", {x}); }},
      {"einsum_transpose", [](const Tensor& x) { return einsum("...ij->...ji", {x}); }},
      {"einsum_ellipsis",
       [](const Tensor& x) {
         return einsum("...ij, jk -> ...ik", {x, constant("matrix")});
       }},
      {"einsum_implied", [](const Tensor& x) { return einsum("ba", {x}); }},
      {"einsum_outer",
       [](const Tensor& x) {
         return einsum("i,j->ji", {x, constant("vector")});
       }},
      {"einsum_three",
       [](const Tensor& x) {
         return einsum("bij,jk,i->bk", {x, constant("matrix"), constant("vector")});
       }},
      {"einsum_summed_alone",
       [](const Tensor& x) {
         return einsum("bij,kl->b", {x, constant("matrix")});
       }},
      {"index", [](const Tensor& x) { return x[1]; }},
      {"index_from_end",
       [](const Tensor& x) {
         return x[{Range{}, -1, Range{1, 4}}];
       }},
      {"index_ranges",
       [](const Tensor& x) {
         return x[{Range{0, 1}, Range{1}, Range{-9, -1}}];
       }},
  };
  return table;
}

class TensorParity : public TestWithParam<std::string> {};

TEST_P(TensorParity, MatchesTensorFlowForwardAndBackward) {
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("tensors");
  const Variable x(record.at(prefix + "x"), {.name = "x"});
  GradientTape tape;
  const Tensor y = tensor_function_table().at(GetParam())(x.value());
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  expect_close(y, record.at(prefix + "y"), 1e-12, "y");
  const Tensor expected = record.at(prefix + "gradient");
  if (const Gradient gradient = tape.gradient(target, std::vector<Variable>{x})[0];
      !gradient.is_none()) {
    expect_close(gradient.to_dense(), expected, 1e-10, "gradient");
  } else {
    expect_close(Tensor::zeros(expected.shape(), DType::kFloat64), expected, 0.0, "no gradient");
  }
}

TUTTI_PARITY_CASES(TensorParity, tensor_function_table(), "tensors");

constexpr const char* kActivations[] = {
    "linear",    "relu",     "sigmoid", "tanh",       "softmax",     "log_softmax",
    "softplus",  "softsign", "elu",     "selu",       "gelu",        "silu",
    "hard_silu", "mish",     "relu6",   "leaky_relu", "exponential", "hard_sigmoid"};

/// Returns a function that applies a new layer to a batch.
template <class Make>
FunctionOfOne layer_made_by(Make make) {
  return [=](const Tensor& x) {
    auto layer = make();
    layer.build_for(x.shape().without_axis(0));
    return layer(x);
  };
}

FunctionOfOne relu_layer(ReluOptions options) {
  return layer_made_by([=] { return Relu(options); });
}

/// Returns the functions that are tested at points where they are not smooth, keyed by the names of
/// their cases without the suffix "_at_corners".
std::map<std::string, FunctionOfOne> functions_with_corners() {
  std::map<std::string, FunctionOfOne> all = {
      {"relu_slope", relu_layer({.negative_slope = 0.25})},
      {"relu_max_6", relu_layer({.max_value = 6.0})},
      {"relu_max_5", relu_layer({.max_value = 5.0})},
      {"relu_slope_max_6", relu_layer({.max_value = 6.0, .negative_slope = 0.25})},
      {"relu_slope_max_5", relu_layer({.max_value = 5.0, .negative_slope = 0.25})},
      {"relu_threshold", relu_layer({.threshold = 1.0})},
      {"relu_threshold_max_6", relu_layer({.max_value = 6.0, .threshold = 1.0})},
      {"relu_threshold_slope_max_5",
       relu_layer({.max_value = 5.0, .negative_slope = 0.25, .threshold = 1.0})},
      {"leaky_relu_layer", layer_made_by([] { return LeakyRelu(0.25); })},
      {"elu_alpha", layer_made_by([] { return Elu({.alpha = 0.5}); })},
      {"prelu",
       layer_made_by([] { return PReLU({.alpha_initializer = initializers::constant(0.25)}); })},
  };
  for (const char* name : kActivations) all[name] = find_activation(name);
  return all;
}

std::map<std::string, FunctionOfOne> functions_of_short_vectors() {
  const std::map<std::string, FunctionOfOne> functions = {
      {"unit_normalization", layer_made_by([] { return UnitNormalization(); })},
      {"cosine_similarity",
       [](const Tensor& x) {
         return losses::cosine_similarity(x, Tensor::ones(x.shape(), x.dtype()));
       }},
      {"dot_normalized",
       [](const Tensor& x) {
         Dot dot({.axes = {1, 1}, .normalize = true});
         dot.build_for(std::vector<Shape>(2, x.shape().without_axis(0)));
         return dot(std::vector<Tensor>{x, Tensor::ones(x.shape(), x.dtype())});
       }},
  };
  std::map<std::string, FunctionOfOne> all;
  for (const auto& [name, function] : functions)
    for (const char* length : {"short", "shorter", "zero"})
      all[concat(name, "_of_", length, "_vector")] = function;
  return all;
}

/// Returns the functions in function_cases.py.
const std::map<std::string, FunctionOfOne>& function_table() {
  static const std::map<std::string, FunctionOfOne> table = [] {
    std::map<std::string, FunctionOfOne> all = {
        {"regularizer_l1", regularizers::l1(0.25)},
        {"regularizer_l2", regularizers::l2(0.125)},
        {"regularizer_l1_l2", regularizers::l1_l2(0.25, 0.125)},
        {"regularizer_orthogonal", regularizers::orthogonal(0.5)},
        {"max_norm", constraints::max_norm({.max_value = 1.5})},
        {"max_norm_axis_1", constraints::max_norm({.max_value = 1.5, .axis = 1})},
        {"non_neg", constraints::non_neg()},
        {"unit_norm", constraints::unit_norm()},
        {"min_max_norm",
         constraints::min_max_norm({.min_value = 0.75, .max_value = 1.25, .rate = 0.5})},
        {"max_norm_of_filters", constraints::max_norm({.max_value = 1.5, .axis = {0, 1, 2}})},
        {"unit_norm_of_filters", constraints::unit_norm({0, 1, 2})},
        {"min_max_norm_of_filters",
         constraints::min_max_norm(
             {.min_value = 0.75, .max_value = 1.25, .rate = 0.5, .axis = {0, 1, 2}})},
        {"gelu_tanh", find_activation("gelu_tanh")},
    };
    for (const char* name : kActivations) all[name] = find_activation(name);
    for (const auto& [name, function] : functions_with_corners())
      all[name + "_at_corners"] = function;
    all.merge(functions_of_short_vectors());
    return all;
  }();
  return table;
}

/// Returns the relative tolerance. Keras has no float64 orthogonal regularizer and uses float32
/// constants in gelu; TensorFlow uses a float32 slope in leaky_relu.
double tolerance_of_function(const std::string& name) {
  if (name == "regularizer_orthogonal") return 5e-6;
  if (name == "leaky_relu" || name == "leaky_relu_at_corners") return 2e-8;
  if (name == "gelu_tanh") return 1e-7;
  return name.starts_with("gelu") ? 2e-6 : 1e-9;
}

class FunctionParity : public TestWithParam<std::string> {};

TEST_P(FunctionParity, MatchesKerasForwardAndBackward) {
  const Float64 policy;
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("functions");
  const Variable x(record.at(prefix + "x"), {.name = "x"});
  GradientTape tape;
  const Tensor y = function_table().at(GetParam())(x.value());
  const Tensor target = reduce_sum(y * record.at(prefix + "factors"));
  const std::vector<Gradient> gradients = tape.gradient(target, std::vector<Variable>{x});
  expect_close(y, record.at(prefix + "y"), tolerance_of_function(GetParam()), "y");
  expect_close(gradients[0].dense(), record.at(prefix + "gradient"),
               tolerance_of_function(GetParam()), "gradient");
}

TUTTI_PARITY_CASES(FunctionParity, function_table(), "functions");

}  // namespace tutti::testing::layer_parity_test
