// Layers that change the shape or the size of examples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/size2d.h"

namespace tutti {

// Layers that change the shape of examples.

/// [batch, ...] -> [batch, product of the other dimensions].
class Flatten : public LayerOf<Flatten> {
 public:
  explicit Flatten(LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
};

/// [batch, ...] -> [batch] + target; one dimension of the target may be -1, which is inferred.
class Reshape : public LayerOf<Reshape> {
 public:
  explicit Reshape(std::vector<std::int64_t> target, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::vector<std::int64_t> target_;
};

/// Permutes axes: axis i of the result is axis permutation[i - 1] of the input. Axes of examples
/// are numbered from 1, so Permute({2, 1}) swaps the axes a and b of [batch, a, b].
class Permute : public LayerOf<Permute> {
 public:
  explicit Permute(std::vector<int> permutation, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::vector<int> permutation_;
};

/// [batch, features] -> [batch, times, features]: `times` copies of the features.
class RepeatVector : public LayerOf<RepeatVector> {
 public:
  explicit RepeatVector(std::int64_t times, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  std::int64_t times_;
};

// Padding, cropping and upsampling of images and sequences.

/// Numbers of rows and columns at the edges of an image: `2` for all four sides, `{1, 2}` for 1 row
/// above and below and 2 columns left and right, or four numbers.
struct Margins2D {
  Margins2D(int all) : Margins2D(all, all) {}
  Margins2D(std::int64_t rows, std::int64_t columns) : Margins2D(rows, rows, columns, columns) {}
  Margins2D(std::int64_t above, std::int64_t below, std::int64_t before, std::int64_t after)
      : top(above), bottom(below), left(before), right(after) {}
  /// Returns the JSON array [top, bottom, left, right].
  Json to_json() const { return Json::Array{top, bottom, left, right}; }
  static Margins2D from_json(const Json& json);

  std::int64_t top;
  std::int64_t bottom;
  std::int64_t left;
  std::int64_t right;
};

/// Numbers of padding steps before and after a sequence.
struct Margins1D {
  Margins1D(int both) : Margins1D(both, both) {}
  Margins1D(std::int64_t before, std::int64_t after) : left(before), right(after) {}
  /// Returns the JSON array [left, right].
  Json to_json() const { return Json::Array{left, right}; }
  static Margins1D from_json(const Json& json);

  std::int64_t left;
  std::int64_t right;
};

/// Pads images [batch, height, width, channels] with zeros.
class ZeroPadding2D : public LayerOf<ZeroPadding2D> {
 public:
  explicit ZeroPadding2D(Margins2D padding = 1, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Margins2D padding_;
};

/// Crops the edges of images [batch, height, width, channels].
class Cropping2D : public LayerOf<Cropping2D> {
 public:
  explicit Cropping2D(Margins2D cropping = 0, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Margins2D cropping_;
};

/// Pads sequences [batch, steps, channels] with zeros at both ends.
class ZeroPadding1D : public LayerOf<ZeroPadding1D> {
 public:
  explicit ZeroPadding1D(Margins1D padding = 1, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Margins1D padding_;
};

struct UpSampling2DOptions {
  std::string interpolation = "nearest";  // or "bilinear"
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, height, width, channels] -> [batch, height * size, width * size, channels]. "bilinear"
/// uses half-pixel centres, as tf.image.resize does.
class UpSampling2D : public LayerOf<UpSampling2D> {
 public:
  explicit UpSampling2D(Size2D size = 2, UpSampling2DOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  Size2D size_;
  bool bilinear_;
};

}  // namespace tutti
