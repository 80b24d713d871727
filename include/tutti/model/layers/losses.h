// Losses: functions, objects with options, and averaging over the global batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "tutti/core/json.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// Loss functions, which return one value per example.

/// Options for the cross-entropies.
struct CrossentropyOptions {
  /// True if predictions are logits (e.g. of Dense(10)), false if they are probabilities (after a
  /// softmax or sigmoid). Unlike in Keras, the default is logits, which training should use.
  bool from_logits = true;
  /// Weight of the uniform distribution that is mixed into each label distribution.
  double label_smoothing = 0.0;
};
/// Options for losses::huber().
struct HuberOptions {
  /// Error at which the loss changes from quadratic to linear.
  double delta = 1.0;
};

/// Options for the focal cross-entropies.
struct FocalOptions {
  bool from_logits = true;
  double label_smoothing = 0.0;
  /// Exponent of the factor (1 - probability of the label)^gamma that multiplies each loss.
  double gamma = 2.0;
  /// Weight of label 1; label 0 has the weight 1 - alpha. In the categorical loss, every class has
  /// the weight alpha.
  double alpha = 0.25;
  /// If true, the binary loss is weighted by alpha; the categorical loss always is.
  bool apply_class_balancing = false;
};

/// Each function takes labels and predictions and returns one loss per example, [batch]; axes after
/// the first are averaged. Batches may have 0 rows. Differentiable with respect to predictions.
/// Labels are cast to the predictions' type; shapes [batch] and [batch, 1] are compatible. If the
/// shapes are incompatible, throws kInvalidArgument, naming the function, the caller's line and
/// both shapes.
namespace losses {

/// Takes class numbers [batch] or [batch, 1] as labels, and predictions [batch, classes].
Tensor sparse_categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                       CrossentropyOptions options = {});
/// Takes labels [batch, classes], each row of which is a probability distribution.
Tensor categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                CrossentropyOptions options = {});
/// `labels` are 0 or 1 and have the shape of `predictions`.
Tensor binary_crossentropy(const Operand& labels, const Operand& predictions,
                           CrossentropyOptions options = {});

/// binary_crossentropy() times (1 - probability of the label)^gamma.
Tensor binary_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                 FocalOptions options = {});
/// Sum over classes of alpha * (1 - p)^gamma * -label * log(p).
Tensor categorical_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                      FocalOptions options = {});

/// (label - prediction)^2.
Tensor mean_squared_error(const Operand& labels, const Operand& predictions);
/// |label - prediction|.
Tensor mean_absolute_error(const Operand& labels, const Operand& predictions);
/// 100 * |label - prediction| / max(|label|, 1e-7).
Tensor mean_absolute_percentage_error(const Operand& labels, const Operand& predictions);
/// (log(1 + label) - log(1 + prediction))^2; labels and predictions below 0 count as 0.
Tensor mean_squared_logarithmic_error(const Operand& labels, const Operand& predictions);
/// Minus the cosine of the angle between label and prediction, which are vectors along the last
/// axis.
Tensor cosine_similarity(const Operand& labels, const Operand& predictions);
/// Loss that is quadratic for errors up to delta and linear for larger errors.
Tensor huber(const Operand& labels, const Operand& predictions, HuberOptions options = {});
/// log(cosh(prediction - label)).
Tensor log_cosh(const Operand& labels, const Operand& predictions);
/// max(1 - label * prediction, 0); labels -1 or 1 (0 counts as -1).
Tensor hinge(const Operand& labels, const Operand& predictions);
/// The square of max(1 - label * prediction, 0).
Tensor squared_hinge(const Operand& labels, const Operand& predictions);
/// max(largest prediction of a wrong class - prediction of the label + 1, 0), for one-hot labels.
Tensor categorical_hinge(const Operand& labels, const Operand& predictions);
/// Sum over classes of label * log(label / prediction). Labels and predictions are distributions.
Tensor kl_divergence(const Operand& labels, const Operand& predictions);
/// prediction - label * log(prediction).
Tensor poisson(const Operand& labels, const Operand& predictions);

}  // namespace losses

// Loss objects: a loss function, its options and its reduction.

/// Same as tf.keras.losses.Reduction; kAuto means kSumOverBatchSize.
enum class LossReduction { kAuto, kSumOverBatchSize, kSum, kNone };
std::ostream& operator<<(std::ostream& out, LossReduction reduction);

