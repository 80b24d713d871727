// Convolution layers for images and for sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/size2d.h"

namespace tutti {

namespace internal {

/// Base class of two-dimensional convolution layers. Holds and checks the filters, the kernel size,
/// the options and the activation.
template <class Options>
class ImageConvolution : public Layer {
 protected:
  ImageConvolution(std::string_view who, std::int64_t filters, Size2D kernel_size, Options options)
      : Layer(options.name, options.input_shape),
        filters_(filters),
        kernel_size_(kernel_size),
        options_(std::move(options)),
        padding_(parse_padding(options_.padding, who)),
        activation_(find_activation(options_.activation)) {
    require_positive(kernel_size, who, "kernel size");
    require_positive(options_.strides, who, "stride");
    require_positive(options_.dilation_rate, who, "dilation rate");
    require_positive(filters, who, "number of filters");
  }

  std::int64_t filters_;
  Size2D kernel_size_;
  Options options_;
  Padding padding_;
  ActivationFunction activation_;
};

}  // namespace internal

// The two-dimensional convolution layer.

struct Conv2DOptions {
  Size2D strides = 1;
  std::string padding = "valid";  // or "same"
  /// Distance between adjacent elements of the kernel, in pixels of the input.
  Size2D dilation_rate = 1;
  /// Number of groups into which channels and filters are split; groups are convolved separately.
  std::int64_t groups = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, height, width, in] -> [batch, out_height, out_width, filters], kernel [kernel_height,
/// kernel_width, in / groups, filters], bias [filters]. With a bias, the bias and the activations
/// relu, sigmoid and tanh are computed in the same pass as the convolution.
class Conv2D : public LayerOf<Conv2D, internal::ImageConvolution<Conv2DOptions>> {
 public:
  Conv2D(std::int64_t filters, Size2D kernel_size, Conv2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

// Depthwise, separable and transposed convolution of images.

struct DepthwiseConv2DOptions {
  Size2D strides = 1;
  std::string padding = "valid";  // or "same"
  /// Number of filters per channel.
  std::int64_t depth_multiplier = 1;
  Size2D dilation_rate = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer depthwise_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  Regularizer depthwise_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint depthwise_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Convolution of each channel separately: [batch, height, width, in] -> [batch, out_height,
/// out_width, in * depth_multiplier], kernel [kernel_height, kernel_width, in, depth_multiplier],
/// bias [in * depth_multiplier].
class DepthwiseConv2D
    : public LayerOf<DepthwiseConv2D, internal::ImageConvolution<DepthwiseConv2DOptions>> {
 public:
  explicit DepthwiseConv2D(Size2D kernel_size, DepthwiseConv2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

struct SeparableConv2DOptions {
  Size2D strides = 1;
  std::string padding = "valid";  // or "same"
  std::int64_t depth_multiplier = 1;
  Size2D dilation_rate = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer depthwise_initializer = "glorot_uniform";
  Initializer pointwise_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  Regularizer depthwise_regularizer = {};
  Regularizer pointwise_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint depthwise_constraint = {};
  Constraint pointwise_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// A depthwise convolution followed by a 1 x 1 convolution: depthwise_kernel [kernel_height,
/// kernel_width, in, depth_multiplier], pointwise_kernel [1, 1, in * depth_multiplier, filters],
/// bias [filters].
class SeparableConv2D
    : public LayerOf<SeparableConv2D, internal::ImageConvolution<SeparableConv2DOptions>> {
 public:
  SeparableConv2D(std::int64_t filters, Size2D kernel_size, SeparableConv2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

struct Conv2DTransposeOptions {
  Size2D strides = 1;
  std::string padding = "valid";  // or "same"
  Size2D dilation_rate = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Transposed convolution: [batch, height, width, in] -> [batch, height * stride, width * stride,
/// filters] with "same"; "valid" adds max(0, size of the dilated kernel - stride) to height and
/// width. Kernel [kernel_height, kernel_width, filters, in], bias [filters].
class Conv2DTranspose
    : public LayerOf<Conv2DTranspose, internal::ImageConvolution<Conv2DTransposeOptions>> {
 public:
  Conv2DTranspose(std::int64_t filters, Size2D kernel_size, Conv2DTransposeOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

// Convolution of sequences.

struct Conv1DOptions {
  std::int64_t strides = 1;
  /// "valid", "same" or "causal" (a result does not depend on later steps).
  std::string padding = "valid";
  std::int64_t dilation_rate = 1;
  std::int64_t groups = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = "glorot_uniform";
  Initializer bias_initializer = "zeros";
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Constraint kernel_constraint = {};
  Constraint bias_constraint = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, steps, in] -> [batch, out_steps, filters], kernel [kernel_size, in / groups, filters],
/// bias [filters].
class Conv1D : public LayerOf<Conv1D> {
 public:
  Conv1D(std::int64_t filters, std::int64_t kernel_size, Conv1DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t filters_;
  std::int64_t kernel_size_;
  Conv1DOptions options_;
  Padding padding_;
  ActivationFunction activation_;
};

}  // namespace tutti
