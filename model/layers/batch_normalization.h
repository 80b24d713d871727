// The batch normalisation layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
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
/// own, averaged when read outside, so that no replica's update wins; each counts alike, whatever
/// its rows). A batch without rows gives an empty result and changes nothing.
///
/// There is no update to forget (tf's UPDATE_OPS): the training call makes it. What can be
/// forgotten is `{.training = true}`: a call without it while a tape records, of a layer that is
/// not frozen and was never updated in this process, is warned of once.
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
  void warn_of_forgotten_training() const;
  /// Number of the weight moving_mean; moving_variance follows it, gamma and beta are before it.
  std::size_t first_moving_average() const {
    return (options_.scale ? 1u : 0u) + (options_.center ? 1u : 0u);
  }

  BatchNormalizationOptions options_;
  /// Whether a training call has moved the averages; copies of the layer share it.
  std::shared_ptr<std::atomic<bool>> is_updated_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tutti
