// The losses as classes, with their options.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/layers/loss.h"

namespace tutti {

struct CrossentropyLossOptions {
  bool from_logits = true;
  double label_smoothing = 0.0;
  LossReduction reduction = LossReduction::kAuto;
};
struct LossOptions {
  LossReduction reduction = LossReduction::kAuto;
};
struct HuberLossOptions {
  double delta = 1.0;
  LossReduction reduction = LossReduction::kAuto;
};
struct FocalLossOptions {
  FocalOptions focal = {};
  LossReduction reduction = LossReduction::kAuto;
};

class SparseCategoricalCrossentropy : public Loss {
 public:
  explicit SparseCategoricalCrossentropy(CrossentropyLossOptions options = {});
};
class CategoricalCrossentropy : public Loss {
 public:
  explicit CategoricalCrossentropy(CrossentropyLossOptions options = {});
};
class BinaryCrossentropy : public Loss {
 public:
  explicit BinaryCrossentropy(CrossentropyLossOptions options = {});
};
class BinaryFocalCrossentropy : public Loss {
 public:
  explicit BinaryFocalCrossentropy(FocalLossOptions options = {});
};
class CategoricalFocalCrossentropy : public Loss {
 public:
  explicit CategoricalFocalCrossentropy(FocalLossOptions options = {});
};
class MeanSquaredError : public Loss {
 public:
  explicit MeanSquaredError(LossOptions options = {});
};
class MeanAbsoluteError : public Loss {
 public:
  explicit MeanAbsoluteError(LossOptions options = {});
};
class MeanAbsolutePercentageError : public Loss {
 public:
  explicit MeanAbsolutePercentageError(LossOptions options = {});
};
class MeanSquaredLogarithmicError : public Loss {
 public:
  explicit MeanSquaredLogarithmicError(LossOptions options = {});
};
class CosineSimilarity : public Loss {
 public:
  explicit CosineSimilarity(LossOptions options = {});
};
class LogCosh : public Loss {
 public:
  explicit LogCosh(LossOptions options = {});
};
class Hinge : public Loss {
 public:
  explicit Hinge(LossOptions options = {});
};
class SquaredHinge : public Loss {
 public:
  explicit SquaredHinge(LossOptions options = {});
};
class CategoricalHinge : public Loss {
 public:
  explicit CategoricalHinge(LossOptions options = {});
};
class KLDivergence : public Loss {
 public:
  explicit KLDivergence(LossOptions options = {});
};
class Poisson : public Loss {
 public:
  explicit Poisson(LossOptions options = {});
};
class Huber : public Loss {
 public:
  explicit Huber(HuberLossOptions options = {});
};

}  // namespace tutti
