// Normalisations of each example by itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

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
  Tensor normalized(const Tensor& input) const;

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
  Tensor normalized(const Tensor& input) const;
  std::int64_t groups_of(std::int64_t channels) const;

  std::int64_t groups_;
  GroupNormalizationOptions options_;
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

}  // namespace tutti
