// Accuracies, errors, areas under curves, and metrics based on confusion counts.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "core/names.h"
#include "model/layers/labels_and_weights.h"
#include "tutti/model/layers/losses.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Accuracy and error metrics.

namespace {

Tensor sparse_hits_of(const Tensor& labels, const Tensor& predictions) {
  const Tensor classes =
      internal::class_numbers(labels, predictions, "sparse_categorical_accuracy");
  return internal::mean_per_example(cast(equal(argmax(predictions, -1), classes), DType::kFloat32));
}

Tensor one_hot_hits_of(const Tensor& labels, const Tensor& predictions) {
  const Tensor fitted = internal::same_shape_labels(labels, predictions, "categorical_accuracy");
  return internal::mean_per_example(
      cast(equal(argmax(predictions, -1), argmax(fitted, -1)), DType::kFloat32));
}

MeanPredictionMetric::Function binary_hits(double threshold) {
  return [threshold](const Tensor& labels, const Tensor& predictions) {
    const Tensor fitted = internal::same_shape_labels(labels, predictions, "binary_accuracy");
    internal::warn_of_binary_labels(labels, "binary_accuracy");
    const Tensor decided = cast(greater(predictions, threshold), predictions.dtype());
    return internal::mean_per_example(cast(equal(decided, fitted), DType::kFloat32));
  };
}

Tensor hits_by_shape_of(const Tensor& labels, const Tensor& predictions) {
  if (predictions.rank() < 2 || predictions.shape()[-1] == 1)
    return binary_hits(0.5)(labels, predictions);
  const bool one_hot = labels.shape() == predictions.shape();
  return one_hot ? one_hot_hits_of(labels, predictions) : sparse_hits_of(labels, predictions);
}

/// Returns 1 for rows in which fewer than k predictions are larger than that of the label's class,
/// else 0. Labels out of range and non-finite predictions give 0 (as in tf.math.in_top_k).
Tensor top_k_hits(const Tensor& classes, const Tensor& predictions, int k) {
  const std::int64_t width = predictions.shape()[-1];
  const std::vector<double> values = predictions.to_doubles();
  const std::vector<double> labels = classes.to_doubles();
  std::vector<float> hits(labels.size(), 0.0f);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const auto label = static_cast<std::int64_t>(labels[row]);
    if (label < 0 || label >= width) continue;
    const double* first = &values[row * static_cast<std::size_t>(width)];
    const double own = first[label];
    const auto larger = std::count_if(first, first + width, [&](double v) { return v > own; });
    hits[row] = std::isfinite(own) && larger < k ? 1.0f : 0.0f;
  }
  return internal::mean_per_example(Tensor::from(classes.shape(), hits, predictions.device()));
}

void require_positive_k(int k) {
  if (k <= 0)
    fail(ErrorCode::kInvalidArgument, "TopKCategoricalAccuracy: expected a positive k, got ", k);
}

}  // namespace

MeanPredictionMetric::Function internal::hits_by_shape() { return &hits_by_shape_of; }

SparseCategoricalAccuracy::SparseCategoricalAccuracy(std::string name)
    : MeanPredictionMetric(std::move(name), &sparse_hits_of, MetricDirection::kUp) {
  made_with(this->name());
}
CategoricalAccuracy::CategoricalAccuracy(std::string name)
    : MeanPredictionMetric(std::move(name), &one_hot_hits_of, MetricDirection::kUp) {
  made_with(this->name());
}
BinaryAccuracy::BinaryAccuracy(std::string name, double threshold)
    : MeanPredictionMetric(std::move(name), binary_hits(threshold), MetricDirection::kUp) {
  made_with(this->name(), threshold);
}
MeanSquaredErrorMetric::MeanSquaredErrorMetric(std::string name)
    : MeanPredictionMetric(std::move(name), &losses::mean_squared_error, MetricDirection::kDown) {
  made_with(this->name());
}
MeanAbsoluteErrorMetric::MeanAbsoluteErrorMetric(std::string name)
    : MeanPredictionMetric(std::move(name), &losses::mean_absolute_error, MetricDirection::kDown) {
  made_with(this->name());
}
CosineSimilarityMetric::CosineSimilarityMetric(std::string name)
    : MeanPredictionMetric(
          std::move(name),
          [](const Tensor& labels, const Tensor& predictions) {
            return negate(losses::cosine_similarity(labels, predictions));
          },
          MetricDirection::kUp) {
  made_with(this->name());
}

