// The losses as classes, with their options.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/loss_classes.h"

namespace tutti {
namespace {

template <class Options>
Loss::Function bound(Tensor (*function)(const Tensor&, const Tensor&, Options), Options options) {
  return [=](const Tensor& labels, const Tensor& predictions) {
    return function(labels, predictions, options);
  };
}

Loss::Function bound(Tensor (*function)(const Tensor&, const Tensor&, CrossentropyOptions),
                     const CrossentropyLossOptions& options) {
  return bound(function, CrossentropyOptions{.from_logits = options.from_logits,
                                             .label_smoothing = options.label_smoothing});
}

}  // namespace

SparseCategoricalCrossentropy::SparseCategoricalCrossentropy(CrossentropyLossOptions options)
    : Loss("sparse_categorical_crossentropy",
           bound(&losses::sparse_categorical_crossentropy, options), options.reduction,
           options.from_logits) {}
CategoricalCrossentropy::CategoricalCrossentropy(CrossentropyLossOptions options)
    : Loss("categorical_crossentropy", bound(&losses::categorical_crossentropy, options),
           options.reduction, options.from_logits) {}
BinaryCrossentropy::BinaryCrossentropy(CrossentropyLossOptions options)
    : Loss("binary_crossentropy", bound(&losses::binary_crossentropy, options), options.reduction,
           options.from_logits) {}
BinaryFocalCrossentropy::BinaryFocalCrossentropy(FocalLossOptions options)
    : Loss("binary_focal_crossentropy", bound(&losses::binary_focal_crossentropy, options.focal),
           options.reduction, options.focal.from_logits) {}
CategoricalFocalCrossentropy::CategoricalFocalCrossentropy(FocalLossOptions options)
    : Loss("categorical_focal_crossentropy",
           bound(&losses::categorical_focal_crossentropy, options.focal), options.reduction,
           options.focal.from_logits) {}
MeanSquaredError::MeanSquaredError(LossOptions options)
    : Loss("mean_squared_error", &losses::mean_squared_error, options.reduction) {}
MeanAbsoluteError::MeanAbsoluteError(LossOptions options)
    : Loss("mean_absolute_error", &losses::mean_absolute_error, options.reduction) {}
MeanAbsolutePercentageError::MeanAbsolutePercentageError(LossOptions options)
    : Loss("mean_absolute_percentage_error", &losses::mean_absolute_percentage_error,
           options.reduction) {}
MeanSquaredLogarithmicError::MeanSquaredLogarithmicError(LossOptions options)
    : Loss("mean_squared_logarithmic_error", &losses::mean_squared_logarithmic_error,
           options.reduction) {}
CosineSimilarity::CosineSimilarity(LossOptions options)
    : Loss("cosine_similarity", &losses::cosine_similarity, options.reduction) {}
LogCosh::LogCosh(LossOptions options) : Loss("log_cosh", &losses::log_cosh, options.reduction) {}
Hinge::Hinge(LossOptions options) : Loss("hinge", &losses::hinge, options.reduction) {}
SquaredHinge::SquaredHinge(LossOptions options)
    : Loss("squared_hinge", &losses::squared_hinge, options.reduction) {}
CategoricalHinge::CategoricalHinge(LossOptions options)
    : Loss("categorical_hinge", &losses::categorical_hinge, options.reduction) {}
KLDivergence::KLDivergence(LossOptions options)
    : Loss("kl_divergence", &losses::kl_divergence, options.reduction) {}
Poisson::Poisson(LossOptions options) : Loss("poisson", &losses::poisson, options.reduction) {}
Huber::Huber(HuberLossOptions options)
    : Loss("huber", bound(&losses::huber, HuberOptions{.delta = options.delta}),
           options.reduction) {}

}  // namespace tutti
