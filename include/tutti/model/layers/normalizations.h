// Normalisations: over the batch, over features, over neighbouring channels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

// The batch normalisation layer.

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
/// averages. Variables: gamma, beta; moving_mean, moving_variance (ON_READ, MEAN: each replica has
/// its own; reading them outside gives their mean, in which each replica weighs as much as it made
/// updates, so one that never had rows does not count). Model::evaluate() and predict() compute
/// with that mean on every replica; in a loop of your own, AggregateOnReadScope around the call
/// does. A batch without rows gives an empty result and changes nothing.
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

// Normalisations of each example by itself.

struct LayerNormalizationOptions {
  /// Axes that are normalised together, the batch counted as axis 0.
  std::vector<int> axes = {-1};
  double epsilon = 1e-3;
  /// With beta, with gamma.
  bool center = true;
  bool scale = true;
  Initializer beta_initializer = "zeros";
  Initializer gamma_initializer = "ones";
  Regularizer beta_regularizer = {};
  Regularizer gamma_regularizer = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// gamma * (x - mean) / sqrt(variance + epsilon) + beta with mean and (biased) variance over the
/// axes; gamma and beta have their dimensions.
class LayerNormalization : public LayerOf<LayerNormalization> {
 public:
  explicit LayerNormalization(LayerNormalizationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  LayerNormalizationOptions options_;
};

struct GroupNormalizationOptions {
  double epsilon = 1e-3;
  bool center = true;
  bool scale = true;
  Initializer beta_initializer = "zeros";
  Initializer gamma_initializer = "ones";
  Regularizer beta_regularizer = {};
  Regularizer gamma_regularizer = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// [batch, ..., channels]: the channels of an example in `groups` equal groups, each normalised
/// over all its elements; gamma and beta [channels]. -1: each channel is a group of its own. Throws
/// kInvalidArgument when the channels cannot be divided so.
class GroupNormalization : public LayerOf<GroupNormalization> {
 public:
  explicit GroupNormalization(std::int64_t groups = 32, GroupNormalizationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  std::int64_t groups_of(std::int64_t channels) const;

  std::int64_t groups_;
  GroupNormalizationOptions options_;
};

struct RMSNormalizationOptions {
  /// Axes that are normalised together, the batch counted as axis 0.
  std::vector<int> axes = {-1};
  double epsilon = 1e-6;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// scale * x / sqrt(mean of x^2 + epsilon), the mean over the axes; scale has their dimensions.
/// Also called RMSNorm: LayerNormalization that subtracts and adds nothing.
class RMSNormalization : public LayerOf<RMSNormalization> {
 public:
  explicit RMSNormalization(RMSNormalizationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  RMSNormalizationOptions options_;
};

struct UnitNormalizationOptions {
  /// Axes of a vector, the batch counted as axis 0.
  std::vector<int> axes = {-1};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x scaled so that its vectors along the axes have length 1; those shorter than 1e-12 are
/// divided by that.
class UnitNormalization : public LayerOf<UnitNormalization> {
 public:
  explicit UnitNormalization(UnitNormalizationOptions options = {});

 protected:
  Shape build(const Shape& input) override;
  Tensor call(const Tensor& input, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kKeeps; }

 private:
  UnitNormalizationOptions options_;
};

// Local response normalisation as a layer.

/// The names and defaults of tf.nn.local_response_normalization.
struct LocalResponseNormalizationOptions {
  std::int64_t depth_radius = 5;  // channels on each side
  double bias = 1.0;              // added to the sum
  double alpha = 1.0;             // times the sum
  double beta = 0.5;              // its exponent
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
