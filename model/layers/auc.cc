// The area under the ROC or the precision-recall curve.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/auc.h"

#include <algorithm>
#include <cmath>

#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
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
}

void Auc::update(const Tensor& labels, const Tensor& predictions, const Tensor& sample_weight) {
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
