// Numbers in JSON that read back to the same bits, those that JSON lacks included.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>

#include "tutti/core/json.h"

namespace tutti::internal {

/// JSON has no infinities and no NaN: these become texts.
inline Json exact_number(double value) {
  if (std::isfinite(value)) return Json(value);
  return Json(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

inline double number_of(const Json& json) {
  using Limits = std::numeric_limits<double>;
  if (!json.is_string()) return json.as_double();
  if (json.as_string() == "nan") return Limits::quiet_NaN();
  return json.as_string() == "inf" ? Limits::infinity() : -Limits::infinity();
}

}  // namespace tutti::internal
