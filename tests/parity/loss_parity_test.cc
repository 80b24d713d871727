// Compares losses, metrics, optimizers and learning-rate schedules with Keras, in float64.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>

#include "tests/parity/parity_record.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/model/layers/losses.h"
#include "tutti/model/layers/metric_spec.h"
#include "tutti/optimizer/learning_rate_schedules.h"
#include "tutti/optimizer/optimizers.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti::testing::loss_parity_test {

struct LossCase {
  Loss::Function function;
  /// Creates a loss object with the options of `function`.
  std::function<Loss(LossReduction)> make;
};

/// Returns a LossCase for a loss without options.
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

/// Returns the losses of loss_cases.py.
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

/// Returns the relative tolerance, which is larger for log_cosh: Keras subtracts a float32 log(2).
double tolerance_of_loss(const std::string& name) { return name == "log_cosh" ? 2e-8 : 1e-9; }

class LossParity : public TestWithParam<std::string> {
 protected:
  const Tensor& recorded(const std::string& what) const {
    return record_of("losses").at(GetParam() + "/" + what);
  }

  /// Compares values and gradients that are computed in `dtype`.
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

TEST_P(LossParity, PerExampleLossesAndGradientsMatchKeras) {
  compare_with_record(DType::kFloat64, tolerance_of_loss(GetParam()));
}

TEST_P(LossParity, Float32MatchesKerasToFourDigits) { compare_with_record(DType::kFloat32, 1e-4); }

TEST_P(LossParity, WeightedReductionMatchesKeras) {
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

/// Returns a function that creates the metric called `name` as Model::compile() does for a loss
/// that does not take logits.
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

/// Returns the metrics of metric_cases.py.
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

/// Returns the relative tolerance. Keras subtracts a float32 logarithm of 2 in log_cosh, adds 1e-7
/// to the divisors of F-scores, and computes intersections over unions in float32.
double tolerance_of_metric(const std::string& name) {
  if (name.starts_with("f1_score") || name == "f_beta_score") return 1e-7;
  return name == "log_cosh" || name.starts_with("mean_io_u") ? 2e-8 : 1e-9;
}

class MetricParity : public TestWithParam<std::string> {
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

TEST_P(MetricParity, MatchesKerasAfterEachBatch) { compare_with_record("plain", nullptr); }
TEST_P(MetricParity, MatchesKerasWithWeights) { compare_with_record("weighted", "weights"); }

/// Returns 1 if larger is better, -1 if smaller is better, 0 if unknown.
double number_of_direction(const Metric& metric) {
  if (metric.direction() == MetricDirection::kUnknown) return 0.0;
  return metric.direction() == MetricDirection::kUp ? 1.0 : -1.0;
}

TEST_P(MetricParity, DirectionMatchesKeras) {
  EXPECT_EQ(number_of_direction(*metric_table().at(GetParam())()),
            record_of("fit").at("directions/" + GetParam()).item_double());
}

TEST(MetricDirections, MeansAndNamedMetricsMatchKeras) {
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

template <class Options>
Options with_betas(Options options = {}) {
  options.learning_rate = 1.0 / 64;
  options.beta_1 = 7.0 / 8;
  options.beta_2 = 31.0 / 32;
  return options;
}

SgdOptions with_rate(const LearningRate& rate) {
  SgdOptions options;
  options.learning_rate = rate;
  return options;
}

/// Returns the optimizers of optimizer_cases.py.
const std::map<std::string, OptimizerSpec>& optimizer_table() {
  static const std::map<std::string, OptimizerSpec> table = {
      {"sgd", "sgd"},
      {"sgd_momentum", SgdOptions{.learning_rate = 1.0 / 16, .momentum = 7.0 / 8}},
      {"sgd_nesterov",
       SgdOptions{.learning_rate = 1.0 / 16, .momentum = 7.0 / 8, .nesterov = true}},
      {"sgd_clipnorm", SgdOptions{.learning_rate = 0.1, .clipping = {.clipnorm = 0.5}}},
      {"sgd_clipvalue", SgdOptions{.learning_rate = 0.1, .clipping = {.clipvalue = 0.3}}},
      {"sgd_global_clipnorm",
       SgdOptions{.learning_rate = 0.1, .clipping = {.global_clipnorm = 0.7}}},
      {"sgd_exponential_decay", SgdOptions{.learning_rate = ExponentialDecay({1.0 / 8, 5, 0.5})}},
      {"sgd_exponential_decay_staircase",
       SgdOptions{.learning_rate = ExponentialDecay({1.0 / 8, 5, 0.5, true})}},
      {"sgd_piecewise_constant_decay",
       SgdOptions{.learning_rate = PiecewiseConstantDecay({4, 11}, {1.0 / 8, 1.0 / 32, 1.0 / 64})}},
      {"adam", "adam"},
      {"adam_options", AdamOptions{.learning_rate = 1.0 / 64,
                                   .beta_1 = 7.0 / 8,
                                   .beta_2 = 31.0 / 32,
                                   .epsilon = 1.0 / 1024}},
      {"adam_amsgrad",
       AdamOptions{
           .learning_rate = 1.0 / 64, .beta_1 = 7.0 / 8, .beta_2 = 31.0 / 32, .amsgrad = true}},
      {"adamw", with_betas<AdamWOptions>({.weight_decay = 5.0 / 16})},
      {"rmsprop", RmspropOptions{.learning_rate = 1.0 / 64, .rho = 7.0 / 8}},
      {"rmsprop_momentum",
       RmspropOptions{.learning_rate = 1.0 / 64, .rho = 7.0 / 8, .momentum = 13.0 / 16}},
      {"rmsprop_centered",
       RmspropOptions{
           .learning_rate = 1.0 / 64, .rho = 7.0 / 8, .epsilon = 1.0 / 1024, .centered = true}},
      {"rmsprop_centered_momentum", RmspropOptions{.learning_rate = 1.0 / 64,
                                                   .rho = 7.0 / 8,
                                                   .momentum = 13.0 / 16,
                                                   .epsilon = 1.0 / 1024,
                                                   .centered = true}},
      {"adagrad", AdagradOptions{.learning_rate = 1.0 / 8, .initial_accumulator_value = 1.0 / 8}},
      {"adadelta", AdadeltaOptions{.learning_rate = 1.0, .rho = 15.0 / 16}},
      {"nadam", with_betas<NadamOptions>()},
      {"ftrl", FtrlOptions{.learning_rate = 1.0 / 8, .initial_accumulator_value = 1.0 / 8}},
      {"ftrl_options", FtrlOptions{.learning_rate = 1.0 / 8,
                                   .learning_rate_power = -11.0 / 16,
                                   .initial_accumulator_value = 3.0 / 16,
                                   .l1_regularization_strength = 1.0 / 8,
                                   .l2_regularization_strength = 3.0 / 16,
                                   .l2_shrinkage_regularization_strength = 3.0 / 64,
                                   .beta = 5.0 / 16}},
      {"lion", LionOptions{.learning_rate = 1.0 / 64, .beta_1 = 7.0 / 8, .beta_2 = 63.0 / 64}},
      {"lamb", with_betas<LambOptions>({.epsilon = 1e-7, .weight_decay = 0.0})},
      {"sgd_weight_decay",
       SgdOptions{.learning_rate = 1.0 / 8, .momentum = 0.5, .weight_decay = 3.0 / 64}},
      {"adam_ema",
       with_betas<AdamOptions>({.ema = EmaOptions{.momentum = 7.0 / 8, .overwrite_frequency = 6}})},
      {"adam_accumulation",
       with_betas<AdamOptions>({.clipping = {.clipnorm = 0.5}, .gradient_accumulation_steps = 3})},
      {"sgd_accumulation_cosine",
       SgdOptions{.learning_rate = CosineDecay(
                      {.initial_learning_rate = 1.0 / 8, .decay_steps = 16, .alpha = 1.0 / 8}),
                  .weight_decay = 1.0 / 8,
                  .gradient_accumulation_steps = 2}},
      {"rmsprop_loss_scale",
       RmspropOptions{.learning_rate = 1.0 / 64, .rho = 7.0 / 8, .loss_scale_factor = 7.0}},
      {"sgd_cosine_decay", with_rate(CosineDecay({.initial_learning_rate = 1.0 / 64,
                                                  .decay_steps = 10,
                                                  .alpha = 1.0 / 8,
                                                  .warmup_target = 0.5,
                                                  .warmup_steps = 5}))},
      {"sgd_cosine_decay_restarts", with_rate(CosineDecayRestarts({.initial_learning_rate = 1.0 / 8,
                                                                   .first_decay_steps = 3,
                                                                   .t_mul = 2.0,
                                                                   .m_mul = 13.0 / 16,
                                                                   .alpha = 1.0 / 16}))},
      {"sgd_polynomial_decay", with_rate(PolynomialDecay({.initial_learning_rate = 1.0 / 8,
                                                          .decay_steps = 7,
                                                          .end_learning_rate = 1.0 / 128,
                                                          .power = 1.5,
                                                          .cycle = true}))},
      {"sgd_inverse_time_decay", with_rate(InverseTimeDecay({.initial_learning_rate = 1.0 / 8,
                                                             .decay_steps = 4,
                                                             .decay_rate = 11.0 / 16,
                                                             .staircase = true}))},
  };
  return table;
}

/// Returns row `step` of a tensor that has one row for each step.
Tensor of_step(const Tensor& all, std::int64_t step) {
  const Shape& shape = all.shape();
  return all.detached_rows(step, 1).detached_reshape(
      Shape(std::vector<std::int64_t>(shape.begin() + 1, shape.end())));
}

/// Returns the relative tolerance. Keras computes powers of its default betas and of decay rates in
/// float32, and rounds Nadam's 0.96 to float32.
double tolerance_of_optimizer(const std::string& name) {
  if (name == "adam") return 2e-7;
  if (name == "nadam") return 2e-8;
  return name == "sgd_exponential_decay" ? 1e-7 : 1e-9;
}

class OptimizerParity : public TestWithParam<std::string> {};

TEST_P(OptimizerParity, MatchesKerasStepByStep) {
  const std::string prefix = GetParam() + "/";
  const Record& record = record_of("optimizers");
  std::vector<Variable> variables;
  for (const Tensor& initial : record.list(prefix + "initial")) {
    variables.emplace_back(initial, VariableOptions{.name = concat("v", variables.size())});
  }
  const std::vector<Tensor> all_gradients = record.list(prefix + "gradients");
  const std::vector<Tensor> all_after = record.list(prefix + "after");
  const auto optimizer = make_optimizer(optimizer_table().at(GetParam()), variables);
  for (std::int64_t step = 0; step < all_after[0].shape()[0]; ++step) {
    std::vector<Gradient> gradients;
    for (const Tensor& all : all_gradients) gradients.emplace_back(of_step(all, step));
    optimizer->apply_gradients(gradients);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      expect_close(variables[i].value(), of_step(all_after[i], step),
                   tolerance_of_optimizer(GetParam()),
                   concat("variable ", i, " after step ", step));
    }
  }
}

TUTTI_PARITY_CASES(OptimizerParity, optimizer_table(), "optimizers");

constexpr double kRate = 1.0 / 8;

std::map<std::string, LearningRate> decaying_schedules() {
  return {
      {"exponential_decay", ExponentialDecay({kRate, 5, 0.5})},
      {"exponential_decay_staircase", ExponentialDecay({kRate, 6, 0.75, /*staircase=*/true})},
      {"piecewise_constant_decay",
       PiecewiseConstantDecay({4, 11, 30}, {1.0 / 8, 1.0 / 32, 1.0 / 64, 1.0 / 4})},
      {"polynomial_decay", PolynomialDecay({kRate, 17, 1.0 / 128})},
      {"polynomial_decay_power", PolynomialDecay({kRate, 17, 1.0 / 128, /*power=*/0.5})},
      {"polynomial_decay_cycle",
       PolynomialDecay({kRate, 7, 1.0 / 128, /*power=*/1.5, /*cycle=*/true})},
      {"inverse_time_decay", InverseTimeDecay({kRate, 4, 11.0 / 16})},
      {"inverse_time_decay_staircase", InverseTimeDecay({kRate, 4, 11.0 / 16, /*staircase=*/true})},
  };
}

/// Returns the schedules in schedule_cases.py.
const std::map<std::string, LearningRate>& schedule_table() {
  static const std::map<std::string, LearningRate> table = [] {
    std::map<std::string, LearningRate> all = decaying_schedules();
    all.insert({
        {"cosine_decay", CosineDecay({.initial_learning_rate = kRate, .decay_steps = 25})},
        {"cosine_decay_alpha",
         CosineDecay({.initial_learning_rate = kRate, .decay_steps = 25, .alpha = 1.0 / 8})},
        {"cosine_decay_warm_up", CosineDecay({.initial_learning_rate = 1.0 / 64,
                                              .decay_steps = 20,
                                              .alpha = 1.0 / 8,
                                              .warmup_target = 0.5,
                                              .warmup_steps = 9})},
        {"cosine_decay_restarts",
         CosineDecayRestarts({.initial_learning_rate = kRate, .first_decay_steps = 4})},
        {"cosine_decay_restarts_options", CosineDecayRestarts({.initial_learning_rate = kRate,
                                                               .first_decay_steps = 5,
                                                               .t_mul = 1.5,
                                                               .m_mul = 13.0 / 16,
                                                               .alpha = 1.0 / 16})},
        {"cosine_decay_restarts_equal",
         CosineDecayRestarts(
             {.initial_learning_rate = kRate, .first_decay_steps = 6, .t_mul = 1.0, .m_mul = 0.5})},
    });
    return all;
  }();
  return table;
}

class ScheduleParity : public TestWithParam<std::string> {};

TEST_P(ScheduleParity, MatchesKerasStepByStep) {
  const LearningRate& schedule = schedule_table().at(GetParam());
  const std::vector<double> rates = record_of("schedules").at(GetParam() + "/rates").to_doubles();
  for (std::size_t step = 0; step < rates.size(); ++step) {
    EXPECT_NEAR(schedule.at(static_cast<std::int64_t>(step)), rates[step], 1e-9 * rates[step])
        << "step " << step;
  }
}

TUTTI_PARITY_CASES(ScheduleParity, schedule_table(), "schedules");

}  // namespace tutti::testing::loss_parity_test
