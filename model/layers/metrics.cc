// Means, errors and the area under a curve.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/metrics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/layers/labels_and_weights.h"
#include "tutti/model/layers/losses.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

// Accuracies and errors as metrics.

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

/// Whether fewer than k predictions are larger than that of the label; ties count as in, a label
/// that is no class or whose prediction is not a number as out (tf's in_top_k).
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
  // As in Keras examples count alike, however many elements those of a batch have.
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

/// The ends are a little outside, so that 0 and 1 are inside (Keras's epsilon).
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

/// Between two points true positives are linear in the number of positives, so precision is not.
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
  // So far by the largest threshold below each prediction; it is above the smaller ones, too.
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

}  // namespace tutti
