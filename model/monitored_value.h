// The value that a callback watches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "tutti/core/logging.h"
#include "tutti/core/text.h"
#include "tutti/model/logs.h"

namespace tutti::internal {

/// The value named `monitor`; without it nothing, and a warning (once) that lists the names.
inline std::optional<double> monitored_value(const char* who, const std::string& monitor,
                                             const Logs& logs) {
  if (logs.has(monitor)) return logs.at(monitor);
  std::vector<std::string> names;
  for (const auto& [name, value] : logs) names.push_back(name);
  log_warning_once(concat(who, ": there is no value '", monitor, "' to watch; there are ",
                          join(names), "; is validation_data missing?"));
  return std::nullopt;
}

}  // namespace tutti::internal
