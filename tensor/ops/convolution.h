// Two-dimensional convolution (cross-correlation, as everywhere in this field).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/tensor/op.h"
#include "tutti/tensor/operand.h"

namespace tutti {

struct Conv2dOptions {
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  Padding padding = Padding::kValid;
  FusedActivation activation = FusedActivation::kNone;
};

/// x [batch, height, width, in], filter [kernel_height, kernel_width, in, out] ->
/// [batch, out_height, out_width, out]. SAME: out_height = ceil(height / stride_h); VALID:
/// ceil((height - kernel_height + 1) / stride_h). A NaN stays a NaN through every activation.
/// tf.nn.conv2d.
Tensor conv2d(const Operand& x, const Operand& filter, Conv2dOptions options = {});
/// The same plus bias [out], then the activation, in one pass.
Tensor conv2d(const Operand& x, const Operand& filter, const Operand& bias,
              Conv2dOptions options = {});

/// The gradients of conv2d, themselves differentiable. `attributes` are those of the recorded call.
Tensor conv2d_backward_input(const Operand& dy, const Operand& filter, const Shape& input_shape,
                             const Conv2dAttributes& attributes);
Tensor conv2d_backward_filter(const Operand& x, const Operand& dy, const Shape& filter_shape,
                              const Conv2dAttributes& attributes);
/// dy [..., channels] summed over all other axes -> [channels].
Tensor bias_grad(const Operand& dy);

}  // namespace tutti
