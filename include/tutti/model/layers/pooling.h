// Pooling of images and of sequences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/ops/convolution_ops.h"

namespace tutti {

/// Options for layers that pool over windows of images.
struct Pooling2DOptions {
  /// Default: the size of the window.
  std::optional<Size2D> strides = std::nullopt;
  std::string padding = "valid";  // or "same"
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Options for layers that pool over windows of sequences.
struct Pooling1DOptions {
  /// Default: the size of the window.
  std::optional<std::int64_t> strides = std::nullopt;
  std::string padding = "valid";  // or "same"
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Base class of pooling layers that use an image operation. Sequences are treated as images of
/// height 1.
class Pooling : public Layer {
 protected:
  using Operation = Tensor (*)(const Operand& images, Pool2dOptions windows);
  Pooling(std::string_view who, Operation operation, Size2D window,
          const Pooling2DOptions& options);
  Pooling(std::string_view who, Operation operation, std::int64_t window,
          const Pooling1DOptions& options);
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Operation operation_;
  Pool2dOptions windows_;
  bool of_sequences_;
};

/// [batch, height, width, channels] -> [batch, out_height, out_width, channels]: the largest value
/// of each window.
class MaxPooling2D : public LayerOf<MaxPooling2D, Pooling> {
 public:
  explicit MaxPooling2D(Size2D pool_size = 2, Pooling2DOptions options = {});
};

/// [batch, height, width, channels] -> [batch, out_height, out_width, channels]: the mean of each
/// window; padding is not counted.
class AveragePooling2D : public LayerOf<AveragePooling2D, Pooling> {
 public:
  explicit AveragePooling2D(Size2D pool_size = 2, Pooling2DOptions options = {});
};

/// [batch, steps, channels] -> [batch, out_steps, channels]: the largest value of each window.
class MaxPooling1D : public LayerOf<MaxPooling1D, Pooling> {
 public:
  explicit MaxPooling1D(std::int64_t pool_size = 2, Pooling1DOptions options = {});
};

/// [batch, steps, channels] -> [batch, out_steps, channels]: the mean of each window; padding is
/// not counted.
class AveragePooling1D : public LayerOf<AveragePooling1D, Pooling> {
 public:
  explicit AveragePooling1D(std::int64_t pool_size = 2, Pooling1DOptions options = {});
};

/// Base class of layers that pool all positions: [batch, height, width, channels] or [batch, steps,
/// channels] -> [batch, channels].
class GlobalPooling : public Layer {
 protected:
  using Operation = Tensor (*)(const Operand& images);
  GlobalPooling(Operation operation, bool of_sequences, LayerOptions options)
      : Layer(std::move(options)), operation_(operation), of_sequences_(of_sequences) {}
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Operation operation_;
  bool of_sequences_;
};

/// [batch, height, width, channels] -> [batch, channels]: the mean of each channel.
class GlobalAveragePooling2D : public LayerOf<GlobalAveragePooling2D, GlobalPooling> {
 public:
  explicit GlobalAveragePooling2D(LayerOptions options = {});
};

/// [batch, height, width, channels] -> [batch, channels]: the maximum of each channel.
class GlobalMaxPooling2D : public LayerOf<GlobalMaxPooling2D, GlobalPooling> {
 public:
  explicit GlobalMaxPooling2D(LayerOptions options = {});
};

/// [batch, steps, channels] -> [batch, channels]: the mean of the unmasked steps (MaskScope), or 0
/// if all steps are masked.
class GlobalAveragePooling1D : public LayerOf<GlobalAveragePooling1D, GlobalPooling> {
 public:
  explicit GlobalAveragePooling1D(LayerOptions options = {});

 protected:
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }
};

/// [batch, steps, channels] -> [batch, channels]: the maximum of each channel.
class GlobalMaxPooling1D : public LayerOf<GlobalMaxPooling1D, GlobalPooling> {
 public:
  explicit GlobalMaxPooling1D(LayerOptions options = {});
};

}  // namespace tutti
