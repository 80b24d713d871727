// Loss functions, loss objects, and division by the global batch size.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/losses.h"

#include <algorithm>
#include <numbers>
#include <vector>

#include "core/call_site.h"
#include "core/call_table.h"
#include "core/names.h"
#include "model/layers/labels_and_weights.h"
#include "tensor/op_checks.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/fields.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::losses {
namespace {

/// Smallest distance of clipped probabilities from 0 and 1 (Keras's epsilon).
constexpr double kEpsilon = 1e-7;

using internal::class_numbers;
using internal::mean_per_example;
using internal::same_shape_labels;

/// Returns binary labels with the shape of the predictions.
Tensor binary_labels(const Operand& labels, const Operand& predictions, const char* who) {
  const Tensor fitted = same_shape_labels(labels, predictions, who);
  internal::warn_of_binary_labels(fitted, who);
  return fitted;
}

Tensor clipped(const Operand& probabilities) {
  return clip(probabilities, kEpsilon, 1.0 - kEpsilon);
}

Tensor clipped_labels(const Tensor& labels) { return clip(labels, kEpsilon, 1.0); }

Tensor smoothed(const Tensor& target, double smoothing, double classes) {
  return smoothing == 0.0 ? target : target * (1.0 - smoothing) + smoothing / classes;
}

/// Scales vectors along the last axis to length 1; divides vectors shorter than kEpsilon by
/// kEpsilon.
Tensor unit_vectors(const Operand& x) {
  const Tensor squares = reduce_sum(square(x), {.axes = {-1}, .keep_dims = true});
  return x * rsqrt(maximum(squares, kEpsilon * kEpsilon));
}

void require_classes(const Operand& predictions, const char* who) {
  if (predictions.shape().rank() >= 2) return;
  fail(ErrorCode::kInvalidArgument, internal::who(who, predictions.where),
       ": expected predictions [batch, classes], got ", predictions.shape());
}

double class_count(const Operand& predictions) {
  return static_cast<double>(std::max<std::int64_t>(1, predictions.shape()[-1]));
}

/// Returns labels with 0 replaced by -1.
Tensor signs(const Tensor& labels) { return where(equal(labels, 0.0), labels - 1.0, labels); }

}  // namespace

Tensor sparse_categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                       CrossentropyOptions options) {
  const char* who = "sparse_categorical_crossentropy";
  const Tensor classes = class_numbers(labels, predictions, who);
  if (options.label_smoothing != 0.0) {
    fail(ErrorCode::kInvalidArgument, internal::who(who, labels.where),
         ": expected label_smoothing = 0, because labels are class numbers; use "
         "categorical_crossentropy with one-hot labels");
  }
  // As in Keras, probabilities are normalised to a sum of 1, by the softmax of their logarithms.
  // The gradient includes this normalisation.
  const Tensor logits = options.from_logits ? predictions.tensor : log(clipped(predictions));
  return mean_per_example(
      sparse_softmax_cross_entropy(Operand(classes, labels.where), Operand(logits, labels.where)));
}

Tensor categorical_crossentropy(const Operand& labels, const Operand& predictions,
                                CrossentropyOptions options) {
  const char* who = "categorical_crossentropy";
  require_classes(predictions, who);
  const Tensor target = smoothed(same_shape_labels(labels, predictions, who),
                                 options.label_smoothing, class_count(predictions));
  if (options.from_logits) return mean_per_example(softmax_cross_entropy(target, predictions));
  const Tensor scaled = predictions / reduce_sum(predictions, {.axes = {-1}, .keep_dims = true});
  return mean_per_example(negate(reduce_sum(target * log(clipped(scaled)), {.axes = {-1}})));
}

Tensor binary_crossentropy(const Operand& labels, const Operand& predictions,
                           CrossentropyOptions options) {
  const Tensor target = smoothed(binary_labels(labels, predictions, "binary_crossentropy"),
                                 options.label_smoothing, 2.0);
  if (options.from_logits) return mean_per_example(sigmoid_cross_entropy(target, predictions));
  const Tensor p = clipped(predictions);
  return mean_per_example(negate(target * log(p) + (1.0 - target) * log(1.0 - p)));
}

