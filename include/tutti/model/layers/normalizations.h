// Normalisation layers: over the batch, over features, and over neighbouring channels.
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
  /// If true, `center` adds beta, and `scale` multiplies by gamma.
  bool center = true;
  bool scale = true;
  /// If true, uses statistics of the global batch instead of this replica's rows.
  bool synchronized = false;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// gamma * (x - mean) / sqrt(variance + epsilon) + beta, with statistics over all axes except the
/// last. Training uses the batch's statistics, and updates the moving averages with them (moving =
/// moving * momentum + batch * (1 - momentum), biased variance); inference uses the moving
/// averages. Variables: gamma, beta; moving_mean, moving_variance (ON_READ, MEAN). Each replica has
/// its own moving averages. Reading them outside replicas returns their mean weighted by each
/// replica's number of updates, so a replica that never had rows is ignored. Model::evaluate() and
/// predict() use that mean on every replica; in a custom loop, open an AggregateOnReadScope around
/// the call. A batch without rows gives an empty result and does not change the averages.
///
/// The training call updates the averages, so tf's separate UPDATE_OPS are not needed. If the layer
/// is not frozen and was never updated in this process, a warning is logged once when a tape
/// records a call without `{.training = true}`.
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
  /// Index of moving_mean among the weights; moving_variance follows, gamma and beta precede it.
  std::size_t first_moving_average() const {
    return (options_.scale ? 1u : 0u) + (options_.center ? 1u : 0u);
  }

  BatchNormalizationOptions options_;
  /// True after a training call has updated the averages; shared by copies of the layer.
  std::shared_ptr<std::atomic<bool>> is_updated_ = std::make_shared<std::atomic<bool>>(false);
};

// Layers that normalise each example separately.

struct LayerNormalizationOptions {
  /// Axes that are normalised together; the batch is axis 0.
  std::vector<int> axes = {-1};
  double epsilon = 1e-3;
  /// `center` adds beta; `scale` multiplies by gamma.
  bool center = true;
  bool scale = true;
  Initializer beta_initializer = "zeros";
  Initializer gamma_initializer = "ones";
  Regularizer beta_regularizer = {};
  Regularizer gamma_regularizer = {};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Layer that computes gamma * (x - mean) / sqrt(variance + epsilon) + beta, with the mean and the
/// (biased) variance over the given axes; gamma and beta have the shape of these axes.
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

/// Normalises groups of channels of [batch, ..., channels]: an example's channels are divided into
/// `groups` groups of equal size (-1: one per channel), and each group is normalised over all its
/// elements. gamma and beta are [channels]. Throws kInvalidArgument if `groups` does not divide the
/// number of channels.
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
  /// Axes that are normalised together; the batch is axis 0.
  std::vector<int> axes = {-1};
  double epsilon = 1e-6;
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// RMSNorm: scale * x / sqrt(mean of x^2 + epsilon), with the mean over the given axes; scale has
/// the shape of these axes. Unlike LayerNormalization, it does not subtract the mean or add beta.
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
  /// Axes that form a vector; the batch is axis 0.
  std::vector<int> axes = {-1};
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Scales vectors along the given axes to length 1; vectors shorter than 1e-12 are divided by
/// 1e-12.
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

/// Options with the names and defaults of tf.nn.local_response_normalization.
struct LocalResponseNormalizationOptions {
  std::int64_t depth_radius = 5;  // number of neighbouring channels on each side
  double bias = 1.0;              // constant that is added to alpha times the sum
  double alpha = 1.0;             // factor that multiplies the sum of squares
  double beta = 0.5;              // exponent of (bias + alpha * sum)
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// x / (bias + alpha * sum of x^2 over 2 * depth_radius + 1 channels)^beta, for images.
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
