// Losses: functions, objects with their options, and their mean over the global batch.
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

// Loss functions: one value per example.

/// Of the cross-entropies.
struct CrossentropyOptions {
  /// Whether predictions are logits (what Dense(10) gives) or probabilities (after a softmax or
  /// sigmoid). Unlike Keras the default is logits: they are what training should use.
  bool from_logits = true;
  /// Each label distribution is mixed with this much of the uniform one.
  double label_smoothing = 0.0;
};
/// Of losses::huber().
struct HuberOptions {
  /// Where the quadratic part ends and the linear one begins.
  double delta = 1.0;
};

/// Of the focal cross-entropies.
struct FocalOptions {
  bool from_logits = true;
  double label_smoothing = 0.0;
  /// Examples that are told well count less: times (1 - probability of the label)^gamma.
  double gamma = 2.0;
  /// Weight of label 1 (1 - alpha of label 0); of every class for the categorical loss.
  double alpha = 0.25;
  /// Binary loss: whether alpha is used.
  bool apply_class_balancing = false;
};

/// Each takes labels and predictions and returns one loss per example, [batch] (axes after the
/// first are averaged), also for 0 examples. Differentiable with respect to predictions. Labels are
/// cast to the predictions' type. [batch] and [batch, 1] fit each other. kInvalidArgument names
/// function, the caller's line and both shapes when they do not fit.
namespace losses {

/// labels: class numbers [batch] (or [batch, 1]); predictions [batch, classes].
Tensor sparse_categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                       CrossentropyOptions options = {});
/// labels [batch, classes], each row a distribution.
Tensor categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                CrossentropyOptions options = {});
/// labels 0 or 1, of the shape of predictions.
Tensor binary_crossentropy(const Operand& labels, const Operand& predictions,
                           CrossentropyOptions options = {});

/// binary_crossentropy times (1 - p of the label)^gamma.
Tensor binary_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                 FocalOptions options = {});
/// Sum over classes of alpha * (1 - p)^gamma * -label * log(p).
Tensor categorical_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                      FocalOptions options = {});

/// (label - prediction)^2.
Tensor mean_squared_error(const Operand& labels, const Operand& predictions);
/// |label - prediction|.
Tensor mean_absolute_error(const Operand& labels, const Operand& predictions);
/// 100 * |label - prediction| / |label|.
Tensor mean_absolute_percentage_error(const Operand& labels, const Operand& predictions);
/// (log(1 + label) - log(1 + prediction))^2; values below 0 count as 0.
Tensor mean_squared_logarithmic_error(const Operand& labels, const Operand& predictions);
/// Minus the cosine of the angle between label and prediction (over the last axis).
Tensor cosine_similarity(const Operand& labels, const Operand& predictions);
/// Quadratic up to delta, linear beyond.
Tensor huber(const Operand& labels, const Operand& predictions, HuberOptions options = {});
/// log(cosh(prediction - label)).
Tensor log_cosh(const Operand& labels, const Operand& predictions);
/// max(1 - label * prediction, 0); labels -1 or 1 (0 counts as -1).
Tensor hinge(const Operand& labels, const Operand& predictions);
/// The square of max(1 - label * prediction, 0).
Tensor squared_hinge(const Operand& labels, const Operand& predictions);
/// max(best prediction of a wrong class - prediction of the label + 1, 0); labels one-hot.
Tensor categorical_hinge(const Operand& labels, const Operand& predictions);
/// Sum over classes of label * log(label / prediction), both distributions.
Tensor kl_divergence(const Operand& labels, const Operand& predictions);
/// prediction - label * log(prediction).
Tensor poisson(const Operand& labels, const Operand& predictions);

}  // namespace losses

// Loss objects: a loss function, its options and how examples become one number.

/// tf.keras.losses.Reduction. kAuto means kSumOverBatchSize.
enum class LossReduction { kAuto, kSumOverBatchSize, kSum, kNone };
std::ostream& operator<<(std::ostream& out, LossReduction reduction);

/// What predictions are to a cross-entropy: given by the options, or found out by Model::compile.
enum class PredictionKind { kLogits, kProbabilities };

/// A loss function with its reduction. Made by name, from a function, or as one of the classes
/// below. A value type; threads: any.
class Loss {
 public:
  using Function = std::function<Tensor(const Tensor& labels, const Tensor& predictions)>;

  /// mse (mean_squared_error), mae (mean_absolute_error), sparse_categorical_crossentropy, ...:
  /// throws kInvalidArgument listing them for another name. Cross-entropies made by name take
  /// logits, unless Model::compile sees that the model ends in a softmax or sigmoid.
  Loss(const char* name) : Loss(std::string(name)) {}
  Loss(const std::string& name);
  Loss(std::string name, Function per_example, LossReduction reduction = LossReduction::kAuto);

  const std::string& name() const { return name_; }
  LossReduction reduction() const { return reduction_; }

  /// One loss per example, [batch]. Where predictions [batch, steps, ...] have a mask (MaskScope):
  /// the mean over the steps that count, 0 when none does. `sample_weight` [], [batch] or, for such
  /// predictions, [batch, steps] multiplies.
  Tensor per_example(const Operand& labels, const Operand& predictions,
                     const Tensor& sample_weight = {}) const;

  /// kNone: [batch]; kSum: their sum []; kAuto, kSumOverBatchSize: the sum (of losses times
  /// weights) divided by the number of examples [], 0 for none. Inside a step of several replicas
  /// the last two throw kInvalidArgument: the size of this replica's part is the wrong divisor; use
  /// compute_average_loss(). Model::fit handles all but kNone itself.
  Tensor operator()(const Operand& labels, const Operand& predictions,
                    const Tensor& sample_weight = {}) const;

