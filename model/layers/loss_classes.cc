// Loss objects: by name, from a function, or as classes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/losses.h"

#include <algorithm>
#include <vector>

#include "core/call_site.h"
#include "core/call_table.h"
#include "model/layers/labels_and_weights.h"
#include "tensor/op_checks.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/type_names.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Loss objects, and their names.

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
  TUTTI_CHECK(found != named_losses().end(), "Loss: a function that has no name");
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
       "examples of this replica alone, but ", replicas,
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

Loss::Loss(std::string name, Function per_example, LossReduction reduction)
    : Loss(std::move(name), std::move(per_example), reduction, std::nullopt, {}) {}

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
  TUTTI_CHECK(open_kind_, "Loss '", name_, "' says itself what its predictions are");
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

// The losses as classes, with their options.

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

// Losses as the calls that make them.

Json Loss::to_json() const {
  if (!call_.is_null()) return call_;
  fail(ErrorCode::kUnimplemented, "the loss '", name_,
       "' is a function of your own, so it cannot be saved");
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
  static const LossTable table("loss", "try compiling the loaded model with it",
                               loss_entries([](PlainFunction function, LossReduction reduction) {
                                 return Loss(function, reduction);
                               }));
  return json.is_array() ? table.make(json) : Loss(json.as_string());
}

}  // namespace tutti
