// Dropout and noise.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/layers/layer_of.h"

namespace tutti {

namespace internal {
/// Applies dropout to entire channels of each example of x [batch, ..., channels].
Tensor drop_channels(const Tensor& x, double rate, const RandomKey& key);
}  // namespace internal

/// Base class of layers that perturb their input during training. During inference, and with
/// strength 0, they return the input unchanged.
class Disturbing : public Layer {
 protected:
  Disturbing(double strength, LayerOptions options)
      : Layer(std::move(options)), strength_(strength) {}
  Shape build(const Shape& input) override { return input; }
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }
  virtual Tensor disturbed(const Tensor& x, const RandomKey& key) const = 0;

  double strength_;
};

/// In training, sets elements to 0 with probability `rate` and multiplies the other elements by 1 /
/// (1 - rate). The mask depends only on the seed, step, replica, layer, call within the step, and
/// element, so repeating a step gives the same mask.
class Dropout : public LayerOf<Dropout, Disturbing> {
 public:
  /// Throws kInvalidArgument unless rate is in [0, 1).
  explicit Dropout(double rate, LayerOptions options = {});

 protected:
  Tensor disturbed(const Tensor& x, const RandomKey& key) const override;
};

/// In training, adds normally distributed noise with standard deviation `stddev` to the input. As
/// with Dropout, repeating a step gives the same noise.
class GaussianNoise : public LayerOf<GaussianNoise, Disturbing> {
 public:
  explicit GaussianNoise(double stddev, LayerOptions options = {});

 protected:
  Tensor disturbed(const Tensor& x, const RandomKey& key) const override;
};

/// In training, multiplies the input by normally distributed noise with mean 1 and standard
/// deviation sqrt(rate / (1 - rate)).
class GaussianDropout : public LayerOf<GaussianDropout, Disturbing> {
 public:
  explicit GaussianDropout(double rate, LayerOptions options = {});

 protected:
  Tensor disturbed(const Tensor& x, const RandomKey& key) const override;
};

/// Dropout of entire channels of [batch, steps, channels].
class SpatialDropout1D : public LayerOf<SpatialDropout1D, Disturbing> {
 public:
  explicit SpatialDropout1D(double rate, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor disturbed(const Tensor& x, const RandomKey& key) const override;
};

/// Dropout of entire channels of [batch, height, width, channels].
class SpatialDropout2D : public LayerOf<SpatialDropout2D, Disturbing> {
 public:
  explicit SpatialDropout2D(double rate, LayerOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor disturbed(const Tensor& x, const RandomKey& key) const override;
  MaskUse mask_use() const override { return MaskUse::kEnds; }
};

}  // namespace tutti