RootMeanSquaredError::RootMeanSquaredError(std::string name)
    : PredictionMetric(name, MetricDirection::kDown), squares_(name) {
  adopt(squares_);
  made_with(this->name());
}

void RootMeanSquaredError::update(const Tensor& labels, const Tensor& predictions,
                                  const Tensor& sample_weight) {
  const Tensor target = internal::same_shape_labels(labels, predictions, name());
  const Tensor squares = square(cast(predictions - target, DType::kFloat64));
  // As in Keras, each example has the same weight, regardless of its number of elements.
  const double elements =
      std::max(1.0, static_cast<double>(squares.shape().without_axis(0).num_elements()));
  const Tensor one = Tensor::scalar(1.0, DType::kFloat64, squares.device());
  const Tensor weight = sample_weight.defined() ? cast(sample_weight, DType::kFloat64) : one;
  squares_.update_state(squares, weight / elements);
}

Tensor RootMeanSquaredError::result() const { return sqrt(squares_.result()); }

TopKCategoricalAccuracy::TopKCategoricalAccuracy(int k, std::string name)
    : MeanPredictionMetric(
          std::move(name),
          [k](const Tensor& labels, const Tensor& predictions) {
            const Tensor fitted =
                internal::same_shape_labels(labels, predictions, "top_k_categorical_accuracy");
            return top_k_hits(argmax(fitted, -1), predictions, k);
          },
          MetricDirection::kUp) {
  require_positive_k(k);
  made_with(k, this->name());
}

SparseTopKCategoricalAccuracy::SparseTopKCategoricalAccuracy(int k, std::string name)
    : MeanPredictionMetric(
          std::move(name),
          [k](const Tensor& labels, const Tensor& predictions) {
            return top_k_hits(
                internal::class_numbers(labels, predictions, "sparse_top_k_categorical_accuracy"),
                predictions, k);
          },
          MetricDirection::kUp) {
  require_positive_k(k);
  made_with(k, this->name());
}

// The area under the ROC or the precision-recall curve.

namespace {

/// Distance by which the first threshold is below 0 and the last is above 1, so that 0 and 1 are
/// between thresholds (Keras's epsilon).
constexpr double kBeyond = 1e-7;

double ratio_of(double a, double b) { return b == 0.0 ? 0.0 : a / b; }

double area_under_roc(const std::vector<double>& counts, std::size_t n, double yes, double no) {
  auto recall = [&](std::size_t i) { return ratio_of(counts[i], yes); };
  auto fallout = [&](std::size_t i) { return ratio_of(counts[n + i], no); };
  double area = 0.0;
  for (std::size_t i = 0; i + 1 < n; ++i)
    area += (fallout(i) - fallout(i + 1)) * (recall(i) + recall(i + 1)) / 2.0;
  return area;
}

/// Integrates precision over recall. Between two points, true positives are linear in the number of
/// predicted positives, but precision is not.
double area_under_precision_recall(const std::vector<double>& counts, std::size_t n, double yes) {
  double area = 0.0;
  for (std::size_t i = 0; i + 1 < n; ++i) {
    const double hits = counts[i], next_hits = counts[i + 1];
    const double all = hits + counts[n + i], next_all = next_hits + counts[n + i + 1];
    const double slope = ratio_of(hits - next_hits, std::max(all - next_all, 0.0));
    const double intercept = next_hits - slope * next_all;
    const double ratio = all > 0.0 && next_all > 0.0 ? all / next_all : 1.0;
    area += ratio_of(slope * (hits - next_hits + intercept * std::log(ratio)), yes);
  }
  return area;
}

}  // namespace

