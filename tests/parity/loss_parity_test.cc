// Compares losses with Keras's, values and gradients, and metrics after each of three batches.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/metric_spec.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::parity {
namespace {

struct LossCase {
  Loss::Function function;
  /// Makes the loss object with the same options.
  std::function<Loss(LossReduction)> make;
};

/// Function without options, and its class.
template <class LossClass>
LossCase plain(Tensor (*function)(const Operand&, const Operand&)) {
  return {function, [](LossReduction how) { return LossClass({.reduction = how}); }};
}

template <class LossClass>
LossCase crossentropy(Tensor (*function)(const Operand&, const Operand&, CrossentropyOptions),
                      CrossentropyOptions options) {
  return {[=](const Tensor& labels, const Tensor& predictions) {
            return function(labels, predictions, options);
          },
          [=](LossReduction how) {
            return LossClass({options.from_logits, options.label_smoothing, how});
          }};
}

template <class LossClass>
LossCase focal(Tensor (*function)(const Operand&, const Operand&, FocalOptions),
               FocalOptions options) {
  return {[=](const Tensor& labels, const Tensor& predictions) {
            return function(labels, predictions, options);
          },
          [=](LossReduction how) {
            return LossClass({options, how});
          }};
}

LossCase huber_of_delta(double delta) {
  return {[=](const Tensor& labels, const Tensor& predictions) {
            return losses::huber(labels, predictions, {delta});
          },
          [=](LossReduction how) {
            return Huber({delta, how});
          }};
}

/// The losses of loss_cases.py.
const std::map<std::string, LossCase>& loss_table() {
  using Sparse = SparseCategoricalCrossentropy;
  using Categorical = CategoricalCrossentropy;
  using Binary = BinaryCrossentropy;
  using BinaryFocal = BinaryFocalCrossentropy;
  using CategoricalFocal = CategoricalFocalCrossentropy;
  const auto sparse = &losses::sparse_categorical_crossentropy;
  const auto categorical = &losses::categorical_crossentropy;
  const auto binary = &losses::binary_crossentropy;
  const auto binary_focal = &losses::binary_focal_crossentropy;
  const auto categorical_focal = &losses::categorical_focal_crossentropy;
  const CrossentropyOptions logits{}, probabilities{.from_logits = false};
  static const std::map<std::string, LossCase> table = {
      {"sparse_categorical_crossentropy", crossentropy<Sparse>(sparse, logits)},
      {"sparse_categorical_crossentropy_probabilities",
       crossentropy<Sparse>(sparse, probabilities)},
      {"categorical_crossentropy", crossentropy<Categorical>(categorical, logits)},
      {"categorical_crossentropy_probabilities",
       crossentropy<Categorical>(categorical, probabilities)},
      {"categorical_crossentropy_smoothed",
       crossentropy<Categorical>(categorical, {.label_smoothing = 0.1})},
      {"binary_crossentropy", crossentropy<Binary>(binary, logits)},
      {"binary_crossentropy_probabilities", crossentropy<Binary>(binary, probabilities)},
      {"binary_crossentropy_smoothed", crossentropy<Binary>(binary, {.label_smoothing = 0.2})},
      {"mean_squared_error", plain<MeanSquaredError>(&losses::mean_squared_error)},
      {"mean_absolute_error", plain<MeanAbsoluteError>(&losses::mean_absolute_error)},
      {"huber", huber_of_delta(1.0)},
      {"huber_delta", huber_of_delta(0.5)},
      {"log_cosh", plain<LogCosh>(&losses::log_cosh)},
      {"hinge", plain<Hinge>(&losses::hinge)},
      {"hinge_of_zeros_and_ones", plain<Hinge>(&losses::hinge)},
      {"squared_hinge", plain<SquaredHinge>(&losses::squared_hinge)},
      {"kl_divergence", plain<KLDivergence>(&losses::kl_divergence)},
      {"poisson", plain<Poisson>(&losses::poisson)},
      {"binary_focal_crossentropy", focal<BinaryFocal>(binary_focal, {})},
      {"binary_focal_crossentropy_probabilities",
       focal<BinaryFocal>(binary_focal, {.from_logits = false})},
      {"binary_focal_crossentropy_options",
       focal<BinaryFocal>(binary_focal, {.label_smoothing = 0.125,
                                         .gamma = 1.5,
                                         .alpha = 0.375,
                                         .apply_class_balancing = true})},
      {"categorical_focal_crossentropy", focal<CategoricalFocal>(categorical_focal, {})},
      {"categorical_focal_crossentropy_probabilities",
       focal<CategoricalFocal>(categorical_focal, {.from_logits = false})},
      {"categorical_focal_crossentropy_options",
       focal<CategoricalFocal>(categorical_focal,
                               {.label_smoothing = 0.125, .gamma = 3.0, .alpha = 0.5})},
      {"mean_absolute_percentage_error",
       plain<MeanAbsolutePercentageError>(&losses::mean_absolute_percentage_error)},
      {"mean_squared_logarithmic_error",
       plain<MeanSquaredLogarithmicError>(&losses::mean_squared_logarithmic_error)},
      {"cosine_similarity", plain<CosineSimilarity>(&losses::cosine_similarity)},
      {"categorical_hinge", plain<CategoricalHinge>(&losses::categorical_hinge)},
      {"binary_focal_crossentropy_wide", focal<BinaryFocal>(binary_focal, {})},
      {"categorical_focal_crossentropy_wide", focal<CategoricalFocal>(categorical_focal, {})},
  };
  return table;
}

/// Keras's log_cosh subtracts a logarithm of 2 in float32.
double tolerance_of_loss(const std::string& name) { return name == "log_cosh" ? 2e-8 : 1e-9; }

class LossParity : public ::testing::TestWithParam<std::string> {
 protected:
  const Tensor& recorded(const std::string& what) const {
    return record_of("losses").at(GetParam() + "/" + what);
  }

