// Loss objects: a loss function, its options and how examples become one number.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tutti/model/layers/losses.h"

namespace tutti {

/// tf.keras.losses.Reduction. kAuto means kSumOverBatchSize.
enum class LossReduction { kAuto, kSumOverBatchSize, kSum, kNone };
std::ostream& operator<<(std::ostream& out, LossReduction reduction);

/// What predictions are to a cross-entropy: given by the options, or found out by Model::compile.
enum class PredictionKind { kLogits, kProbabilities };

/// A loss function with its reduction. Made by name, from a function, or as one of the classes of
/// loss_classes.h. A value type; threads: any.
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

  /// One loss per example, [batch]. Where predictions [batch, steps, ...] have a mask (masks.h):
  /// the mean over the steps that count, 0 when none does. `sample_weight` [], [batch] or, for such
  /// predictions, [batch, steps] multiplies.
  Tensor per_example(const Tensor& labels, const Tensor& predictions,
                     const Tensor& sample_weight = {}) const;

  /// kNone: [batch]; kSum: their sum []; kAuto, kSumOverBatchSize: the sum (of losses times
  /// weights) divided by the number of examples [], 0 for none. Inside a step of several replicas
  /// the last two throw kInvalidArgument: the size of this replica's part is the wrong divisor; use
  /// compute_average_loss(). Model::fit handles all but kNone itself.
  Tensor operator()(const Tensor& labels, const Tensor& predictions,
                    const Tensor& sample_weight = {}) const;

  /// Whether made by the name of a cross-entropy, so that the kind of predictions is open.
  bool prediction_kind_is_open() const { return open_kind_; }
  /// The same loss for predictions of this kind. Only when prediction_kind_is_open().
  Loss for_predictions(PredictionKind kind) const;
  /// Whether a cross-entropy that takes logits.
  bool takes_logits() const { return takes_logits_; }

 protected:
  Loss(std::string name, Function per_example, LossReduction reduction, bool takes_logits);

 private:
  std::string name_;
  Function per_example_;
  LossReduction reduction_ = LossReduction::kAuto;
  bool takes_logits_ = false;
  bool open_kind_ = false;
};

}  // namespace tutti
