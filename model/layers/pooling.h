// Pooling layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/size2d.h"

namespace tutti {

struct Pooling2DOptions {
  /// Default: the size of the window.
  std::optional<Size2D> strides = std::nullopt;
  std::string padding = "valid";  // or "same"
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

struct GlobalPooling2DOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, height, width, channels] -> [batch, out_height, out_width, channels]: the largest value
/// of each window.
class MaxPooling2D : public LayerOf<MaxPooling2D> {
 public:
  explicit MaxPooling2D(Size2D pool_size = 2, Pooling2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Size2D pool_size_;
  Size2D strides_;
  Padding padding_;
};

/// The mean of each window; padding is not counted.
class AveragePooling2D : public LayerOf<AveragePooling2D> {
 public:
  explicit AveragePooling2D(Size2D pool_size = 2, Pooling2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Size2D pool_size_;
  Size2D strides_;
  Padding padding_;
};

/// [batch, height, width, channels] -> [batch, channels].
class GlobalAveragePooling2D : public LayerOf<GlobalAveragePooling2D> {
 public:
  explicit GlobalAveragePooling2D(GlobalPooling2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

/// [batch, height, width, channels] -> [batch, channels].
class GlobalMaxPooling2D : public LayerOf<GlobalMaxPooling2D> {
 public:
  explicit GlobalMaxPooling2D(GlobalPooling2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

}  // namespace tutti
