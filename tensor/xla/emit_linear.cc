// Matrix products and convolutions in StableHLO.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/elementwise_functions.h"
#include "tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

/// Merges all axes but the last two.
Hlo as_batch_of_matrices(const Hlo& x) {
  const std::int64_t rows = x.shape.dim(-2), columns = x.shape.dim(-1);
  const Shape batch(x.shape.dims().first(static_cast<std::size_t>(x.shape.rank() - 2)));
  return x.text->reshape(x, {batch.num_elements(), rows, columns});
}

Hlo product_of(const Hlo& a, const Hlo& b, const MatMulAttributes& how, const Shape& shape) {
  HloText& text = *a.text;
  if (how.sum_over_batch) {
    const auto rows = [&](const Hlo& x) {
      const std::int64_t columns = x.shape.dim(-1);
      return text.reshape(x, {x.shape.num_elements() / columns, columns});
    };
    return text.dot(rows(a), rows(b), {}, {}, 0, 0, shape);
  }
  const int rank_a = a.shape.rank(), rank_b = b.shape.rank();
  const std::int64_t contract_a = how.transpose_a ? rank_a - 2 : rank_a - 1;
  const std::int64_t contract_b = how.transpose_b ? rank_b - 1 : rank_b - 2;
  if (rank_b == 2) return text.dot(a, b, {}, {}, contract_a, contract_b, shape);
  const Hlo all_b = as_batch_of_matrices(b);
  const std::int64_t batch = all_b.shape.dim(0);
  const Hlo all_a =
      rank_a == 2 ? text.broadcast(a, a.shape.with_front(batch)) : as_batch_of_matrices(a);
  return text.reshape(text.dot(all_a, all_b, {0}, {0}, how.transpose_a ? 1 : 2,
                               how.transpose_b ? 2 : 1, {batch, shape.dim(-2), shape.dim(-1)}),
                      shape);
}

Hlo with_bias(HloInputs in, const Hlo& x) {
  return in.size() > 2 ? x + x.text->broadcast(in[2], x.shape) : x;
}

Hlos matrix_product(HloText&, const OpCall& call, HloInputs in) {
  const auto& how = call.attributes_as<MatMulAttributes>();
  const Hlo product = product_of(in[0], in[1], how, call.outputs[0].shape);
  return {activated(how.activation, with_bias(in, product))};
}

Hlos convolve_images(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<Conv2dAttributes>();
  const HloConvolution how{.axes = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]",
                           .stride = {a.stride_h, a.stride_w},
                           .padding = {{a.pad_top, a.pad_bottom}, {a.pad_left, a.pad_right}},
                           .rhs_dilation = {a.dilation_h, a.dilation_w},
                           .feature_groups = a.groups};
  const Hlo y = text.convolution(in[0], in[1], how, call.outputs[0].shape);
  return {activated(a.activation, with_bias(in, y))};
}

/// Converts [h, w, in per group, groups * out per group] to [h, w, groups * in per group, out per
/// group].
Hlo groups_moved_to_inputs(const Hlo& filter, std::int64_t groups) {
  if (groups == 1) return filter;
  HloText& text = *filter.text;
  const Shape& s = filter.shape;
  const std::int64_t out = s[3] / groups;
  const std::int64_t permutation[] = {0, 1, 3, 2, 4};
  const Hlo parts = text.reshape(filter, {s[0], s[1], s[2], groups, out});
  return text.reshape(text.transpose(parts, permutation), {s[0], s[1], groups * s[2], out});
}

/// Returns the padding for which windows of stride 1 over a dilated gradient yield `size` elements.
HloPadding padding_of_transposed(std::int64_t size, std::int64_t dilated, std::int64_t window,
                                 std::int64_t pad_before) {
  const std::int64_t low = window - 1 - pad_before;
  return {low, size - dilated - low + window - 1};
}

// Computes the transposed convolution: strides become gaps in dy, and the filter is reversed.
Hlos input_gradient(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<Conv2dAttributes>();
  const Shape &x = call.outputs[0].shape, &dy = in[0].shape, &filter = in[1].shape;
  const int spatial[] = {0, 1};
  const Hlo turned = text.reverse(groups_moved_to_inputs(in[1], a.groups), spatial);
  const HloConvolution how{
      .axes = "[b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f]",
      .padding = {padding_of_transposed(x[1], (dy[1] - 1) * a.stride_h + 1,
                                        (filter[0] - 1) * a.dilation_h + 1, a.pad_top),
                  padding_of_transposed(x[2], (dy[2] - 1) * a.stride_w + 1,
                                        (filter[1] - 1) * a.dilation_w + 1, a.pad_left)},
      .lhs_dilation = {a.stride_h, a.stride_w},
      .rhs_dilation = {a.dilation_h, a.dilation_w},
      .feature_groups = a.groups};
  return {text.convolution(in[0], turned, how, x)};
}

// Convolves x with dy, used as a dilated filter, and sums over the images.
Hlos filter_gradient(HloText& text, const OpCall& call, HloInputs in) {
  const auto& a = call.attributes_as<Conv2dAttributes>();
  const Shape &filter = call.outputs[0].shape, &x = in[0].shape, &dy = in[1].shape;
  const auto behind = [](std::int64_t taps, std::int64_t dilation, std::int64_t outputs,
                         std::int64_t stride, std::int64_t size, std::int64_t before) {
    return (taps - 1) * dilation + (outputs - 1) * stride + 1 - size - before;
  };
  const HloConvolution how{
      .axes = "[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]",
      .stride = {a.dilation_h, a.dilation_w},
      .padding = {{a.pad_top, behind(filter[0], a.dilation_h, dy[1], a.stride_h, x[1], a.pad_top)},
                  {a.pad_left,
                   behind(filter[1], a.dilation_w, dy[2], a.stride_w, x[2], a.pad_left)}},
      .rhs_dilation = {a.stride_h, a.stride_w},
      .batch_groups = a.groups};
  return {text.convolution(in[0], in[1], how, filter)};
}

Hlos bias_gradient_of(HloText& text, const OpCall&, HloInputs in) {
  return {text.reduce("add", in[0], 0.0, (1u << (in[0].shape.rank() - 1)) - 1)};
}

}  // namespace

void register_linear_emitters(HloEmitters& emitters) {
  emitters.set(OpId::kMatMul, matrix_product);
  emitters.set(OpId::kConv2d, convolve_images);
  emitters.set(OpId::kConv2dBackwardInput, input_gradient);
  emitters.set(OpId::kConv2dBackwardFilter, filter_gradient);
  emitters.set(OpId::kBiasGrad, bias_gradient_of);
}

}  // namespace tutti::internal
