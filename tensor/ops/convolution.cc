// Two-dimensional convolution: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution.h"

#include "tutti/tensor/ops/window.h"

namespace tutti {
namespace {

using namespace internal;

Tensor convolve(const Operand& x, const Operand& filter, const Tensor* bias,
                const Conv2dOptions& options) {
  constexpr OpId op = OpId::kConv2d;
  defined(op, filter);
  const Shape& f = filter.shape();
  if (f.rank() != 4) {
    fail_op(op, x.where, "expected a filter [height, width, in, out], got ", f);
  }
  check_window(op, x, f[0], f[1], options.stride_h, options.stride_w);
  require_same_dtype(op, x.tensor, filter.tensor, x.where);
  const Shape& s = x.shape();
  if (s[3] != f[2]) {
    fail_op(op, x.where, "input channels do not fit the filter; expected [batch, height, width, ",
            f[2], "] for filter ", f, ", got ", s);
  }
  if (bias != nullptr && (bias->shape() != Shape{f[3]} || bias->dtype() != x.dtype())) {
    fail_op(op, x.where, "the bias does not fit; expected ", x.dtype(), " [", f[3], "], got ",
            bias->dtype(), " ", bias->shape());
  }
  const WindowAxis h = window_axis(op, x.where, s[1], f[0], options.stride_h, options.padding);
  const WindowAxis w = window_axis(op, x.where, s[2], f[1], options.stride_w, options.padding);
  std::vector<Tensor> inputs{x.tensor, filter.tensor};
  if (bias != nullptr) inputs.push_back(*bias);
  return dispatch_one({op,
                       std::move(inputs),
                       {{{s[0], h.output, w.output, f[3]}, x.dtype()}},
                       Conv2dAttributes{options.stride_h, options.stride_w, h.pad_before,
                                        h.pad_after, w.pad_before, w.pad_after, options.activation},
                       x.where});
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
  return dispatch_one({OpId::kConv2dBackwardInput,
                       {dy.tensor, filter.tensor},
                       {{input_shape, dy.dtype()}},
                       attributes,
                       dy.where});
}

Tensor conv2d_backward_filter(const Operand& x, const Operand& dy, const Shape& filter_shape,
                              const Conv2dAttributes& attributes) {
  return dispatch_one({OpId::kConv2dBackwardFilter,
                       {x.tensor, dy.tensor},
                       {{filter_shape, dy.dtype()}},
                       attributes,
                       dy.where});
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
