// Convolution, pooling and upsampling of images: argument checks and dispatch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution_ops.h"

#include <algorithm>

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Two-dimensional convolution.

namespace {

using namespace internal;

void check_filter(std::string_view operation, const Operand& x, const Shape& filter,
                  const char* expected) {
  if (filter.rank() == 4) return;
  fail(ErrorCode::kInvalidArgument, who(operation, x.where), ": expected a filter of shape ",
       expected, ", got ", filter);
}

void check_dilation(OpId op, const Operand& x, std::int64_t h, std::int64_t w) {
  if (h >= 1 && w >= 1) return;
  fail_op(op, x.where, "expected dilations >= 1, got ", h, " x ", w);
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

// Throws unless x, filter and dy belong to the same convolution.
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
  fail_op(op, where, "shapes of the convolution do not match; got input ", x, ", filter ", filter,
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
  require_floating(OpId::kBiasGrad, dy);
  if (dy.shape().rank() < 1) {
    fail_op(OpId::kBiasGrad, dy.where, "expected [..., channels], got ", dy.shape());
  }
  return dispatch_one(
      {OpId::kBiasGrad, {dy.tensor}, {{{dy.shape().dim(-1)}, dy.dtype()}}, {}, dy.where});
}

// Depthwise and transposed convolution, which use the kernels of conv2d.

namespace {

constexpr std::string_view kDepthwise = "depthwise_conv2d";
constexpr std::string_view kTransposed = "conv2d_transpose";

template <class... Parts>
[[noreturn]] void fail_as(std::string_view operation, const Operand& x, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, who(operation, x.where), ": ", parts...);
}

/// Checks that the image and the filter have rank 4.
void check_pair(std::string_view operation, OpId op, const Operand& x, const Operand& filter,
                const char* layout) {
  defined(op, x);
  defined(op, filter);
  if (x.shape().rank() != 4) {
    fail_as(operation, x, "expected an input [batch, height, width, channels], got ", x.shape());
  }
  if (filter.shape().rank() != 4) {
    fail_as(operation, x, "expected a filter of shape ", layout, ", got ", filter.shape());
  }
}

/// Reshapes the filter [height, width, in, multiplier] to [height, width, 1, in * multiplier],
/// which keeps the order of elements, and sets one group per input channel.
Operand grouped_filter(const Operand& x, const Operand& filter, Conv2dOptions& options) {
  check_pair(kDepthwise, OpId::kConv2d, x, filter, "[height, width, in, multiplier]");
  const Shape& f = filter.shape();
  if (x.shape()[3] != f[2]) {
    fail_as(kDepthwise, x, "input channels do not fit the filter; expected [batch, height, width, ",
            f[2], "] for filter ", f, ", got ", x.shape());
  }
  if (options.groups != 1) fail_as(kDepthwise, x, "expected groups 1, got ", options.groups);
  options.groups = std::max<std::int64_t>(1, f[2]);
  return Operand(reshape(filter, Shape{f[0], f[1], f[2] == 0 ? 0 : 1, f[2] * f[3]}), x.where);
}

/// Calls convolve(), and prefixes its errors with depthwise_conv2d.
template <class Convolve>
Tensor as_depthwise(const Operand& x, const Convolve& convolve) {
  try {
    return convolve();
  } catch (const Error& error) {
    throw error.with_context(who(kDepthwise, x.where));
  }
}

/// Returns the size of one axis of a transposed convolution's result.
std::int64_t transposed_size(std::int64_t asked, std::int64_t input, std::int64_t window,
                             std::int64_t stride, Padding padding) {
  if (asked != -1) return asked;
  const std::int64_t rest = std::max<std::int64_t>(0, window - stride);
  return input * stride + (padding == Padding::kValid ? rest : 0);
}

void check_transposed(const Operand& x, const Operand& filter,
                      const Conv2dTransposeOptions& options) {
  constexpr OpId op = OpId::kConv2dBackwardInput;
  check_pair(kTransposed, op, x, filter, "[height, width, out, in]");
  require_floating(op, x);
  require_same_dtype(op, x.tensor, filter.tensor, x.where);
  const Shape& f = filter.shape();
  if (x.shape()[3] != f[3]) {
    fail_as(kTransposed, x, "input channels do not fit the filter; expected ",
            "[batch, height, width, ", f[3], "] for filter ", f, ", got ", x.shape());
  }
  if (f[0] < 1 || f[1] < 1 || options.stride_h < 1 || options.stride_w < 1 ||
      options.dilation_h < 1 || options.dilation_w < 1) {
    fail_as(kTransposed, x, "expected a window, strides and dilations >= 1, got window ", f[0],
            " x ", f[1], ", strides ", options.stride_h, " x ", options.stride_w, " and dilations ",
            options.dilation_h, " x ", options.dilation_w);
  }
}

/// Returns a convolution's window along one image axis of length `size`. Throws unless the window
/// has `input` positions.
WindowAxis transposed_axis(const Operand& x, std::int64_t size, std::int64_t input,
                           std::int64_t window, std::int64_t stride, Padding padding) {
  if (size >= 0 && (padding == Padding::kSame || size - window + stride >= 0)) {
    const WindowAxis axis =
        window_axis(OpId::kConv2dBackwardInput, x.where, size, window, stride, padding);
    if (axis.output == input) return axis;
  }
  fail_as(kTransposed, x, "expected an output size that a convolution of stride ", stride,
          " and window ", window, " reduces to ", input, " for input ", x.shape(), ", got ", size);
}

}  // namespace

Tensor depthwise_conv2d(const Operand& x, const Operand& filter, Conv2dOptions options) {
  const Operand grouped = grouped_filter(x, filter, options);
  return as_depthwise(x, [&] { return conv2d(x, grouped, options); });
}

Tensor depthwise_conv2d(const Operand& x, const Operand& filter, const Operand& bias,
                        Conv2dOptions options) {
  const Operand grouped = grouped_filter(x, filter, options);
  return as_depthwise(x, [&] { return conv2d(x, grouped, bias, options); });
}

Tensor conv2d_transpose(const Operand& x, const Operand& filter, Conv2dTransposeOptions options) {
  check_transposed(x, filter, options);
  const Shape& s = x.shape();
  const Shape& f = filter.shape();
  const std::int64_t window_h = dilated(f[0], options.dilation_h);
  const std::int64_t window_w = dilated(f[1], options.dilation_w);
  const std::int64_t height =
      transposed_size(options.output_height, s[1], window_h, options.stride_h, options.padding);
  const std::int64_t width =
      transposed_size(options.output_width, s[2], window_w, options.stride_w, options.padding);
  const WindowAxis h =
      transposed_axis(x, height, s[1], window_h, options.stride_h, options.padding);
  const WindowAxis w = transposed_axis(x, width, s[2], window_w, options.stride_w, options.padding);
  const Conv2dAttributes attributes{
      options.stride_h, options.stride_w,       h.pad_before,       h.pad_after,       w.pad_before,
      w.pad_after,      FusedActivation::kNone, options.dilation_h, options.dilation_w};
  return conv2d_backward_input(x, filter, {s[0], height, width, f[2]}, attributes);
}

Tensor conv2d_transpose(const Operand& x, const Operand& filter, const Operand& bias,
                        Conv2dTransposeOptions options) {
  const Tensor& b = defined(OpId::kConv2dBackwardInput, bias);
  const Operand y(conv2d_transpose(x, filter, options), x.where);
  if (b.shape() != Shape{y.shape()[3]} || b.dtype() != y.dtype()) {
    fail_as(kTransposed, x, "the bias does not fit; expected ", y.dtype(), " [", y.shape()[3],
            "], got ", b.dtype(), " ", b.shape());
  }
  return add(y, bias);
}

// Pooling: argument checks and dispatch.

namespace {

using namespace internal;

Tensor pool(OpId op, const Operand& x, const Pool2dOptions& options) {
  check_window(op, x, options.window_h, options.window_w, options.stride_h, options.stride_w);
  const Shape& s = x.shape();
  const WindowAxis h =
      window_axis(op, x.where, s[1], options.window_h, options.stride_h, options.padding);
  const WindowAxis w =
      window_axis(op, x.where, s[2], options.window_w, options.stride_w, options.padding);
  return dispatch_one(
      {op,
       {x.tensor},
       {{{s[0], h.output, w.output, s[3]}, x.dtype()}},
       Pool2dAttributes{options.window_h, options.window_w, options.stride_h, options.stride_w,
                        h.pad_before, h.pad_after, w.pad_before, w.pad_after},
       x.where});
}

void check_gradient(OpId op, const Operand& dy, const Shape& x, const Pool2dAttributes& a) {
  require_floating(op, dy);
  if (x.rank() == 4 && a.stride_h > 0 && a.stride_w > 0) {
    const Shape expected{
        x[0], window_positions(x[1], a.pad_top, a.pad_bottom, a.window_h, a.stride_h),
        window_positions(x[2], a.pad_left, a.pad_right, a.window_w, a.stride_w), x[3]};
    if (dy.shape() == expected) return;
  }
  fail_op(op, dy.where, "shapes of the pooling do not match; got input ", x,
          " and gradient of the result ", dy.shape());
}

}  // namespace

Tensor max_pool2d(const Operand& x, Pool2dOptions options) {
  return pool(OpId::kMaxPool, x, options);
}

Tensor average_pool2d(const Operand& x, Pool2dOptions options) {
  return pool(OpId::kAveragePool, x, options);
}

Tensor global_average_pool2d(const Operand& x) {
  check_window(OpId::kAveragePool, x, 1, 1, 1, 1);
  return reduce_mean(x, {.axes = {1, 2}});
}

Tensor global_max_pool2d(const Operand& x) {
  check_window(OpId::kMaxPool, x, 1, 1, 1, 1);
  return reduce_max(x, {.axes = {1, 2}});
}

Tensor max_pool2d_grad(const Operand& x, const Operand& dy, const Pool2dAttributes& attributes) {
  constexpr OpId op = OpId::kMaxPoolGrad;
  require_same_dtype(op, defined(op, x), defined(op, dy), dy.where);
  check_gradient(op, dy, x.shape(), attributes);
  return dispatch_one({op, {x.tensor, dy.tensor}, {{x.shape(), x.dtype()}}, attributes, dy.where});
}

Tensor average_pool2d_grad(const Operand& dy, const Shape& input_shape,
                           const Pool2dAttributes& attributes) {
  check_gradient(OpId::kAveragePoolGrad, dy, input_shape, attributes);
  return dispatch_one(
      {OpId::kAveragePoolGrad, {dy.tensor}, {{input_shape, dy.dtype()}}, attributes, dy.where});
}

// Upsampling: argument checks and dispatch.

Tensor upsample2d(const Operand& x, UpsampleOptions options) {
  constexpr OpId op = OpId::kUpsample;
  require_floating(op, x);
  const Shape& s = x.shape();
  if (s.rank() != 4) {
    fail_op(op, x.where, "expected an input [batch, height, width, channels], got ", s);
  }
  if (options.factor_h < 1 || options.factor_w < 1) {
    fail_op(op, x.where, "expected factors >= 1 for input ", s, ", got ", options.factor_h, " x ",
            options.factor_w);
  }
  return dispatch_one(
      {op,
       {x.tensor},
       {{{s[0], s[1] * options.factor_h, s[2] * options.factor_w, s[3]}, x.dtype()}},
       UpsampleAttributes{options.factor_h, options.factor_w, options.interpolation},
       x.where});
}

Tensor upsample2d_grad(const Operand& dy, const Shape& input_shape,
                       const UpsampleAttributes& attributes) {
  constexpr OpId op = OpId::kUpsampleGrad;
  require_floating(op, dy);
  const Shape& s = input_shape;
  const bool fits = s.rank() == 4 && dy.shape() == Shape{s[0], s[1] * attributes.factor_h,
                                                         s[2] * attributes.factor_w, s[3]};
  if (!fits) {
    fail_op(op, dy.where, "shapes of the upsampling do not match; got input ", s,
            ", gradient of the result ", dy.shape(), " and factors ", attributes.factor_h, " x ",
            attributes.factor_w);
  }
  return dispatch_one({op, {dy.tensor}, {{input_shape, dy.dtype()}}, attributes, dy.where});
}

}  // namespace tutti