/// Kind of a cross-entropy's predictions, given by its options or determined by Model::compile().
enum class PredictionKind { kLogits, kProbabilities };

/// Loss function with its reduction: a value type, created by name, from a function, or as an
/// object of a class below. Thread-safe.
class Loss {
 public:
  using Function = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

  /// `name`: mse (mean_squared_error), mae (mean_absolute_error), sparse_categorical_crossentropy,
  /// ... Throws kInvalidArgument, listing the names, for any other name. Cross-entropies created by
  /// name take logits, unless Model::compile() finds that the model ends in a softmax or sigmoid.
  Loss(const char* name) : Loss(std::string(name)) {}
  Loss(const std::string& name);
  Loss(std::string name, Function per_example, LossReduction reduction = LossReduction::kAuto);

  const std::string& name() const { return name_; }
  LossReduction reduction() const { return reduction_; }

  /// Returns one loss per example, [batch]. If predictions [batch, steps, ...] have a mask
  /// (MaskScope), an example's loss is the mean over its unmasked steps, or 0 if there are none.
  /// `sample_weight` is a factor of shape [], [batch] or, for predictions with steps, [batch,
  /// steps].
  Tensor per_example(const Operand& labels, const Operand& predictions,
                     const Tensor& sample_weight = {}) const;

  /// Returns the reduced losses. kNone: [batch]; kSum: their sum []; kAuto and kSumOverBatchSize:
  /// the sum of losses times weights, divided by the number of examples, []; 0 without examples. In
  /// a step on several replicas, kAuto and kSumOverBatchSize throw kInvalidArgument, because this
  /// replica's number of examples would be the wrong divisor; use compute_average_loss().
  /// Model::fit() supports all reductions except kNone.
  Tensor operator()(const Operand& labels, const Operand& predictions,
                    const Tensor& sample_weight = {}) const;

  /// Returns the name, or the call that recreates the loss, e.g. ["Huber", {"delta": 2, ...}].
  /// Throws kUnimplemented for a custom function.
  Json to_json() const;
  static Loss from_json(const Json& json);

  /// Returns true for a cross-entropy created by name, because its name does not determine whether
  /// it takes logits or probabilities.
  bool prediction_kind_is_open() const { return open_kind_; }
  /// Returns this loss for logits or for probabilities, depending on `kind`. Requires:
  /// prediction_kind_is_open().
  Loss for_predictions(PredictionKind kind) const;
  /// takes_logits() is true for cross-entropies that take logits, takes_probabilities() for those
  /// that take probabilities. Both are false for other losses and custom functions.
  bool takes_logits() const { return kind_ == PredictionKind::kLogits; }
  bool takes_probabilities() const { return kind_ == PredictionKind::kProbabilities; }

 protected:
  using PlainFunction = Tensor (*)(const Operand& labels, const Operand& predictions);
  Loss(std::string name, Function per_example, LossReduction reduction,
       std::optional<PredictionKind> kind, Json call);
  /// The name of the loss is that of the first entry with this function in the table of losses.
  Loss(PlainFunction per_example, LossReduction reduction);

 private:
  std::string name_;
  Function per_example_;
  Json call_;  // null for a custom function
  LossReduction reduction_ = LossReduction::kAuto;
  std::optional<PredictionKind> kind_;  // nullopt except for cross-entropies
  bool open_kind_ = false;
};

// The losses as classes, with their options.

/// CrossentropyOptions with a reduction.
struct CrossentropyLossOptions {
  bool from_logits = true;
  double label_smoothing = 0.0;
  LossReduction reduction = LossReduction::kAuto;
};
/// Options for losses that have only a reduction.
struct LossOptions {
  LossReduction reduction = LossReduction::kAuto;
};
/// Options for Huber.
struct HuberLossOptions {
  double delta = 1.0;
  LossReduction reduction = LossReduction::kAuto;
};
/// Options for BinaryFocalCrossentropy and CategoricalFocalCrossentropy.
struct FocalLossOptions {
  FocalOptions focal = {};
  LossReduction reduction = LossReduction::kAuto;
};

