// Dropout and noise.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

// The dropout layer.

struct DropoutOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// In training each element is 0 with probability `rate`, else x / (1 - rate); otherwise x. The
/// mask is keyed by (seed, step, replica, layer, ordinal of the call in the step, element): a
/// replay of a step draws the same one.
class Dropout : public LayerOf<Dropout> {
 public:
  /// Throws kInvalidArgument unless rate is in [0, 1).
  explicit Dropout(double rate, DropoutOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  double rate_;
};

// Layers that disturb their input in training.

struct NoiseOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x plus a normal number of this standard deviation, in training. Keyed like Dropout.
class GaussianNoise : public LayerOf<GaussianNoise> {
 public:
  explicit GaussianNoise(double stddev, NoiseOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  double stddev_;
};

/// x times a normal number of mean 1 and standard deviation sqrt(rate / (1 - rate)), in training.
class GaussianDropout : public LayerOf<GaussianDropout> {
 public:
  explicit GaussianDropout(double rate, NoiseOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  double rate_;
};

/// Dropout of whole channels of [batch, steps, channels].
class SpatialDropout1D : public LayerOf<SpatialDropout1D> {
 public:
  explicit SpatialDropout1D(double rate, NoiseOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  double rate_;
};

/// Dropout of whole channels of [batch, height, width, channels].
class SpatialDropout2D : public LayerOf<SpatialDropout2D> {
 public:
  explicit SpatialDropout2D(double rate, NoiseOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  double rate_;
};

}  // namespace tutti