Auc::Auc(AucOptions options)
    : PredictionMetric(options.name, MetricDirection::kUp), options_(std::move(options)) {
  const int count = options_.num_thresholds;
  if (count < 2)
    fail(ErrorCode::kInvalidArgument, "Auc: expected at least 2 thresholds, got ", count);
  thresholds_.push_back(-kBeyond);
  for (int i = 1; i + 1 < count; ++i) thresholds_.push_back(i / static_cast<double>(count - 1));
  thresholds_.push_back(1.0 + kBeyond);
  positives_ = add_sum("positives", {2, count});
  labels_ = add_sum("labels", {2});
  made_with(options_);
}

void Auc::update(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight) {
  internal::warn_of_binary_labels(labels, name());
  const Tensor scores = options_.from_logits ? sigmoid(predictions) : predictions;
  const internal::PlainPairs pairs = internal::plain_pairs(labels, scores, sample_weight, name());
  const std::size_t n = thresholds_.size();
  std::vector<double> counts(2 * n, 0.0), seen(2, 0.0);
  for (std::size_t i = 0; i < pairs.labels.size(); ++i) {
    const std::size_t row = pairs.labels[i] != 0.0 ? 0 : 1;
    const auto above =
        std::lower_bound(thresholds_.begin(), thresholds_.end(), pairs.predictions[i]) -
        thresholds_.begin();
    seen[row] += pairs.weights[i];
    if (above > 0) counts[row * n + static_cast<std::size_t>(above) - 1] += pairs.weights[i];
  }
  // Make counts cumulative, because a prediction above a threshold is above all smaller thresholds.
  for (const std::size_t first : {std::size_t{0}, n})
    for (std::size_t i = n - 1; i > 0; --i) counts[first + i - 1] += counts[first + i];
  positives_.assign_add(
      Tensor::from({2, static_cast<std::int64_t>(n)}, counts, predictions.device()));
  labels_.assign_add(Tensor::from({2}, seen, predictions.device()));
}

Tensor Auc::result() const {
  const std::vector<double> counts = total(positives_).to_doubles();
  const std::vector<double> seen = total(labels_).to_doubles();
  const std::size_t n = thresholds_.size();
  const double area = options_.curve == AucCurve::kRoc
                          ? area_under_roc(counts, n, seen[0], seen[1])
                          : area_under_precision_recall(counts, n, seen[0]);
  return Tensor::scalar(area, DType::kFloat64);
}

namespace {

// Metrics based on true and false positives and negatives.

double divided(double a, double b) { return b == 0.0 ? 0.0 : a / b; }

/// Returns, for each of the `width` values of a row, whether it is among the k largest; the first
/// of equal values wins.
std::vector<bool> largest(const double* row, std::size_t width, int k) {
  std::vector<std::size_t> order(width);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
  std::vector<bool> chosen(width, false);
  for (std::size_t i = 0; i < std::min(width, static_cast<std::size_t>(k)); ++i)
    chosen[order[i]] = true;
  return chosen;
}

/// Returns the maximum of a row; NaN if any value is NaN.
double maximum_of(const double* row, std::size_t width) {
  double largest = row[0];
  for (const double value : std::span(row, width)) {
    if (!std::isnan(largest) && !(value <= largest)) largest = value;
  }
  return largest;
}

/// In Keras, a row's largest prediction is not positive if its absolute value is at most this.
constexpr double kNoPrediction = 1e-9;

std::size_t row_width(const Tensor& predictions) {
  return predictions.rank() < 2
             ? 1
             : static_cast<std::size_t>(std::max<std::int64_t>(1, predictions.shape()[-1]));
}

Tensor as_sum(const Shape& shape, const std::vector<double>& values, const Tensor& like) {
  return Tensor::from(shape, values, like.device());
}

}  // namespace

ConfusionMetric::ConfusionMetric(ConfusionOptions options, const char* default_name, Score score,
                                 MetricDirection direction)
    : PredictionMetric(options.name.empty() ? default_name : options.name, direction),
      options_(std::move(options)),
      score_(score),
      counts_(add_sum("counts", {4})) {
  if (options_.top_k && *options_.top_k <= 0) {
    fail(ErrorCode::kInvalidArgument, name(), ": expected a positive top_k, got ", *options_.top_k);
  }
  made_with(options_);
}