/// losses::sparse_categorical_crossentropy(): labels are class numbers.
class SparseCategoricalCrossentropy : public Loss {
 public:
  explicit SparseCategoricalCrossentropy(CrossentropyLossOptions options = {});
};
/// losses::categorical_crossentropy(): labels are distributions, e.g. one-hot.
class CategoricalCrossentropy : public Loss {
 public:
  explicit CategoricalCrossentropy(CrossentropyLossOptions options = {});
};
/// losses::binary_crossentropy(): labels are 0 or 1.
class BinaryCrossentropy : public Loss {
 public:
  explicit BinaryCrossentropy(CrossentropyLossOptions options = {});
};
/// losses::binary_focal_crossentropy(): well-classified examples count less.
class BinaryFocalCrossentropy : public Loss {
 public:
  explicit BinaryFocalCrossentropy(FocalLossOptions options = {});
};
/// losses::categorical_focal_crossentropy(): well-classified examples count less.
class CategoricalFocalCrossentropy : public Loss {
 public:
  explicit CategoricalFocalCrossentropy(FocalLossOptions options = {});
};
/// Loss object for a function in losses:: that takes no options.
template <Tensor (*kFunction)(const Operand& labels, const Operand& predictions)>
class PlainLoss : public Loss {
 public:
  explicit PlainLoss(LossOptions options = {}) : Loss(kFunction, options.reduction) {}
};

/// Loss objects for the functions in losses:: that have no options: `MeanSquaredError()`.
using MeanSquaredError = PlainLoss<&losses::mean_squared_error>;
using MeanAbsoluteError = PlainLoss<&losses::mean_absolute_error>;
using MeanAbsolutePercentageError = PlainLoss<&losses::mean_absolute_percentage_error>;
using MeanSquaredLogarithmicError = PlainLoss<&losses::mean_squared_logarithmic_error>;
using CosineSimilarity = PlainLoss<&losses::cosine_similarity>;
using LogCosh = PlainLoss<&losses::log_cosh>;
using Hinge = PlainLoss<&losses::hinge>;
using SquaredHinge = PlainLoss<&losses::squared_hinge>;
using CategoricalHinge = PlainLoss<&losses::categorical_hinge>;
using KLDivergence = PlainLoss<&losses::kl_divergence>;
using Poisson = PlainLoss<&losses::poisson>;

/// losses::huber(): quadratic for errors up to delta, linear for larger errors.
class Huber : public Loss {
 public:
  explicit Huber(HuberLossOptions options = {});
};

struct AverageLossOptions {
  /// Divisor. Default: rows of per_example_loss times the number of replicas. The default is wrong,
  /// and a warning is logged once, if replicas have different numbers of rows, e.g. in a smaller
  /// last batch; in that case, pass batch.global_rows().
  std::optional<std::int64_t> global_batch_size = std::nullopt;
  /// Factor for the losses, of shape [], [batch], or that of the losses.
  Tensor sample_weight = {};
};

/// Returns the scalar sum(per_example_loss * sample_weight) / global_batch_size; 0 if
/// global_batch_size is 0. The sum over replicas is the mean over the global batch.
/// per_example_loss: [batch, ...], of a floating-point type; only the first dimension counts as
/// examples, so average over pixels before the call. Throws kInvalidArgument for a scalar, a
/// negative size or weights of an incompatible shape; kFailedPrecondition in the cross-replica
/// context. Corresponds to tf.nn.compute_average_loss.
Tensor compute_average_loss(const Tensor& per_example_loss, AverageLossOptions options = {});

template <std::integral Int>
Tensor compute_average_loss(const Tensor& per_example_loss, Int global_batch_size) {
  return compute_average_loss(
      per_example_loss,
      AverageLossOptions{.global_batch_size = static_cast<std::int64_t>(global_batch_size)});
}
/// Deleted, because a global batch size is an integer.
template <std::floating_point Float>
Tensor compute_average_loss(const Tensor& per_example_loss, Float global_batch_size) = delete;

/// Returns the scalar sum(losses) / number of replicas. Regularisation losses depend only on the
/// weights, so the sum of the results over replicas counts them once. Throws kFailedPrecondition in
/// the cross-replica context. Corresponds to tf.nn.scale_regularization_loss.
Tensor scale_regularization_loss(std::span<const Tensor> losses);
Tensor scale_regularization_loss(const Tensor& losses);

}  // namespace tutti
