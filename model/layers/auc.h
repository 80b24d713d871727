// The area under the ROC or the precision-recall curve.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tutti/model/layers/prediction_metric.h"

namespace tutti {

enum class AucCurve { kRoc, kPrecisionRecall };

struct AucOptions {
  /// The curve has this many points.
  int num_thresholds = 200;
  AucCurve curve = AucCurve::kRoc;
  /// Predictions go through a sigmoid first.
  bool from_logits = false;
  std::string name = "auc";
};

/// Keras's AUC: thresholds spread evenly over [0, 1], trapezoids under the ROC curve, the
/// interpolation of Davis and Goadrich under the other. Labels are 0 or 1, of the shape of the
/// predictions; predictions are in [0, 1].
class Auc : public PredictionMetric {
 public:
  explicit Auc(AucOptions options = {});
  Tensor result() const override;

 protected:
  void update(const Tensor& labels, const Tensor& predictions,
              const Tensor& sample_weight) override;

 private:
  AucOptions options_;
  std::vector<double> thresholds_;
  Variable positives_;  // [2, thresholds]: predictions above each threshold, by label 1 and 0
  Variable labels_;     // [2]: labels 1 and 0
};

}  // namespace tutti
