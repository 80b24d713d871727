// Implements comparisons of tensors and the counts of their results.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/comparison.h"

#include <algorithm>
#include <cmath>

#include "tutti/core/text.h"

namespace tutti::device_check {
namespace {

constexpr std::size_t kMaxListed = 40;

bool agree(double actual, double expected, double limit) {
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) == std::isnan(actual);
  if (std::isinf(expected) || std::isinf(actual)) return actual == expected;
  return std::abs(actual - expected) <= limit;
}

Json list_of(const std::vector<std::string>& lines) {
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(lines.size(), kMaxListed); ++i) list.push_back(lines[i]);
  return list;
}

}  // namespace

double tolerance_of(std::span<const DType> dtypes) {
  double tolerance = 0.0;
  for (const DType dtype : dtypes) {
    switch (dtype) {
      case DType::kFloat64:
        tolerance = std::max(tolerance, 1e-11);
        break;
      case DType::kFloat32:
        tolerance = std::max(tolerance, 2e-5);
        break;
      case DType::kFloat16:
        tolerance = std::max(tolerance, 2e-3);
        break;
      case DType::kBFloat16:
        tolerance = std::max(tolerance, 1.6e-2);
        break;
      default:
        break;
    }
  }
  return tolerance;
}

double largest_of(const Tensor& tensor) {
  double largest = 0.0;
  for (const double value : tensor.to_doubles()) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

std::string difference(const Tensor& actual, const Tensor& expected, double tolerance,
                       double terms) {
  if (actual.shape() != expected.shape() || actual.dtype() != expected.dtype()) {
    return concat("expected ", expected.dtype(), " ", expected.shape(), ", got ", actual.dtype(),
                  " ", actual.shape());
  }
  const std::vector<double> got = actual.to_doubles(), want = expected.to_doubles();
  const double scale = std::max(largest_of(expected), terms);
  const double exact = is_floating(expected.dtype()) ? tolerance : 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (agree(got[i], want[i], exact * scale)) continue;
    return concat("element ", i, " of ", expected.shape(), ": expected ", want[i], ", got ",
                  got[i]);
  }
  return "";
}

void Findings::add(const std::string& what, const std::string& difference) {
  ++num_compared;
  if (difference.empty()) {
    ++num_passed;
  } else {
    failures.push_back(what + ": " + difference);
  }
}

Json Findings::json() const {
  Json report = Json::object();
  report.set("check", check).set("passed", passed());
  report.set("compared", num_compared).set("agree", num_passed);
  report.set("failed", static_cast<std::int64_t>(failures.size()));
  report.set("failures", list_of(failures)).set("without_kernel", list_of(without_kernel));
  report.set("not_tried", list_of(not_tried)).set("detail", detail);
  return report;
}

}  // namespace tutti::device_check
