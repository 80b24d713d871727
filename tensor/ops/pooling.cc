// Pooling, and images of another size: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/convolution_ops.h"

#include "tensor/op_checks.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti {

// Pooling: checks and calls.

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
  fail_op(op, dy.where, "shapes do not belong to one pooling; got input ", x,
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

// Images of another size: checks and calls.

Tensor upsample2d(const Operand& x, UpsampleOptions options) {
  constexpr OpId op = OpId::kUpsample;
  require_floating(op, x);
  const Shape& s = x.shape();
  if (s.rank() != 4) {
    fail_op(op, x.where, "expected an input [batch, height, width, channels], got ", s);
  }
  if (options.factor_h < 1 || options.factor_w < 1) {
    fail_op(op, x.where, "expected factors of 1 or more for input ", s, ", got ", options.factor_h,
            " x ", options.factor_w);
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
    fail_op(op, dy.where, "shapes do not belong to one enlargement; got input ", s,
            ", gradient of the result ", dy.shape(), " and factors ", attributes.factor_h, " x ",
            attributes.factor_w);
  }
  return dispatch_one({op, {dy.tensor}, {{input_shape, dy.dtype()}}, attributes, dy.where});
}

}  // namespace tutti
