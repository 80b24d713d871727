// Images of another size: checks and calls.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/resizing.h"

#include "tutti/tensor/ops/checks.h"

namespace tutti {

using namespace internal;

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
