// Pooling over windows of NHWC images.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/op.h"
#include "tutti/tensor/operand.h"

namespace tutti {

struct Pool2dOptions {
  std::int64_t window_h = 2;
  std::int64_t window_w = 2;
  std::int64_t stride_h = 2;
  std::int64_t stride_w = 2;
  Padding padding = Padding::kValid;
};

/// x [batch, height, width, channels] -> [batch, out_height, out_width, channels]. Padding never
/// wins a maximum and is not counted by an average. The gradient of a maximum goes to the first
/// largest element of the window.
Tensor max_pool2d(const Operand& x, Pool2dOptions options = {});
Tensor average_pool2d(const Operand& x, Pool2dOptions options = {});
/// [batch, height, width, channels] -> [batch, channels].
Tensor global_average_pool2d(const Operand& x);
Tensor global_max_pool2d(const Operand& x);

/// Gradients; `attributes` are those of the recorded call.
Tensor max_pool2d_grad(const Operand& x, const Operand& dy, const Pool2dAttributes& attributes);
Tensor average_pool2d_grad(const Operand& dy, const Shape& input_shape,
                           const Pool2dAttributes& attributes);

}  // namespace tutti