void ConfusionMetric::update(const Tensor& labels, const Tensor& predictions,
                             const Tensor& sample_weight) {
  internal::warn_of_binary_labels(labels, name());
  const internal::PlainPairs pairs =
      internal::plain_pairs(labels, predictions, sample_weight, name());
  const std::size_t width = row_width(predictions);
  if (options_.class_id &&
      (*options_.class_id < 0 || *options_.class_id >= static_cast<std::int64_t>(width))) {
    fail(ErrorCode::kInvalidArgument, name(), ": expected class_id in [0, ", width, "), got ",
         *options_.class_id);
  }
  std::vector<double> counts(4, 0.0);
  std::vector<bool> chosen;
  for (std::size_t i = 0; i < pairs.labels.size(); ++i) {
    const std::size_t column = i % width;
    if (options_.top_k && column == 0)
      chosen = largest(&pairs.predictions[i], width, *options_.top_k);
    if (options_.class_id && column != static_cast<std::size_t>(*options_.class_id)) continue;
    const bool yes = options_.top_k ? chosen[column] : pairs.predictions[i] > options_.threshold;
    const bool label = pairs.labels[i] != 0.0;
    counts[yes ? (label ? 0 : 1) : (label ? 3 : 2)] += pairs.weights[i];
  }
  counts_.assign_add(as_sum({4}, counts, predictions));
}

Tensor ConfusionMetric::result() const {
  const std::vector<double> sums = total(counts_).to_doubles();
  return Tensor::scalar(score_({sums[0], sums[1], sums[2], sums[3]}), DType::kFloat64);
}

Precision::Precision(ConfusionOptions options)
    : ConfusionMetric(
          std::move(options), "precision",
          [](const Counts& c) {
            return divided(c.true_positives, c.true_positives + c.false_positives);
          },
          MetricDirection::kUp) {}
Recall::Recall(ConfusionOptions options)
    : ConfusionMetric(
          std::move(options), "recall",
          [](const Counts& c) {
            return divided(c.true_positives, c.true_positives + c.false_negatives);
          },
          MetricDirection::kUp) {}
TruePositives::TruePositives(ConfusionOptions options)
    : ConfusionMetric(std::move(options), "true_positives",
                      [](const Counts& c) { return c.true_positives; }) {}
TrueNegatives::TrueNegatives(ConfusionOptions options)
    : ConfusionMetric(std::move(options), "true_negatives",
                      [](const Counts& c) { return c.true_negatives; }) {}
FalsePositives::FalsePositives(ConfusionOptions options)
    : ConfusionMetric(std::move(options), "false_positives",
                      [](const Counts& c) { return c.false_positives; }) {}
FalseNegatives::FalseNegatives(ConfusionOptions options)
    : ConfusionMetric(std::move(options), "false_negatives",
                      [](const Counts& c) { return c.false_negatives; }) {}

F1Score::F1Score(F1ScoreOptions options)
    : PredictionMetric(options.name, MetricDirection::kUp), options_(std::move(options)) {
  internal::require(options_.num_classes > 0 && options_.beta > 0.0,
                    "F1Score: expected at least one class and a positive beta, ", "got ",
                    options_.num_classes, " and ", options_.beta);
  if (options_.num_classes == 1 && !options_.threshold) options_.threshold = 0.5;
  counts_ = add_sum("counts", {3, options_.num_classes});
  made_with(options_);
}

void F1Score::update(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight) {
  const std::size_t width = row_width(predictions);
  const auto classes = static_cast<std::size_t>(options_.num_classes);
  internal::require(width == classes, name(), ": expected predictions [batch, ", classes, "], got ",
                    predictions.shape(), "; use .num_classes = ", width);
  internal::warn_of_binary_labels(labels, name());
  const internal::PlainPairs pairs =
      internal::plain_pairs(labels, predictions, sample_weight, name());
  std::vector<double> counts(3 * classes, 0.0);
  double threshold = options_.threshold.value_or(0.0);
  for (std::size_t i = 0; i < pairs.labels.size(); ++i) {
    const std::size_t column = i % width;
    const double value = pairs.predictions[i];
    if (!options_.threshold && column == 0) threshold = maximum_of(&pairs.predictions[i], width);
    const bool yes = options_.threshold ? value > threshold
                                        : value >= threshold && std::abs(value) > kNoPrediction;
    const bool label = pairs.labels[i] != 0.0;
    if (yes || label) counts[(yes ? (label ? 0 : 1) : 2) * classes + column] += pairs.weights[i];
  }
  counts_.assign_add(as_sum({3, options_.num_classes}, counts, predictions));
}

