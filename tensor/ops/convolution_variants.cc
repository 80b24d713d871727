// Depthwise and transposed convolution: both are conv2d's kernels under another reading.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/tensor/ops/checks.h"
#include "tutti/tensor/ops/convolution.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using namespace internal;

constexpr std::string_view kDepthwise = "depthwise_conv2d";
constexpr std::string_view kTransposed = "conv2d_transpose";

template <class... Parts>
[[noreturn]] void fail_as(std::string_view operation, const Operand& x, const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, who(operation, x.where), ": ", parts...);
}

/// What both operations expect of an image and a filter.
void check_pair(std::string_view operation, OpId op, const Operand& x, const Operand& filter,
                const char* layout) {
  defined(op, x);
  defined(op, filter);
  if (x.shape().rank() != 4) {
    fail_as(operation, x, "expected an input [batch, height, width, channels], got ", x.shape());
  }
  if (filter.shape().rank() != 4) {
    fail_as(operation, x, "expected a filter ", layout, ", got ", filter.shape());
  }
}

/// [height, width, in, multiplier] as the filter [height, width, 1, in * multiplier] of as many
/// groups as there are input channels: the same elements in the same order.
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

/// What goes wrong in the grouped convolution is told as what was called.
template <class Convolve>
Tensor as_depthwise(const Operand& x, const Convolve& convolve) {
  try {
    return convolve();
  } catch (const Error& error) {
    throw error.with_context(who(kDepthwise, x.where));
  }
}

/// The size of one axis of a transposed convolution's result.
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
    fail_as(kTransposed, x, "expected a window, strides and dilations of 1 or more, got window ",
            f[0], " x ", f[1], ", strides ", options.stride_h, " x ", options.stride_w,
            " and dilations ", options.dilation_h, " x ", options.dilation_w);
  }
}

/// The convolution of an image of `size` along one axis, which must give `input` positions.
WindowAxis transposed_axis(const Operand& x, std::int64_t size, std::int64_t input,
                           std::int64_t window, std::int64_t stride, Padding padding) {
  if (size >= 0 && (padding == Padding::kSame || size - window + stride >= 0)) {
    const WindowAxis axis =
        window_axis(OpId::kConv2dBackwardInput, x.where, size, window, stride, padding);
    if (axis.output == input) return axis;
  }
  fail_as(kTransposed, x, "expected an output size that a convolution of stride ", stride,
          " and window ", window, " brings to ", input, " for input ", x.shape(), ", got ", size);
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

}  // namespace tutti
