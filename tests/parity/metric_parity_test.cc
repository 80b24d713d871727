// Metrics against Keras's: the result after each of three batches, without and with weights.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/parity/parity_record.h"
#include "tutti/model/layers/metric_spec.h"

namespace tutti::parity {
namespace {

using MakeMetric = std::function<std::shared_ptr<PredictionMetric>()>;

constexpr std::int64_t kBatches = 3;

template <class M, class... Args>
MakeMetric of(Args... args) {
  return [=] { return std::make_shared<M>(args...); };
}

/// What Model::compile makes of the name, for a loss that takes no logits.
MakeMetric by_name(const char* name) {
  return [=] { return MetricSpec(name).make(Loss("mean_squared_error")); };
}

MakeMetric f1(F1ScoreOptions options) { return of<F1Score>(options); }

std::map<std::string, MakeMetric> metrics_of_decisions() {
  const ConfusionOptions plain, two{.top_k = 2}, second{.threshold = 0.375, .class_id = 1};
  const F1ScoreOptions four{.num_classes = 4};
  F1ScoreOptions micro = four, weighted = four, threshold = four;
  micro.average = ScoreAverage::kMicro;
  weighted.average = ScoreAverage::kWeighted;
  threshold.threshold = 0.5;
  F1ScoreOptions beta = weighted;
  beta.beta = 2.0;
  return {
      {"precision", of<Precision>(plain)},
      {"precision_top_2", of<Precision>(two)},
      {"precision_of_class_1", of<Precision>(second)},
      {"recall", of<Recall>(plain)},
      {"recall_top_2", of<Recall>(two)},
      {"recall_of_class_1", of<Recall>(second)},
      {"true_positives", of<TruePositives>(plain)},
      {"true_negatives", of<TrueNegatives>(plain)},
      {"false_positives", of<FalsePositives>(plain)},
      {"false_negatives", of<FalseNegatives>(ConfusionOptions{.threshold = 0.75})},
      {"f1_score_macro", f1(four)},
      {"f1_score_micro", f1(micro)},
      {"f1_score_weighted", f1(weighted)},
      {"f1_score_threshold", f1(threshold)},
      {"f_beta_score", f1(beta)},
      {"mean_io_u", of<MeanIoU>(4)},
      {"mean_io_u_ignoring_2", of<MeanIoU>(4, MeanIoUOptions{.ignore_class = 2})},
      {"auc", of<Auc>()},
      {"auc_precision_recall",
       of<Auc>(AucOptions{.num_thresholds = 50, .curve = AucCurve::kPrecisionRecall})},
      {"auc_from_logits", of<Auc>(AucOptions{.from_logits = true})},
  };
}

/// The metrics of metric_cases.py.
const std::map<std::string, MakeMetric>& metric_table() {
  static const std::map<std::string, MakeMetric> table = [] {
    std::map<std::string, MakeMetric> all = metrics_of_decisions();
    all["sparse_categorical_accuracy"] = of<SparseCategoricalAccuracy>();
    all["categorical_accuracy"] = of<CategoricalAccuracy>();
    all["binary_accuracy"] = of<BinaryAccuracy>();
    all["binary_accuracy_threshold"] = of<BinaryAccuracy>("binary_accuracy", 0.75);
    all["top_k_categorical_accuracy"] = of<TopKCategoricalAccuracy>(2);
    all["sparse_top_k_categorical_accuracy"] = of<SparseTopKCategoricalAccuracy>(2);
    all["mean_squared_error"] = of<MeanSquaredErrorMetric>();
    all["mean_absolute_error"] = of<MeanAbsoluteErrorMetric>();
    all["root_mean_squared_error"] = of<RootMeanSquaredError>();
    for (const char* name :
         {"mean_absolute_percentage_error", "mean_squared_logarithmic_error", "cosine_similarity",
          "log_cosh", "hinge", "squared_hinge", "categorical_hinge", "kl_divergence", "poisson",
          "binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy"}) {
      all[name] = by_name(name);
    }
    return all;
  }();
  return table;
}

/// Keras's log_cosh subtracts a logarithm of 2 in float32; its scores add 1e-7 to divisors, and its
/// intersections over unions are float32.
double tolerance_of_metric(const std::string& name) {
  if (name.starts_with("f1_score") || name == "f_beta_score") return 1e-7;
  return name == "log_cosh" || name.starts_with("mean_io_u") ? 2e-8 : 1e-9;
}

class MetricParity : public ::testing::TestWithParam<std::string> {
 protected:
  void compare_with_record(const char* results, const char* weights) const {
    const Record& record = record_of("metrics");
    const std::string prefix = GetParam() + "/";
    const auto metric = metric_table().at(GetParam())();
    const std::vector<double> expected = record.at(prefix + results).to_doubles();
    const std::int64_t rows = record.at(prefix + "weights").shape()[0] / kBatches;
    for (std::int64_t batch = 0; batch < kBatches; ++batch) {
      const auto part = [&](const char* what) {
        return record.at(prefix + what).detached_rows(batch * rows, rows);
      };
      metric->update_state(part("labels"), part("predictions"), weights ? part(weights) : Tensor());
      EXPECT_NEAR(metric->result().item_double(), expected[static_cast<std::size_t>(batch)],
                  tolerance_of_metric(GetParam()))
          << results << " after batch " << batch;
    }
  }
};

TEST_P(MetricParity, IsKerasAfterEachBatch) { compare_with_record("plain", nullptr); }
TEST_P(MetricParity, IsKerasWithWeights) { compare_with_record("weighted", "weights"); }

/// 1: larger is better, -1: smaller is, 0: that is not said.
double number_of_direction(const Metric& metric) {
  if (metric.direction() == MetricDirection::kUnknown) return 0.0;
  return metric.direction() == MetricDirection::kUp ? 1.0 : -1.0;
}

TEST_P(MetricParity, HasKerasDirection) {
  EXPECT_EQ(number_of_direction(*metric_table().at(GetParam())()),
            record_of("fit").at("directions/" + GetParam()).item_double());
}

TEST(MetricDirections, OfMeansAndOfNames) {
  const auto recorded = [](const std::string& name) {
    return record_of("fit").at("directions/" + name).item_double();
  };
  EXPECT_EQ(number_of_direction(Mean()), recorded("mean"));
  EXPECT_EQ(number_of_direction(Sum()), recorded("sum"));
  for (const char* name :
       {"mse", "mae", "mape", "msle", "bce", "kl_divergence", "accuracy", "acc"}) {
    EXPECT_EQ(number_of_direction(*MetricSpec(name).make(Loss("mse"))),
              recorded(concat(name, "_by_name")))
        << name;
  }
}

TUTTI_PARITY_CASES(MetricParity, metric_table(), "metrics");

}  // namespace
}  // namespace tutti::parity
