// Images of another size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"
#include "tutti/tensor/operand.h"

namespace tutti {

struct UpsampleOptions {
  std::int64_t factor_h = 2;
  std::int64_t factor_w = 2;
  Interpolation interpolation = Interpolation::kNearest;
};

/// x [batch, height, width, channels] -> [batch, height * factor_h, width * factor_w, channels].
/// kBilinear takes pixel centres at half numbers and repeats the border, as tf.image.resize and
/// Keras's UpSampling2D do.
Tensor upsample2d(const Operand& x, UpsampleOptions options = {});
/// Its gradient: each pixel of dy added to the pixels of an image of `input_shape` that it was made
/// of. Itself differentiable.
Tensor upsample2d_grad(const Operand& dy, const Shape& input_shape,
                       const UpsampleAttributes& attributes);

}  // namespace tutti
