// Operations on NHWC images: convolution, pooling, upsampling.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/tensor/op.h"

namespace tutti {

// Two-dimensional convolution (cross-correlation, as everywhere in this field).

/// The window's elements stand `dilation` pixels apart. With groups, the input and output channels
/// are cut into so many equal parts and each part of the output sees one part of the input.
struct Conv2dOptions {
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  Padding padding = Padding::kValid;
  FusedActivation activation = FusedActivation::kNone;
  std::int64_t dilation_h = 1;
  std::int64_t dilation_w = 1;
  std::int64_t groups = 1;
};

/// Sizes of the result; -1: stride * size for SAME, that plus max(0, window - stride) for VALID
/// (Keras's rule; another size that a convolution would bring back to the input's is allowed).
struct Conv2dTransposeOptions {
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  Padding padding = Padding::kValid;
  std::int64_t output_height = -1;
  std::int64_t output_width = -1;
  std::int64_t dilation_h = 1;
  std::int64_t dilation_w = 1;
};

/// x [batch, height, width, in], filter [kernel_height, kernel_width, in / groups, out] ->
/// [batch, out_height, out_width, out]. SAME: out_height = ceil(height / stride_h); VALID:
/// ceil((height - window + 1) / stride_h), window = (kernel_height - 1) * dilation_h + 1. A NaN
/// stays a NaN through every activation. tf.nn.conv2d.
Tensor conv2d(const Operand& x, const Operand& filter, Conv2dOptions options = {});
/// The same plus bias [out], then the activation, in one pass.
Tensor conv2d(const Operand& x, const Operand& filter, const Operand& bias,
              Conv2dOptions options = {});

/// x [batch, height, width, in], filter [kernel_height, kernel_width, in, multiplier] ->
/// [batch, out_height, out_width, in * multiplier]: each input channel has `multiplier` filters of
/// its own; channel i's k-th result is channel i * multiplier + k. options.groups must be 1.
/// tf.nn.depthwise_conv2d.
Tensor depthwise_conv2d(const Operand& x, const Operand& filter, Conv2dOptions options = {});
/// The same plus bias [in * multiplier], then the activation.
Tensor depthwise_conv2d(const Operand& x, const Operand& filter, const Operand& bias,
                        Conv2dOptions options = {});

/// x [batch, height, width, in], filter [kernel_height, kernel_width, out, in] ->
/// [batch, out_height, out_width, out]: the gradient of conv2d with respect to its image, used
/// forwards. tf.nn.conv2d_transpose.
Tensor conv2d_transpose(const Operand& x, const Operand& filter,
                        Conv2dTransposeOptions options = {});
/// The same plus bias [out].
Tensor conv2d_transpose(const Operand& x, const Operand& filter, const Operand& bias,
                        Conv2dTransposeOptions options = {});

/// The gradients of conv2d, themselves differentiable. `attributes` are those of the recorded call.
Tensor conv2d_backward_input(const Operand& dy, const Operand& filter, const Shape& input_shape,
                             const Conv2dAttributes& attributes);
Tensor conv2d_backward_filter(const Operand& x, const Operand& dy, const Shape& filter_shape,
                              const Conv2dAttributes& attributes);
/// dy [..., channels] summed over all other axes -> [channels].
Tensor bias_grad(const Operand& dy);

// Pooling over windows of NHWC images.

/// The window, and how far it moves.
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

// Images of another size.

/// How many times as high and as wide, and by which rule.
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