std::vector<double> F1Score::per_class() const {
  const std::vector<double> sums = total(counts_).to_doubles();
  const std::size_t classes = sums.size() / 3;
  const double beta_squared = options_.beta * options_.beta;
  std::vector<double> scores;
  for (std::size_t c = 0; c < classes; ++c) {
    const double hits = (1 + beta_squared) * sums[c];
    scores.push_back(
        divided(hits, hits + beta_squared * sums[2 * classes + c] + sums[classes + c]));
  }
  return scores;
}

Tensor F1Score::result() const {
  const std::vector<double> sums = total(counts_).to_doubles();
  const std::vector<double> scores = per_class();
  const std::size_t classes = scores.size();
  const double beta_squared = options_.beta * options_.beta;
  double value = 0.0, weights = 0.0, hits = 0.0, misses = 0.0;
  for (std::size_t c = 0; c < classes; ++c) {
    const double positives = sums[c] + sums[2 * classes + c];
    const double weight = options_.average == ScoreAverage::kWeighted ? positives : 1.0;
    value += scores[c] * weight;
    weights += weight;
    hits += (1 + beta_squared) * sums[c];
    misses += beta_squared * sums[2 * classes + c] + sums[classes + c];
  }
  if (options_.average == ScoreAverage::kMicro)
    value = divided(hits, weights = hits + misses);
  else
    value = divided(value, weights);
  return Tensor::scalar(value, DType::kFloat64);
}

MeanIoU::MeanIoU(std::int64_t num_classes, MeanIoUOptions options)
    : PredictionMetric(options.name, MetricDirection::kUp),
      num_classes_(num_classes),
      options_(std::move(options)) {
  if (num_classes <= 0)
    fail(ErrorCode::kInvalidArgument, "MeanIoU: expected a positive number of classes, got ",
         num_classes);
  confusion_ = add_sum("total_confusion_matrix", {num_classes, num_classes});
  made_with(num_classes, options_);
}

void MeanIoU::update(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight) {
  const bool scores = predictions.rank() == labels.rank() + 1;
  const Tensor classes =
      scores ? argmax(predictions, -1) : internal::whole_numbers(predictions, name());
  const internal::PlainPairs pairs = internal::plain_pairs(internal::whole_numbers(labels, name()),
                                                           classes, sample_weight, name());
  std::vector<double> counts(static_cast<std::size_t>(num_classes_ * num_classes_), 0.0);
  for (std::size_t i = 0; i < pairs.labels.size(); ++i) {
    const auto label = static_cast<std::int64_t>(pairs.labels[i]);
    const auto prediction = static_cast<std::int64_t>(pairs.predictions[i]);
    if (options_.ignore_class == label) continue;
    internal::require(
        label >= 0 && label < num_classes_ && prediction >= 0 && prediction < num_classes_, name(),
        ": expected class numbers in [0, ", num_classes_, "), got label ", label,
        " and prediction ", prediction);
    counts[static_cast<std::size_t>(label * num_classes_ + prediction)] += pairs.weights[i];
  }
  confusion_.assign_add(as_sum({num_classes_, num_classes_}, counts, predictions));
}

Tensor MeanIoU::result() const {
  const std::vector<double> counts = total(confusion_).to_doubles();
  const auto classes = static_cast<std::size_t>(num_classes_);
  double sum = 0.0, seen = 0.0;
  for (std::size_t c = 0; c < classes; ++c) {
    double in_labels = 0.0, in_predictions = 0.0;
    for (std::size_t other = 0; other < classes; ++other) {
      in_labels += counts[c * classes + other];
      in_predictions += counts[other * classes + c];
    }
    const double hits = counts[c * classes + c];
    const double either = in_labels + in_predictions - hits;
    if (either == 0.0) continue;
    sum += hits / either;
    seen += 1.0;
  }
  return Tensor::scalar(divided(sum, seen), DType::kFloat64);
}

}  // namespace tutti