  /// What Model::save() writes: the name, or the call that makes it: ["Huber", {"delta": 2, ...}].
  /// Throws kUnimplemented for a function of one's own.
  Json to_json() const;
  static Loss from_json(const Json& json);

  /// Whether made by the name of a cross-entropy, so that the kind of predictions is open.
  bool prediction_kind_is_open() const { return open_kind_; }
  /// The same loss for predictions of this kind. Only when prediction_kind_is_open().
  Loss for_predictions(PredictionKind kind) const;
  /// Return true for a cross-entropy that takes logits, or probabilities. Neither: another loss, or
  /// a function of one's own.
  bool takes_logits() const { return kind_ == PredictionKind::kLogits; }
  bool takes_probabilities() const { return kind_ == PredictionKind::kProbabilities; }

 protected:
  using PlainFunction = Tensor (*)(const Operand& labels, const Operand& predictions);
  Loss(std::string name, Function per_example, LossReduction reduction,
       std::optional<PredictionKind> kind, Json call);
  /// Under the first of the function's names.
  Loss(PlainFunction per_example, LossReduction reduction);

 private:
  std::string name_;
  Function per_example_;
  Json call_;  // null: a function of one's own
  LossReduction reduction_ = LossReduction::kAuto;
  std::optional<PredictionKind> kind_;  // of a cross-entropy
  bool open_kind_ = false;
};

// The losses as classes, with their options.

/// CrossentropyOptions, and how examples become one number.
struct CrossentropyLossOptions {
  bool from_logits = true;
  double label_smoothing = 0.0;
  LossReduction reduction = LossReduction::kAuto;
};
/// Of losses without options of their own.
struct LossOptions {
  LossReduction reduction = LossReduction::kAuto;
};
/// Of Huber.
struct HuberLossOptions {
  double delta = 1.0;
  LossReduction reduction = LossReduction::kAuto;
};
/// Of the focal cross-entropies as objects.
struct FocalLossOptions {
  FocalOptions focal = {};
  LossReduction reduction = LossReduction::kAuto;
};

/// losses::sparse_categorical_crossentropy(): labels are class numbers.
class SparseCategoricalCrossentropy : public Loss {
 public:
  explicit SparseCategoricalCrossentropy(CrossentropyLossOptions options = {});
};
/// losses::categorical_crossentropy(): labels are distributions, one-hot for example.
class CategoricalCrossentropy : public Loss {
 public:
  explicit CategoricalCrossentropy(CrossentropyLossOptions options = {});
};
/// losses::binary_crossentropy(): labels are 0 or 1.
class BinaryCrossentropy : public Loss {
 public:
  explicit BinaryCrossentropy(CrossentropyLossOptions options = {});
};
/// losses::binary_focal_crossentropy(): examples that are told well count less.
class BinaryFocalCrossentropy : public Loss {
 public:
  explicit BinaryFocalCrossentropy(FocalLossOptions options = {});
};
/// losses::categorical_focal_crossentropy(): the same for classes.
class CategoricalFocalCrossentropy : public Loss {
 public:
  explicit CategoricalFocalCrossentropy(FocalLossOptions options = {});
};
/// A function of losses:: that takes no options, under its name.
template <Tensor (*kFunction)(const Operand& labels, const Operand& predictions)>
class PlainLoss : public Loss {
 public:
  explicit PlainLoss(LossOptions options = {}) : Loss(kFunction, options.reduction) {}
};

/// The functions of losses:: without options, as objects: `MeanSquaredError()`.
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

/// losses::huber(): quadratic up to delta, linear beyond.
class Huber : public Loss {
 public:
  explicit Huber(HuberLossOptions options = {});
};

struct AverageLossOptions {
  /// Default: rows of per_example_loss times the number of replicas, which is wrong when replicas
  /// have different numbers of rows (a ragged last batch; a warning says so once): then give
  /// batch.global_rows().
  std::optional<std::int64_t> global_batch_size = std::nullopt;
  /// [] or [batch] or the shape of the losses; multiplies them.
  Tensor sample_weight = {};
};

/// sum(per_example_loss * sample_weight) / global_batch_size, []; 0 for a global batch of 0. The
/// sum over replicas is the mean over the global batch. per_example_loss: [batch, ...] floating;
/// only the first dimension is counted, so average pixels before. Throws kInvalidArgument for a
/// scalar, a negative size or weights that do not fit; kFailedPrecondition in the cross-replica
/// context. tf.nn.compute_average_loss.
Tensor compute_average_loss(const Tensor& per_example_loss, AverageLossOptions options = {});

template <std::integral Int>
Tensor compute_average_loss(const Tensor& per_example_loss, Int global_batch_size) {
  return compute_average_loss(
      per_example_loss,
      AverageLossOptions{.global_batch_size = static_cast<std::int64_t>(global_batch_size)});
}
/// A global batch is a whole number.
template <std::floating_point Float>
Tensor compute_average_loss(const Tensor& per_example_loss, Float global_batch_size) = delete;

/// sum(losses) / number of replicas, []: regularisation losses depend on the weights alone, so that
/// their sum over replicas counts them once. Throws kFailedPrecondition in the cross-replica
/// context. tf.nn.scale_regularization_loss.
Tensor scale_regularization_loss(std::span<const Tensor> losses);
Tensor scale_regularization_loss(const Tensor& losses);

}  // namespace tutti
