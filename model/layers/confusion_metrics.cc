// Metrics that count right and wrong decisions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "model/layers/labels_and_weights.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti {
namespace {

double divided(double a, double b) { return b == 0.0 ? 0.0 : a / b; }

/// Which of the `width` values of a row are among its k largest; ties go to the first.
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

/// Not a number when one of them is not.
double maximum_of(const double* row, std::size_t width) {
  double largest = row[0];
  for (const double value : std::span(row, width)) {
    if (!std::isnan(largest) && !(value <= largest)) largest = value;
  }
  return largest;
}

/// Keras's: a largest prediction that is no further from 0 says yes to no class.
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
    fail(ErrorCode::kInvalidArgument, name(), ": expected class_id below ", width, ", got ",
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
  if (options_.num_classes <= 0 || !(options_.beta > 0.0)) {
    fail(ErrorCode::kInvalidArgument, "F1Score: expected at least one class and a positive beta, ",
         "got ", options_.num_classes, " and ", options_.beta);
  }
  if (options_.num_classes == 1 && !options_.threshold) options_.threshold = 0.5;
  counts_ = add_sum("counts", {3, options_.num_classes});
  made_with(options_);
}

void F1Score::update(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight) {
  const std::size_t width = row_width(predictions);
  const auto classes = static_cast<std::size_t>(options_.num_classes);
  if (width != classes) {
    fail(ErrorCode::kInvalidArgument, name(), ": expected predictions [batch, ", classes, "], got ",
         predictions.shape(), "; try .num_classes = ", width);
  }
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
    if (label < 0 || label >= num_classes_ || prediction < 0 || prediction >= num_classes_) {
      fail(ErrorCode::kInvalidArgument, name(), ": expected class numbers below ", num_classes_,
           ", got label ", label, " and prediction ", prediction);
    }
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