Tensor binary_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                 FocalOptions options) {
  const Tensor target = smoothed(binary_labels(labels, predictions, "binary_focal_crossentropy"),
                                 options.label_smoothing, 2.0);
  const Tensor unclipped = options.from_logits ? sigmoid(predictions) : predictions.tensor;
  const Tensor p = clipped(unclipped);
  const Tensor p_of_label = target * unclipped + (1.0 - target) * (1.0 - unclipped);
  const Tensor crossentropy = options.from_logits
                                  ? sigmoid_cross_entropy(target, predictions)
                                  : negate(target * log(p) + (1.0 - target) * log(1.0 - p));
  // Unlike Keras, limits the factor from below, so that gradients stay finite for every gamma.
  // Where the limit applies, the cross-entropy is almost 0, so the loss hardly changes.
  Tensor loss = pow(maximum(1.0 - p_of_label, kEpsilon), options.gamma) * crossentropy;
  if (options.apply_class_balancing)
    loss = loss * (target * options.alpha + (1.0 - target) * (1.0 - options.alpha));
  return mean_per_example(loss);
}

Tensor categorical_focal_crossentropy(const Operand& labels, const Operand& predictions,
                                      FocalOptions options) {
  const char* who = "categorical_focal_crossentropy";
  require_classes(predictions, who);
  const Tensor target = smoothed(same_shape_labels(labels, predictions, who),
                                 options.label_smoothing, class_count(predictions));
  const Tensor p =
      clipped(options.from_logits ? softmax(predictions)
                                  : predictions / reduce_sum(predictions, {{-1}, true}));
  const Tensor terms = pow(1.0 - p, options.gamma) * target * log(p) * -options.alpha;
  return mean_per_example(reduce_sum(terms, {.axes = {-1}}));
}

Tensor mean_squared_error(const Operand& labels, const Operand& predictions) {
  return mean_per_example(
      square(predictions - same_shape_labels(labels, predictions, "mean_squared_error")));
}

Tensor mean_absolute_error(const Operand& labels, const Operand& predictions) {
  return mean_per_example(
      abs(predictions - same_shape_labels(labels, predictions, "mean_absolute_error")));
}

Tensor mean_absolute_percentage_error(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "mean_absolute_percentage_error");
  return mean_per_example(abs(target - predictions) / maximum(abs(target), kEpsilon)) * 100.0;
}

Tensor mean_squared_logarithmic_error(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "mean_squared_logarithmic_error");
  return mean_per_example(
      square(log(maximum(target, kEpsilon) + 1.0) - log(maximum(predictions, kEpsilon) + 1.0)));
}

Tensor cosine_similarity(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "cosine_similarity");
  require_classes(predictions, "cosine_similarity");
  const Tensor products = unit_vectors(target) * unit_vectors(predictions);
  return mean_per_example(negate(reduce_sum(products, {.axes = {-1}})));
}

Tensor huber(const Operand& labels, const Operand& predictions, HuberOptions options) {
  const Tensor error = abs(predictions - same_shape_labels(labels, predictions, "huber"));
  const Tensor quadratic = minimum(error, options.delta);
  return mean_per_example(square(quadratic) * 0.5 + (error - quadratic) * options.delta);
}

Tensor log_cosh(const Operand& labels, const Operand& predictions) {
  const Tensor error = predictions - same_shape_labels(labels, predictions, "log_cosh");
  // cosh() would overflow for moderate errors; this form does not.
  return mean_per_example(error + softplus(error * -2.0) - std::numbers::ln2);
}

Tensor hinge(const Operand& labels, const Operand& predictions) {
  const Tensor target = signs(same_shape_labels(labels, predictions, "hinge"));
  return mean_per_example(maximum(1.0 - target * predictions, 0.0));
}

Tensor squared_hinge(const Operand& labels, const Operand& predictions) {
  const Tensor target = signs(same_shape_labels(labels, predictions, "squared_hinge"));
  return mean_per_example(square(maximum(1.0 - target * predictions, 0.0)));
}

Tensor categorical_hinge(const Operand& labels, const Operand& predictions) {
  require_classes(predictions, "categorical_hinge");
  const Tensor target = same_shape_labels(labels, predictions, "categorical_hinge");
  const Tensor right = reduce_sum(target * predictions, {.axes = {-1}});
  const Tensor wrong = reduce_max((1.0 - target) * predictions, {.axes = {-1}});
  return mean_per_example(maximum(wrong - right + 1.0, 0.0));
}

Tensor kl_divergence(const Operand& labels, const Operand& predictions) {
  const Tensor target = clipped_labels(same_shape_labels(labels, predictions, "kl_divergence"));
  const Tensor terms = target * log(target / clip(predictions, kEpsilon, 1.0));
  return mean_per_example(terms.rank() > 1 ? reduce_sum(terms, {.axes = {-1}}) : terms);
}

