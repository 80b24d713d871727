// Layers that change pictures at random in training.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/size2d.h"

// Keyed like Dropout: by (seed, step, replica, layer). Pictures of a dataset are augmented by
// data/augment.h, whose numbers do not depend on replicas.

namespace tutti {

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

/// In training, adds to each picture one number between -factor and factor times the range of
/// values. factor in [0, 1].
class RandomBrightness : public LayerOf<RandomBrightness> {
 public:
  explicit RandomBrightness(double factor, RandomColourOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  double factor_;
  std::array<double, 2> range_;
};

/// In training, multiplies each picture's distances from the means of its channels by one number
/// between 1 - factor and 1 + factor. factor in [0, 1].
class RandomContrast : public LayerOf<RandomContrast> {
 public:
  explicit RandomContrast(double factor, RandomColourOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  double factor_;
  std::array<double, 2> range_;
};

struct CenterCropOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// The middle of pictures [batch, height, width, channels], always; an odd pixel too many is cut
/// off behind. Pictures that are smaller are refused.
class CenterCrop : public LayerOf<CenterCrop> {
 public:
  explicit CenterCrop(Size2D size, CenterCropOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Size2D size_;
};

}  // namespace tutti
