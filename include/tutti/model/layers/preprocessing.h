// Layers that prepare pictures: scaled, and changed at random in training.
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

/// x * scale + offset as float32: Rescaling(1.0 / 255) for images of bytes.
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

// Layers that change pictures at random in training.

// Keyed like Dropout: by (seed, step, replica, layer). Pictures of a dataset are augmented by
// tutti/data/augment.h, whose numbers do not depend on replicas.

struct RandomFlipOptions {
  std::string mode = "horizontal_and_vertical";  // or "horizontal", "vertical"
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Pictures [batch, height, width, channels], each mirrored in half of all cases, in training.
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
  /// Black and white; results are cut off there. {0, 1} behind Rescaling(1.0 / 255).
  std::array<double, 2> value_range = {0.0, 255.0};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// What the layers below share: in training, each picture is changed by a number of its own, and
/// the result cut off at the ends of value_range.
class RandomColour : public Layer {
 protected:
  /// Throws kInvalidArgument naming `who` for a factor outside [0, 1] or an empty range.
  RandomColour(std::string_view who, double factor, RandomColourOptions options);
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  /// x in float32 or float64.
  virtual Tensor changed(const Tensor& x, const RandomKey& key) const = 0;

  double factor_;
  std::array<double, 2> range_;
};

/// In training, adds to each picture one number between -factor and factor times the range of
/// values. factor in [0, 1].
class RandomBrightness : public LayerOf<RandomBrightness, RandomColour> {
 public:
  explicit RandomBrightness(double factor, RandomColourOptions options = {})
      : LayerOf("RandomBrightness", factor, std::move(options)) {}

 protected:
  Tensor changed(const Tensor& x, const RandomKey& key) const override;
};

/// In training, multiplies each picture's distances from the means of its channels by one number
/// between 1 - factor and 1 + factor. factor in [0, 1].
class RandomContrast : public LayerOf<RandomContrast, RandomColour> {
 public:
  explicit RandomContrast(double factor, RandomColourOptions options = {})
      : LayerOf("RandomContrast", factor, std::move(options)) {}

 protected:
  Tensor changed(const Tensor& x, const RandomKey& key) const override;
};

/// The middle of pictures [batch, height, width, channels], always; an odd pixel too many is cut
/// off behind. Pictures that are smaller are refused.
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