  /// Compares values and gradients, computed in the type of the predictions.
  void compare_with_record(DType dtype, double tolerance) const {
    const Variable predictions(cast(recorded("predictions"), dtype), {.name = "predictions"});
    GradientTape tape;
    const Tensor values =
        loss_table().at(GetParam()).function(recorded("labels"), predictions.value());
    const Tensor target = reduce_sum(values * cast(recorded("factors"), dtype));
    const auto gradients = tape.gradient(target, std::vector<Variable>{predictions});
    EXPECT_EQ(values.dtype(), dtype);
    expect_close(values, recorded("values"), tolerance, "values");
    expect_close(gradients[0].dense(), recorded("gradient"), tolerance, "gradient");
  }
};

TEST_P(LossParity, IsKerasPerExampleAndBackward) {
  compare_with_record(DType::kFloat64, tolerance_of_loss(GetParam()));
}

TEST_P(LossParity, InFloat32StaysWithin1e4) { compare_with_record(DType::kFloat32, 1e-4); }

TEST_P(LossParity, TheClassReducesWeightedLossesAsKeras) {
  const std::vector<double> expected = recorded("reduced").to_doubles();
  const LossReduction reductions[] = {LossReduction::kSumOverBatchSize, LossReduction::kSum};
  for (std::size_t i = 0; i < 2; ++i) {
    const Loss loss = loss_table().at(GetParam()).make(reductions[i]);
    EXPECT_TRUE(GetParam().starts_with(loss.name())) << loss.name();
    const Tensor value = loss(recorded("labels"), recorded("predictions"), recorded("factors"));
    EXPECT_NEAR(value.item_double(), expected[i],
                tolerance_of_loss(GetParam()) * std::abs(expected[i]))
        << reductions[i];
  }
}

TUTTI_PARITY_CASES(LossParity, loss_table(), "losses");

using MakeMetric = std::function<std::shared_ptr<PredictionMetric>()>;

constexpr std::int64_t kBatches = 3;

template <class M, class... Args>
MakeMetric of(Args... args) {
  return [=] { return std::make_shared<M>(args...); };
}

/// Returns the metric that Model::compile makes for the name, with a loss that does not take
/// logits.
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

/// Returns 1 if larger is better, -1 if smaller is better, 0 if unknown.
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
