// Local response normalisation as a layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

/// The names and defaults of tf.nn.local_response_normalization.
struct LocalResponseNormalizationOptions {
  std::int64_t depth_radius = 5;
  double bias = 1.0;
  double alpha = 1.0;
  double beta = 0.5;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x / (bias + alpha * sum of x^2 over 2 * depth_radius + 1 channels)^beta, of images.
class LocalResponseNormalization : public LayerOf<LocalResponseNormalization> {
 public:
  explicit LocalResponseNormalization(LocalResponseNormalizationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;

 private:
  LocalResponseNormalizationOptions options_;
};

}  // namespace tutti
