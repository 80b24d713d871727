// Metrics by name.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metric_spec.h"

#include <vector>

#include "core/call_table.h"
#include "core/names.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/metrics.h"
#include "tutti/tensor/ops/activation_ops.h"

namespace tutti {
namespace {

using Made = std::shared_ptr<PredictionMetric>;

struct NamedMetric {
  const char* name;
  Made (*make)(const std::string& name, const Loss& loss);
};

template <class M>
Made plain(const std::string& name, const Loss&) {
  return std::make_shared<M>(name);
}

template <class M>
Made top_k(const std::string& name, const Loss&) {
  return std::make_shared<M>(5, name);
}

bool is_categorical(const Loss& loss) {
  return loss.name() == "categorical_crossentropy" ||
         loss.name() == "categorical_focal_crossentropy";
}

/// Metric M for predictions that are class logits; applies softmax first.
template <class M>
class SoftmaxMetric final : public M {
 public:
  using M::M;

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override {
    const Tensor probabilities = softmax(predictions);
    MaskScope::set_mask(probabilities, MaskScope::mask_of(predictions));
    M::update(labels, probabilities, sample_weight);
  }
};

/// Returns the threshold between two classes: 0 for logits, 0.5 for probabilities.
double threshold_for(const Loss& loss) { return loss.takes_logits() ? 0.0 : 0.5; }

template <class M>
Made counted(const std::string& name, const Loss& loss) {
  if (is_categorical(loss) && loss.takes_logits())
    return std::make_shared<SoftmaxMetric<M>>(ConfusionOptions{.name = name});
  return std::make_shared<M>(ConfusionOptions{.threshold = threshold_for(loss), .name = name});
}

Made binary_accuracy(const std::string& name, const Loss& loss) {
  if (is_categorical(loss) && loss.takes_logits())
    return std::make_shared<SoftmaxMetric<BinaryAccuracy>>(name);
  return std::make_shared<BinaryAccuracy>(name, threshold_for(loss));
}

Made auc(const std::string& name, const Loss& loss) {
  if (is_categorical(loss) && loss.takes_logits())
    return std::make_shared<SoftmaxMetric<Auc>>(AucOptions{.name = name});
  return std::make_shared<Auc>(AucOptions{.from_logits = loss.takes_logits(), .name = name});
}

Made accuracy(const std::string& name, const Loss& loss) {
  const std::string& kind = loss.name();
  if (kind == "sparse_categorical_crossentropy")
    return std::make_shared<SparseCategoricalAccuracy>(name);
  if (is_categorical(loss)) return std::make_shared<CategoricalAccuracy>(name);
  if (kind == "binary_crossentropy" || kind == "bce" || kind == "binary_focal_crossentropy")
    return binary_accuracy(name, loss);
  return std::make_shared<MeanPredictionMetric>(name, internal::hits_by_shape(),
                                                MetricDirection::kUp);
}

const std::vector<NamedMetric>& named_metrics() {
  static const std::vector<NamedMetric> table = {
      {"accuracy", &accuracy},
      {"sparse_categorical_accuracy", &plain<SparseCategoricalAccuracy>},
      {"categorical_accuracy", &plain<CategoricalAccuracy>},
      {"binary_accuracy", &binary_accuracy},
      {"top_k_categorical_accuracy", &top_k<TopKCategoricalAccuracy>},
      {"sparse_top_k_categorical_accuracy", &top_k<SparseTopKCategoricalAccuracy>},
      {"root_mean_squared_error", &plain<RootMeanSquaredError>},
      {"rmse", &plain<RootMeanSquaredError>},
      {"cosine_similarity", &plain<CosineSimilarityMetric>},
      {"precision", &counted<Precision>},
      {"recall", &counted<Recall>},
      {"true_positives", &counted<TruePositives>},
      {"true_negatives", &counted<TrueNegatives>},
      {"false_positives", &counted<FalsePositives>},
      {"false_negatives", &counted<FalseNegatives>},
      {"auc", &auc},
      {"acc", &accuracy},
  };
  return table;
}

const NamedMetric* find_metric(const std::string& name) {
  for (const NamedMetric& entry : named_metrics())
    if (name == entry.name) return &entry;
  return nullptr;
}

[[noreturn]] void fail_unknown(const std::string& name, const Error& loss_error) {
  const auto names = internal::names_of(named_metrics(), &NamedMetric::name);
  throw Error(loss_error.code(),
              concat("MetricSpec: no metric is named '", name, "'; expected a loss or one of ",
                     internal::choices(names, name), "; as a loss: ", loss_error.message()));
}

}  // namespace

MetricSpec::MetricSpec(const std::string& name) : name_(name) {
  if (find_metric(name)) return;
  try {
    const Loss loss(name);
  } catch (const Error& error) {
    fail_unknown(name, error);
  }
}

// JSON form of metrics: their names, or the calls that recreate them.

namespace {

using MetricTable = internal::CallTable<MetricSpec::Maker>;

template <class M, class... Arguments>
MetricTable::Entry metric_entry() {
  return {internal::plain_type_name(typeid(M)), internal::metric_maker<M, Arguments...>()};
}

MetricTable& metric_table() {
  using Text = std::string;
  static MetricTable table(
      "metric",
      "call register_metric<its class, types of its arguments>() before "
      "load_model()",
      {metric_entry<SparseCategoricalAccuracy, Text>(), metric_entry<CategoricalAccuracy, Text>(),
       metric_entry<BinaryAccuracy, Text, double>(), metric_entry<MeanSquaredErrorMetric, Text>(),
       metric_entry<MeanAbsoluteErrorMetric, Text>(), metric_entry<CosineSimilarityMetric, Text>(),
       metric_entry<RootMeanSquaredError, Text>(),
       metric_entry<TopKCategoricalAccuracy, int, Text>(),
       metric_entry<SparseTopKCategoricalAccuracy, int, Text>(),
       metric_entry<Precision, ConfusionOptions>(), metric_entry<Recall, ConfusionOptions>(),
       metric_entry<TruePositives, ConfusionOptions>(),
       metric_entry<TrueNegatives, ConfusionOptions>(),
       metric_entry<FalsePositives, ConfusionOptions>(),
       metric_entry<FalseNegatives, ConfusionOptions>(), metric_entry<F1Score, F1ScoreOptions>(),
       metric_entry<MeanIoU, std::int64_t, MeanIoUOptions>(), metric_entry<Auc, AucOptions>()});
  return table;
}

}  // namespace

void internal::add_metric_maker(std::string type_name, MetricMaker maker) {
  metric_table().add(std::move(type_name), std::move(maker));
}

Json MetricSpec::to_json() const {
  if (call_) return call_();
  if (!make_) return name_;
  fail(ErrorCode::kUnimplemented, "the metric '", name_,
       "' was created by a custom function, so it cannot be saved");
}

MetricSpec MetricSpec::from_json(const Json& json) {
  if (!json.is_array()) return MetricSpec(json.as_string());
  MetricSpec spec(json.as_array().at(0).as_string(), metric_table().make(json));
  spec.call_ = [json] { return json; };
  return spec;
}

std::shared_ptr<PredictionMetric> MetricSpec::make(const Loss& loss) const {
  if (make_) return make_();
  if (const NamedMetric* entry = find_metric(name_)) return entry->make(name_, loss);
  const Loss named(name_);
  const bool same_kind = named.prediction_kind_is_open() && !loss.takes_logits();
  const Loss function = same_kind ? named.for_predictions(PredictionKind::kProbabilities) : named;
  return std::make_shared<MeanPredictionMetric>(
      name_,
      [function](const Tensor& labels, const Tensor& predictions) {
        return function.per_example(labels, predictions);
      },
      MetricDirection::kDown);
}

}  // namespace tutti
