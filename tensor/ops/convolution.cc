// Two-dimensional convolution: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution.h"

#include "tutti/tensor/ops/checks.h"

namespace tutti {
namespace {

using namespace internal;

void check_filter(std::string_view operation, const Operand& x, const Shape& filter,
                  const char* expected) {
  if (filter.rank() == 4) return;
  fail(ErrorCode::kInvalidArgument, who(operation, x.where), ": expected a filter ", expected,
       ", got ", filter);
}

void check_dilation(OpId op, const Operand& x, std::int64_t h, std::int64_t w) {
  if (h >= 1 && w >= 1) return;
  fail_op(op, x.where, "expected dilations of 1 or more, got ", h, " x ", w);
}

void check_groups(OpId op, const Operand& x, const Shape& f, std::int64_t groups) {
  const Shape& s = x.shape();
  if (groups < 1 || s[3] % groups != 0 || f[3] % groups != 0) {
    fail_op(op, x.where, "expected groups that divide the channels of input ", s, " and filter ", f,
            ", got ", groups);
  }
  if (s[3] != f[2] * groups) {
    fail_op(op, x.where, "input channels do not fit the filter; expected [batch, height, width, ",
            f[2] * groups, "] for filter ", f,
            groups > 1 ? concat(" in ", groups, " groups") : std::string(), ", got ", s);
  }
}

Tensor convolve(const Operand& x, const Operand& filter, const Tensor* bias,
                const Conv2dOptions& options) {
  constexpr OpId op = OpId::kConv2d;
  defined(op, filter);
  const Shape& f = filter.shape();
  check_filter(to_string(op), x, f, "[height, width, in, out]");
  check_window(op, x, f[0], f[1], options.stride_h, options.stride_w);
  check_dilation(op, x, options.dilation_h, options.dilation_w);
  require_same_dtype(op, x.tensor, filter.tensor, x.where);
  const Shape& s = x.shape();
  check_groups(op, x, f, options.groups);
  if (bias != nullptr && (bias->shape() != Shape{f[3]} || bias->dtype() != x.dtype())) {
    fail_op(op, x.where, "the bias does not fit; expected ", x.dtype(), " [", f[3], "], got ",
            bias->dtype(), " ", bias->shape());
  }
  const WindowAxis h = window_axis(op, x.where, s[1], dilated(f[0], options.dilation_h),
                                   options.stride_h, options.padding);
  const WindowAxis w = window_axis(op, x.where, s[2], dilated(f[1], options.dilation_w),
                                   options.stride_w, options.padding);
  std::vector<Tensor> inputs{x.tensor, filter.tensor};
  if (bias != nullptr) inputs.push_back(*bias);
  return dispatch_one({op,
                       std::move(inputs),
                       {{{s[0], h.output, w.output, f[3]}, x.dtype()}},
                       Conv2dAttributes{options.stride_h, options.stride_w, h.pad_before,
                                        h.pad_after, w.pad_before, w.pad_after, options.activation,
                                        options.dilation_h, options.dilation_w, options.groups},
                       x.where});
}

// x, filter and dy must belong to one convolution.
void check_gradient(OpId op, const SourceLocation& where, const Shape& x, const Shape& filter,
                    const Shape& dy, const Conv2dAttributes& a) {
  if (x.rank() == 4 && filter.rank() == 4 && x[3] == filter[2] * a.groups && a.stride_h > 0 &&
      a.stride_w > 0) {
    const Shape expected{x[0],
                         window_positions(x[1], a.pad_top, a.pad_bottom,
                                          dilated(filter[0], a.dilation_h), a.stride_h),
                         window_positions(x[2], a.pad_left, a.pad_right,
                                          dilated(filter[1], a.dilation_w), a.stride_w),
                         filter[3]};
    if (dy == expected) return;
  }
  fail_op(op, where, "shapes do not belong to one convolution; got input ", x, ", filter ", filter,
          " and gradient of the result ", dy);
}

}  // namespace

Tensor conv2d(const Operand& x, const Operand& filter, Conv2dOptions options) {
  return convolve(x, filter, nullptr, options);
}

Tensor conv2d(const Operand& x, const Operand& filter, const Operand& bias, Conv2dOptions options) {
  return convolve(x, filter, &defined(OpId::kConv2d, bias), options);
}

Tensor conv2d_backward_input(const Operand& dy, const Operand& filter, const Shape& input_shape,
                             const Conv2dAttributes& attributes) {
  constexpr OpId op = OpId::kConv2dBackwardInput;
  require_floating(op, dy);
  require_same_dtype(op, dy.tensor, defined(op, filter), dy.where);
  check_gradient(op, dy.where, input_shape, filter.shape(), dy.shape(), attributes);
  return dispatch_one(
      {op, {dy.tensor, filter.tensor}, {{input_shape, dy.dtype()}}, attributes, dy.where});
}

Tensor conv2d_backward_filter(const Operand& x, const Operand& dy, const Shape& filter_shape,
                              const Conv2dAttributes& attributes) {
  constexpr OpId op = OpId::kConv2dBackwardFilter;
  require_floating(op, dy);
  require_same_dtype(op, dy.tensor, defined(op, x), dy.where);
  check_gradient(op, dy.where, x.shape(), filter_shape, dy.shape(), attributes);
  return dispatch_one(
      {op, {x.tensor, dy.tensor}, {{filter_shape, dy.dtype()}}, attributes, dy.where});
}

Tensor bias_grad(const Operand& dy) {
  defined(OpId::kBiasGrad, dy);
  require_floating(OpId::kBiasGrad, dy);
  if (dy.shape().rank() < 1) {
    fail_op(OpId::kBiasGrad, dy.where, "expected [..., channels], got ", dy.shape());
  }
  return dispatch_one(
      {OpId::kBiasGrad, {dy.tensor}, {{{dy.shape().dim(-1)}, dy.dtype()}}, {}, dy.where});
}

}  // namespace tutti
