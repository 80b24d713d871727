// Multi-head attention, and rotary position embedding.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/multi_head_attention.h"

#include <cmath>
#include <tuple>

#include "core/names.h"
#include "model/layers/in_float32.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/key_value_cache.h"
#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/attention.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/random_ops.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

namespace {

/// Applies `function` to the angle of each step and pair of features. Returns the results in a
/// shape that broadcasts to half of the features of x.
Tensor of_angles(double (*function)(double), const Tensor& x, int step_axis, double max_wavelength,
                 std::int64_t first_step) {
  const std::int64_t steps = x.shape()[step_axis], pairs = x.shape()[-1] / 2;
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(steps * pairs));
  for (std::int64_t step = first_step; step < first_step + steps; ++step) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(pairs);
      values.push_back(function(static_cast<double>(step) * std::pow(max_wavelength, -share)));
    }
  }
  Shape wide = x.shape().with_dim(-1, pairs);
  for (int axis = 0; axis + 1 < wide.rank(); ++axis)
    if (axis != step_axis) wide = wide.with_dim(axis, 1);
  return cast(Tensor::from(wide, values, x.device()), x.dtype());
}

}  // namespace

Tensor internal::rotated_by_step(const Tensor& given, int step_axis, double max_wavelength,
                                 std::int64_t first_step) {
  return in_float32(given, [&](const Tensor& x) {
    const Tensor cosines = of_angles(&std::cos, x, step_axis, max_wavelength, first_step);
    const Tensor sines = of_angles(&std::sin, x, step_axis, max_wavelength, first_step);
    const std::vector<Tensor> halves = split(x, 2, -1);
    return concat({halves[0] * cosines - halves[1] * sines,  //
                   halves[1] * cosines + halves[0] * sines},
                  -1);
  });
}

void internal::require_rotation(std::int64_t features, double max_wavelength,
                                std::string_view who) {
  if (features % 2 != 0)
    fail(ErrorCode::kInvalidArgument, who, ": expected an even number of features, got ", features,
         "; rotations act on pairs of features");
  internal::require(max_wavelength > 0.0, who, ": expected a positive max_wavelength, got ",
                    max_wavelength);
}

RotaryEmbedding::RotaryEmbedding(RotaryEmbeddingOptions options)
    : LayerOf(options.name, options.input_shape), options_(std::move(options)) {
  internal::require_rotation(0, options_.max_wavelength, "RotaryEmbedding");
  made_with(options_);
}

Shape RotaryEmbedding::build(const Shape& input) {
  internal::require(input.rank() >= 2,
                    "RotaryEmbedding: expected examples of shape [steps, ..., features], got ",
                    input);
  internal::require_rotation(input[-1], options_.max_wavelength, "RotaryEmbedding");
  return input;
}

Tensor RotaryEmbedding::call(const Tensor& input, CallContext context) const {
  if (input.rank() <= input_shape().rank()) {
    fail(ErrorCode::kInvalidArgument, "RotaryEmbedding: expected a batch of examples of shape ",
         input_shape(), ", got ", input.shape(), "; call expand_dims(x, 0) for a single example");
  }
  return internal::rotated_by_step(input, 1, options_.max_wavelength,
                                   internal::steps_before(context));
}