Tensor poisson(const Operand& labels, const Operand& predictions) {
  const Tensor target = same_shape_labels(labels, predictions, "poisson");
  return mean_per_example(predictions - target * log(predictions + kEpsilon));
}

}  // namespace tutti::losses

namespace tutti {

// Loss objects.

namespace {

using PlainFunction = Tensor (*)(const Operand&, const Operand&);
using CrossentropyFunction = Tensor (*)(const Operand&, const Operand&, CrossentropyOptions);

struct NamedLoss {
  const char* name;
  PlainFunction plain = nullptr;
  CrossentropyFunction crossentropy = nullptr;
};

Tensor binary_focal_of(const Operand& labels, const Operand& predictions,
                       CrossentropyOptions options) {
  return losses::binary_focal_crossentropy(labels, predictions,
                                           {.from_logits = options.from_logits});
}
Tensor categorical_focal_of(const Operand& labels, const Operand& predictions,
                            CrossentropyOptions options) {
  return losses::categorical_focal_crossentropy(labels, predictions,
                                                {.from_logits = options.from_logits});
}
Tensor huber_of(const Operand& labels, const Operand& predictions) {
  return losses::huber(labels, predictions);
}

const std::vector<NamedLoss>& named_losses() {
  using namespace losses;
  static const std::vector<NamedLoss> table = {
      {"sparse_categorical_crossentropy", nullptr, &sparse_categorical_crossentropy},
      {"categorical_crossentropy", nullptr, &categorical_crossentropy},
      {"binary_crossentropy", nullptr, &binary_crossentropy},
      {"bce", nullptr, &binary_crossentropy},
      {"binary_focal_crossentropy", nullptr, &binary_focal_of},
      {"categorical_focal_crossentropy", nullptr, &categorical_focal_of},
      {"mean_squared_error", &mean_squared_error},
      {"mse", &mean_squared_error},
      {"mean_absolute_error", &mean_absolute_error},
      {"mae", &mean_absolute_error},
      {"mean_absolute_percentage_error", &mean_absolute_percentage_error},
      {"mape", &mean_absolute_percentage_error},
      {"mean_squared_logarithmic_error", &mean_squared_logarithmic_error},
      {"msle", &mean_squared_logarithmic_error},
      {"cosine_similarity", &cosine_similarity},
      {"huber", &huber_of},
      {"log_cosh", &log_cosh},
      {"hinge", &hinge},
      {"squared_hinge", &squared_hinge},
      {"categorical_hinge", &categorical_hinge},
      {"kl_divergence", &kl_divergence},
      {"kld", &kl_divergence},
      {"logcosh", &log_cosh},
      {"poisson", &poisson},
  };
  return table;
}

const NamedLoss& find_loss(const std::string& name) {
  return internal::named_entry(named_losses(), &NamedLoss::name, name, "Loss", "loss");
}

std::string name_of(PlainFunction function) {
  const auto found = std::ranges::find(named_losses(), function, &NamedLoss::plain);
  TUTTI_CHECK(found != named_losses().end(), "Loss: expected one of the named loss functions");
  return found->name;
}

Loss::Function bound(CrossentropyFunction function, CrossentropyOptions options) {
  return [=](const Tensor& labels, const Tensor& predictions) {
    return function(labels, predictions, options);
  };
}

void refuse_local_mean(const std::string& name, LossReduction reduction) {
  const int replicas = ReplicaGroup::current(concat("Loss '", name, "'")).num_replicas();
  if (replicas <= 1) return;
  fail(ErrorCode::kInvalidArgument, "Loss '", name, "': reduction ", reduction, " divides by the ",
       "number of examples on this replica only, but ", replicas,
       " replicas take part; please use LossReduction::kSum or LossReduction::kNone when losses "
       "are used with a strategy outside of Model::fit, and divide by the global batch: "
       "per_example = loss_object(labels, predictions); loss = compute_average_loss(per_example, "
       "global_batch_size)");
}

}  // namespace

std::ostream& operator<<(std::ostream& out, LossReduction reduction) {
  constexpr std::string_view kNames[] = {"AUTO", "SUM_OVER_BATCH_SIZE", "SUM", "NONE"};
  return out << internal::name_in(kNames, reduction, "LossReduction");
}

Loss::Loss(const std::string& name) : name_(name), call_(name) {
  const NamedLoss& entry = find_loss(name);
  open_kind_ = entry.crossentropy != nullptr;
  if (open_kind_) kind_ = PredictionKind::kLogits;
  per_example_ =
      open_kind_ ? bound(entry.crossentropy, CrossentropyOptions{}) : Function(entry.plain);
}

/// Gives labels the rank of the predictions, because a custom function would otherwise broadcast
/// labels [batch] and predictions [batch, 1] to [batch, batch].
Loss::Loss(std::string name, Function per_example, LossReduction reduction)
    : Loss(std::move(name),
           [function = std::move(per_example)](const Tensor& labels, const Tensor& predictions) {
             return function(internal::same_rank_labels(labels, predictions), predictions);
           },
           reduction, std::nullopt, {}) {}

Loss::Loss(std::string name, Function per_example, LossReduction reduction,
           std::optional<PredictionKind> kind, Json call)
    : name_(std::move(name)),
      per_example_(std::move(per_example)),
      call_(std::move(call)),
      reduction_(reduction),
      kind_(kind) {}

Loss::Loss(PlainFunction per_example, LossReduction reduction)
    : Loss(name_of(per_example), per_example, reduction, std::nullopt,
           internal::call_of(name_of(per_example), LossOptions{reduction})) {}

Loss Loss::for_predictions(PredictionKind kind) const {
  TUTTI_CHECK(open_kind_, "Loss '", name_, "': the kind of prediction is already fixed");
  Loss loss = *this;
  loss.kind_ = kind;
  loss.per_example_ =
      bound(find_loss(name_).crossentropy, CrossentropyOptions{.from_logits = loss.takes_logits()});
  return loss;
}

Tensor Loss::per_example(const Operand& labels, const Operand& predictions,
                         const Tensor& sample_weight) const {
  const CallSite site(internal::callers_line(labels.where));
  const internal::StepWeights steps(predictions.tensor, sample_weight, name_);
  const Tensor p =
      is_half(predictions.dtype()) ? cast(predictions, DType::kFloat32) : predictions.tensor;
  if (!steps.any()) return internal::weighted(per_example_(labels.tensor, p), sample_weight, name_);
  return steps.mean_of_examples(steps.values(per_example_, labels.tensor, p));
}

Tensor Loss::operator()(const Operand& labels, const Operand& predictions,
                        const Tensor& sample_weight) const {
  const bool mean =
      reduction_ == LossReduction::kAuto || reduction_ == LossReduction::kSumOverBatchSize;
  if (mean) refuse_local_mean(name_, reduction_);
  const Tensor values = per_example(labels, predictions, sample_weight);
  if (reduction_ == LossReduction::kNone) return values;
  const Tensor sum = reduce_sum(values);
  if (!mean) return sum;
  const double count = static_cast<double>(std::max<std::int64_t>(1, values.num_elements()));
  return sum / count;
}

// Loss classes and their options.

namespace {

PredictionKind kind_of(bool from_logits) {
  return from_logits ? PredictionKind::kLogits : PredictionKind::kProbabilities;
}

template <class Options>
Loss::Function bound(Tensor (*function)(const Operand&, const Operand&, Options), Options options) {
  return [=](const Tensor& labels, const Tensor& predictions) {
    return function(labels, predictions, options);
  };
}

Loss::Function bound(Tensor (*function)(const Operand&, const Operand&, CrossentropyOptions),
                     const CrossentropyLossOptions& options) {
  return bound(function, CrossentropyOptions{.from_logits = options.from_logits,
                                             .label_smoothing = options.label_smoothing});
}

}  // namespace

SparseCategoricalCrossentropy::SparseCategoricalCrossentropy(CrossentropyLossOptions options)
    : Loss("sparse_categorical_crossentropy",
           bound(&losses::sparse_categorical_crossentropy, options), options.reduction,
           kind_of(options.from_logits),
           internal::call_of("SparseCategoricalCrossentropy", options)) {}
CategoricalCrossentropy::CategoricalCrossentropy(CrossentropyLossOptions options)
    : Loss("categorical_crossentropy", bound(&losses::categorical_crossentropy, options),
           options.reduction, kind_of(options.from_logits),
           internal::call_of("CategoricalCrossentropy", options)) {}
BinaryCrossentropy::BinaryCrossentropy(CrossentropyLossOptions options)
    : Loss("binary_crossentropy", bound(&losses::binary_crossentropy, options), options.reduction,
           kind_of(options.from_logits), internal::call_of("BinaryCrossentropy", options)) {}
BinaryFocalCrossentropy::BinaryFocalCrossentropy(FocalLossOptions options)
    : Loss("binary_focal_crossentropy", bound(&losses::binary_focal_crossentropy, options.focal),
           options.reduction, kind_of(options.focal.from_logits),
           internal::call_of("BinaryFocalCrossentropy", options)) {}
CategoricalFocalCrossentropy::CategoricalFocalCrossentropy(FocalLossOptions options)
    : Loss("categorical_focal_crossentropy",
           bound(&losses::categorical_focal_crossentropy, options.focal), options.reduction,
           kind_of(options.focal.from_logits),
           internal::call_of("CategoricalFocalCrossentropy", options)) {}
Huber::Huber(HuberLossOptions options)
    : Loss("huber", bound(&losses::huber, HuberOptions{.delta = options.delta}), options.reduction,
           std::nullopt, internal::call_of("Huber", options)) {}

// JSON form of losses: their names, or the calls that recreate them.

Json Loss::to_json() const {
  if (!call_.is_null()) return call_;
  fail(ErrorCode::kUnimplemented, "the loss '", name_,
       "' is a custom function, so it cannot be saved");
}

namespace {

using LossTable = internal::CallTable<Loss>;

template <class L, class Options>
LossTable::Entry loss_entry() {
  return {internal::plain_type_name(typeid(L)),
          internal::reads_call<Options>([](Options options) -> Loss { return L(options); })};
}

std::vector<LossTable::Entry> loss_entries(
    const std::function<Loss(PlainFunction, LossReduction)>& of_plain) {
  std::vector<LossTable::Entry> entries = {
      loss_entry<SparseCategoricalCrossentropy, CrossentropyLossOptions>(),
      loss_entry<CategoricalCrossentropy, CrossentropyLossOptions>(),
      loss_entry<BinaryCrossentropy, CrossentropyLossOptions>(),
      loss_entry<BinaryFocalCrossentropy, FocalLossOptions>(),
      loss_entry<CategoricalFocalCrossentropy, FocalLossOptions>(),
      loss_entry<Huber, HuberLossOptions>()};
  for (const NamedLoss& entry : named_losses()) {
    if (!entry.plain) continue;
    entries.emplace_back(entry.name, internal::reads_call<LossOptions>(
                                         [of_plain, plain = entry.plain](LossOptions options) {
                                           return of_plain(plain, options.reduction);
                                         }));
  }
  return entries;
}

}  // namespace

Loss Loss::from_json(const Json& json) {
  static const LossTable table("loss", "save with .compile_arguments = false",
                               loss_entries([](PlainFunction function, LossReduction reduction) {
                                 return Loss(function, reduction);
                               }));
  return json.is_array() ? table.make(json) : Loss(json.as_string());
}

namespace {

// Scaling of losses by the global batch size or the number of replicas.

int replicas_of(std::string_view who) {
  const int replicas = ReplicaGroup::current(who).num_replicas();
  internal::require(replicas >= 1, who, ": expected at least one replica, got ", replicas);
  return replicas;
}

}  // namespace

Tensor compute_average_loss(const Tensor& per_example_loss, AverageLossOptions options) {
  const char* who = "compute_average_loss";
  const int replicas = replicas_of(who);
  internal::require(
      per_example_loss.rank() != 0, who,
      ": expected one loss per example (a tensor of at least rank 1), got a scalar; try a loss "
      "without reduction");
  const std::int64_t rows = per_example_loss.shape()[0];
  if (!options.global_batch_size) ReplicaGroup::current(who).assume_equal_rows(rows);
  const std::int64_t global = options.global_batch_size.value_or(rows * replicas);
  internal::require(global >= 0, who, ": global_batch_size must be non-negative, got ", global);
  const Tensor sum = reduce_sum(internal::weighted(per_example_loss, options.sample_weight, who));
  return global == 0 ? sum * 0.0 : sum / static_cast<double>(global);
}

Tensor scale_regularization_loss(std::span<const Tensor> losses) {
  const int replicas = replicas_of("scale_regularization_loss");
  if (losses.empty()) return Tensor::zeros({});
  Tensor sum = reduce_sum(losses[0]);
  for (const Tensor& loss : losses.subspan(1)) sum = sum + reduce_sum(loss);
  return sum / static_cast<double>(replicas);
}

Tensor scale_regularization_loss(const Tensor& losses) {
  return scale_regularization_loss(std::span<const Tensor>(&losses, 1));
}

}  // namespace tutti
