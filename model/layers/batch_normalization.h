// The batch normalisation layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct BatchNormalizationOptions {
  double momentum = 0.99;
  double epsilon = 1e-3;
  /// With beta, with gamma.
  bool center = true;
  bool scale = true;
  /// Statistics of the whole global batch instead of this replica's part.
  bool synchronized = false;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// gamma * (x - mean) / sqrt(variance + epsilon) + beta over all axes but the last. In training
/// with the statistics of the batch, which the call itself puts into the moving averages (moving =
/// moving * momentum + batch * (1 - momentum), biased variance); otherwise with the moving
/// averages. Variables: gamma, beta; moving_mean, moving_variance (ON_READ, MEAN: each replica its
/// own, averaged when read outside). A batch without rows gives an empty result and changes
/// nothing.
class BatchNormalization : public LayerOf<BatchNormalization> {
 public:
  explicit BatchNormalization(BatchNormalizationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  struct Statistics {
    Tensor y;
    Tensor mean;
    Tensor variance;
    bool any_rows = false;
  };
  Tensor normalized(const Tensor& input, CallContext context) const;
  Statistics normalize_batch(const Tensor& x, const Tensor& gamma, const Tensor& beta) const;
  Statistics normalize_global_batch(const Tensor& x, const Tensor& gamma, const Tensor& beta) const;
  void update_moving_averages(const Statistics& statistics) const;
  /// Number of the weight moving_mean; moving_variance follows it, gamma and beta are before it.
  std::size_t first_moving_average() const {
    return (options_.scale ? 1u : 0u) + (options_.center ? 1u : 0u);
  }

  BatchNormalizationOptions options_;
};

}  // namespace tutti
