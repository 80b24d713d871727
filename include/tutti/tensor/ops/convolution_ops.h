// Operations on NHWC images: convolution, pooling, upsampling.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tutti/tensor/op.h"

namespace tutti {

// Two-dimensional convolution, which is a cross-correlation, as in other frameworks.

/// Options for conv2d(). Adjacent elements of the window are `dilation` pixels apart. The input and
/// output channels are split into `groups` parts of equal size, and each part of the output depends
/// on one part of the input.
struct Conv2dOptions {
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  Padding padding = Padding::kValid;
  FusedActivation activation = FusedActivation::kNone;
  std::int64_t dilation_h = 1;
  std::int64_t dilation_w = 1;
  std::int64_t groups = 1;
};

/// Options for conv2d_transpose(). An output size of -1 means stride * size for SAME, and stride *
/// size + max(0, window - stride) for VALID (Keras's rule). Other sizes are allowed if conv2d()
/// maps them to the size of the input.
struct Conv2dTransposeOptions {
  std::int64_t stride_h = 1;
  std::int64_t stride_w = 1;
  Padding padding = Padding::kValid;
  std::int64_t output_height = -1;
  std::int64_t output_width = -1;
  std::int64_t dilation_h = 1;
  std::int64_t dilation_w = 1;
};

/// Convolves x [batch, height, width, in] with filter [kernel_height, kernel_width, in / groups,
/// out] -> [batch, out_height, out_width, out]. SAME: out_height = ceil(height / stride_h); VALID:
/// ceil((height - window + 1) / stride_h), window = (kernel_height - 1) * dilation_h + 1. All
/// activations map NaN to NaN. Corresponds to tf.nn.conv2d.
Tensor conv2d(const Operand& x, const Operand& filter, Conv2dOptions options = {});
/// Overload with a bias [out], added before the activation in the same pass.
Tensor conv2d(const Operand& x, const Operand& filter, const Operand& bias,
              Conv2dOptions options = {});

/// Convolves x [batch, height, width, in] with filter [kernel_height, kernel_width, in, multiplier]
/// -> [batch, out_height, out_width, in * multiplier]: each input channel has `multiplier` separate
/// filters; result k of input channel i is output channel i * multiplier + k. options.groups must
/// be 1. Corresponds to tf.nn.depthwise_conv2d.
Tensor depthwise_conv2d(const Operand& x, const Operand& filter, Conv2dOptions options = {});
/// Overload with a bias [in * multiplier], added before the activation.
Tensor depthwise_conv2d(const Operand& x, const Operand& filter, const Operand& bias,
                        Conv2dOptions options = {});

/// Returns the gradient of conv2d() with respect to its image: x [batch, height, width, in], filter
/// [kernel_height, kernel_width, out, in] -> [batch, out_height, out_width, out]. Corresponds to
/// tf.nn.conv2d_transpose.
Tensor conv2d_transpose(const Operand& x, const Operand& filter,
                        Conv2dTransposeOptions options = {});
/// Overload with a bias [out].
Tensor conv2d_transpose(const Operand& x, const Operand& filter, const Operand& bias,
                        Conv2dTransposeOptions options = {});

/// Return the gradients of conv2d(), which are differentiable themselves. `attributes` are those of
/// the forward call.
Tensor conv2d_backward_input(const Operand& dy, const Operand& filter, const Shape& input_shape,
                             const Conv2dAttributes& attributes);
Tensor conv2d_backward_filter(const Operand& x, const Operand& dy, const Shape& filter_shape,
                              const Conv2dAttributes& attributes);
/// Returns dy [..., channels] summed over all axes except the last: [channels].
Tensor bias_grad(const Operand& dy);

// Pooling over windows of NHWC images.

/// Options for pooling: the window size and the strides.
struct Pool2dOptions {
  std::int64_t window_h = 2;
  std::int64_t window_w = 2;
  std::int64_t stride_h = 2;
  std::int64_t stride_w = 2;
  Padding padding = Padding::kValid;
};

/// Pool x [batch, height, width, channels] -> [batch, out_height, out_width, channels]. Maxima and
/// averages ignore padding. The gradient of a maximum goes to the first largest element of the
/// window.
Tensor max_pool2d(const Operand& x, Pool2dOptions options = {});
Tensor average_pool2d(const Operand& x, Pool2dOptions options = {});
/// Return the mean or the maximum over all pixels: x [batch, height, width, channels] -> [batch,
/// channels].
Tensor global_average_pool2d(const Operand& x);
Tensor global_max_pool2d(const Operand& x);

/// Return the gradients of pooling. `attributes` are those of the forward call.
Tensor max_pool2d_grad(const Operand& x, const Operand& dy, const Pool2dAttributes& attributes);
Tensor average_pool2d_grad(const Operand& dy, const Shape& input_shape,
                           const Pool2dAttributes& attributes);

// Upsampling of images.

/// Options for upsample2d(): height and width factors, and the interpolation.
struct UpsampleOptions {
  std::int64_t factor_h = 2;
  std::int64_t factor_w = 2;
  Interpolation interpolation = Interpolation::kNearest;
};

/// Enlarges x [batch, height, width, channels] -> [batch, height * factor_h, width * factor_w,
/// channels]. kBilinear has pixel centres at half-integers and repeats the border, like
/// tf.image.resize and Keras's UpSampling2D.
Tensor upsample2d(const Operand& x, UpsampleOptions options = {});
/// Returns the gradient of upsample2d(), of shape `input_shape`. Adds each pixel of dy, times the
/// weights of the interpolation, to the pixels from which it was interpolated. Differentiable.
Tensor upsample2d_grad(const Operand& dy, const Shape& input_shape,
                       const UpsampleAttributes& attributes);

}  // namespace tutti
