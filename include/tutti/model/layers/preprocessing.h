// Layers that prepare images: rescaling, cropping, and random changes in training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/size2d.h"

namespace tutti {

// The layer that scales inputs.

struct RescalingOptions {
  double offset = 0.0;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x * scale + offset, e.g. Rescaling(1.0 / 255) for uint8 images. Integers are cast to float32.
class Rescaling : public LayerOf<Rescaling> {
 public:
  explicit Rescaling(double scale, RescalingOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  double scale_;
  double offset_;
};

// Layers that change images randomly during training.

// Random numbers depend on seed, step, replica and layer, as in Dropout. For a dataset's images,
// use tutti/data/augment.h, whose random numbers do not depend on replicas.

struct RandomFlipOptions {
  std::string mode = "horizontal_and_vertical";  // or "horizontal", "vertical"
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// In training, mirrors each image of [batch, height, width, channels] with probability 1/2 in each
/// direction of `mode`.
class RandomFlip : public LayerOf<RandomFlip> {
 public:
  explicit RandomFlip(RandomFlipOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  bool horizontal_;
  bool vertical_;
};

struct RandomColourOptions {
  /// Values of black and white pixels; results are clipped to this range. Use {0, 1} after
  /// Rescaling(1.0 / 255).
  std::array<double, 2> value_range = {0.0, 255.0};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Base class of RandomBrightness and RandomContrast. In training, changes each image by its own
/// random number, and clips the result to value_range.
class RandomColour : public Layer {
 protected:
  /// Throws kInvalidArgument, naming `who`, for a factor outside [0, 1] or an empty range.
  RandomColour(std::string_view who, double factor, RandomColourOptions options);
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  /// Returns the changed images; x is float32 or float64.
  virtual Tensor changed(const Tensor& x, const RandomKey& key) const = 0;

  double factor_;
  std::array<double, 2> range_;
};

/// In training, adds one random number per image: a uniform number in [-factor, factor], times the
/// length of value_range. factor in [0, 1].
class RandomBrightness : public LayerOf<RandomBrightness, RandomColour> {
 public:
  explicit RandomBrightness(double factor, RandomColourOptions options = {})
      : LayerOf("RandomBrightness", factor, std::move(options)) {}

 protected:
  Tensor changed(const Tensor& x, const RandomKey& key) const override;
};

/// In training, multiplies the differences between pixels and the image's channel means by one
/// random number per image, between 1 - factor and 1 + factor. factor in [0, 1].
class RandomContrast : public LayerOf<RandomContrast, RandomColour> {
 public:
  explicit RandomContrast(double factor, RandomColourOptions options = {})
      : LayerOf("RandomContrast", factor, std::move(options)) {}

 protected:
  Tensor changed(const Tensor& x, const RandomKey& key) const override;
};

/// Crops images [batch, height, width, channels] to their centre, in training and inference. If the
/// surplus is odd, the extra pixel is cropped at the end. Throws kInvalidArgument for images
/// smaller than `size`.
class CenterCrop : public LayerOf<CenterCrop> {
 public:
  explicit CenterCrop(Size2D size, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Size2D size_;
};

}  // namespace tutti