namespace {

/// Reshapes a three-dimensional kernel to a matrix with `rows` rows.
Tensor as_matrix(const Tensor& kernel, std::int64_t rows) {
  return reshape(kernel, Shape{rows, kernel.num_elements() / rows});
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(std::int64_t num_heads, std::int64_t key_dim,
                                       MultiHeadAttentionOptions options)
    : LayerOf(options.name),
      num_heads_(num_heads),
      key_dim_(key_dim),
      options_(std::move(options)) {
  if (num_heads <= 0 || key_dim <= 0 || options_.value_dim.value_or(1) <= 0 ||
      options_.output_dim.value_or(1) <= 0) {
    fail(ErrorCode::kInvalidArgument,
         "MultiHeadAttention: expected positive numbers of heads and features, got ", num_heads,
         " heads with key_dim ", key_dim);
  }
  if (num_key_value_heads() <= 0 || num_heads % num_key_value_heads() != 0) {
    fail(ErrorCode::kInvalidArgument, "MultiHeadAttention: expected num_key_value_heads to divide ",
         num_heads, " heads, got ", num_key_value_heads());
  }
  if (options_.rotary_max_wavelength) {
    internal::require_rotation(key_dim, *options_.rotary_max_wavelength,
                               "MultiHeadAttention: rotary_max_wavelength");
  }
  internal::require_rate(options_.dropout, "MultiHeadAttention", "dropout");
  made_with(num_heads, key_dim, options_);
}

void MultiHeadAttention::add_projection(const std::string& name, const Shape& kernel,
                                        const Shape& bias) {
  add_weight(options_.kernel_initializer, kernel, {.name = name + "/kernel"},
             options_.kernel_regularizer, options_.kernel_constraint);
  add_bias(options_, bias, name + "/bias");
}

std::vector<Shape> MultiHeadAttention::build_all(std::span<const Shape> inputs) {
  const std::size_t sequences = inputs.size() - (options_.with_mask ? 1 : 0);
  internal::require(
      !inputs.empty() && sequences >= 1 && sequences <= 3,
      "MultiHeadAttention: expected {query}, {query, value} or {query, value, key}, followed by "
      "the mask if .with_mask is set, got ",
      inputs.size(), " inputs");
  for (const Shape& input : inputs.first(sequences))
    internal::require_sequence(input, "MultiHeadAttention");
  const Shape& query = inputs[0];
  const Shape& value = inputs[sequences > 1 ? 1 : 0];
  const Shape& key = sequences > 2 ? inputs[2] : value;
  internal::require(key[0] == value[0],
                    "MultiHeadAttention: expected equal numbers of keys and values, got ", key,
                    " and ", value);
  if (options_.with_mask && !(inputs.back() == Shape{query[0], value[0]})) {
    fail(ErrorCode::kInvalidArgument, "MultiHeadAttention: expected a mask of shape ",
         Shape{query[0], value[0]}, ", got ", inputs.back());
  }
  const std::int64_t value_dim = options_.value_dim.value_or(key_dim_);
  const std::int64_t output = options_.output_dim.value_or(query[1]);
  add_projection("query", {query[1], num_heads_, key_dim_}, {num_heads_, key_dim_});
  const std::int64_t shared = num_key_value_heads();
  add_projection("key", {key[1], shared, key_dim_}, {shared, key_dim_});
  add_projection("value", {value[1], shared, value_dim}, {shared, value_dim});
  add_projection("attention_output", {num_heads_, value_dim, output}, {output});
  return {Shape{query[0], output}};
}

/// Applies projection `number` (0: query, 1: key, 2: value): [batch, steps, features] -> [batch,
/// heads, steps, features per head].
Tensor MultiHeadAttention::project(const Tensor& x, std::size_t number) const {
  const std::size_t first = number * (options_.use_bias ? 2 : 1);
  const Tensor kernel = as_matrix(weight(first).value(), x.shape()[2]);
  const Tensor bias = options_.use_bias ? reshape(weight(first + 1).value(), {-1}) : Tensor();
  const Tensor y = internal::dense_product(x, kernel, bias);
  const std::int64_t num_heads = number == 0 ? num_heads_ : num_key_value_heads();
  const Shape heads{x.shape()[0], x.shape()[1], num_heads, kernel.shape()[1] / num_heads};
  return transpose(reshape(y, heads), {0, 2, 1, 3});
}

Tensor MultiHeadAttention::positioned(const Tensor& heads, std::int64_t first_step) const {
  if (!options_.rotary_max_wavelength) return heads;
  return internal::rotated_by_step(heads, 2, *options_.rotary_max_wavelength, first_step);
}

Tensor MultiHeadAttention::seen_by(std::span<const Tensor> inputs) const {
  const std::size_t sequences = inputs.size() - (options_.with_mask ? 1 : 0);
  Tensor seen;
  const auto also = [&](const Tensor& mask) {
    const Tensor bits = cast(mask, DType::kBool);
    seen = seen.defined() ? logical_and(seen, bits) : bits;
  };
  if (options_.with_mask) also(expand_dims(inputs.back(), 1));
  for (std::size_t i = 0; i < sequences; ++i) {
    const Tensor mask = MaskScope::mask_of(inputs[i]);
    if (!mask.defined()) continue;
    // Masks become [batch, 1, query steps, 1] or [batch, 1, 1, value steps]. A single input serves
    // as query, value and key.
    if (i == 0) also(expand_dims(expand_dims(mask, 1), 3));
    if (i > 0 || sequences == 1) also(expand_dims(expand_dims(mask, 1), 1));
  }
  return seen;
}

void MultiHeadAttention::require_cacheable(std::span<const Tensor> inputs,
                                           CallContext context) const {
  const bool can = inputs.size() == 1 && options_.use_causal_mask && !context.training &&
                   !MaskScope::mask_of(inputs[0]).defined();
  if (can) return;
  fail(ErrorCode::kUnimplemented,
       "MultiHeadAttention: a call with a KeyValueCache needs .use_causal_mask = true, .training = "
       "false and exactly one input, without a mask; call generate() with .use_cache = false");
}

Tensor MultiHeadAttention::attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const Tensor& seen, CallContext context) const {
  const bool drops = context.training && options_.dropout > 0.0;
  if (!seen.defined() && !drops) {
    return attention(
        query, key, value,
        {.is_causal = options_.use_causal_mask, .steps_before = internal::steps_before(context)});
  }
  Tensor all_seen = seen;
  if (options_.use_causal_mask) {
    const Tensor causal =
        internal::causal_mask(query.shape()[2], key.shape()[2], 0, query.device());
    all_seen = seen.defined() ? logical_and(causal, seen) : causal;
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(key_dim_));
  Tensor shares = internal::attention_shares(query, key, scale, all_seen);
  if (drops) shares = dropout(shares, options_.dropout, next_random_key());
  return internal::mixed_values(shares, value);
}

std::vector<Tensor> MultiHeadAttention::call_all(std::span<const Tensor> inputs,
                                                 CallContext context) const {
  const std::size_t sequences = inputs.size() - (options_.with_mask ? 1 : 0);
  const Tensor& query_input = inputs[0];
  const Tensor& value_input = inputs[sequences > 1 ? 1 : 0];
  const std::int64_t first_step = internal::steps_before(context);
  const Tensor query = positioned(project(query_input, 0), first_step);
  Tensor key = positioned(project(sequences > 2 ? inputs[2] : value_input, 1), first_step);
  Tensor value = project(value_input, 2);
  if (context.cache) {
    require_cacheable(inputs, context);
    std::tie(key, value) = context.cache->appended(key, value);
  }
  const Tensor mixed = attend(query, key, value, seen_by(inputs), context);
  const Tensor heads = transpose(mixed, {0, 2, 1, 3});
  const std::int64_t length = heads.shape()[2] * heads.shape()[3];
  const Tensor merged = reshape(heads, Shape{heads.shape()[0], heads.shape()[1], length});
  const std::size_t last = options_.use_bias ? 6 : 3;
  const Tensor kernel = as_matrix(weight(last).value(), length);
  const Tensor bias = options_.use_bias ? weight(last + 1).value() : Tensor();
  const Tensor result = internal::dense_product(merged, kernel, bias);
  MaskScope::set_mask(result, MaskScope::mask_of(query_input));
  return {result};
}

}  // namespace tutti
