// What an action warns of, for tests. Not in namespace testing, as thrown.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/logging.h"

namespace tutti::thrown {

/// The log's lines of at least this level while `action` runs, which must not throw.
template <class Action>
std::vector<std::string> lines_of(const Action& action, LogLevel least = LogLevel::kDebug) {
  std::vector<std::string> lines;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view line) {
    if (level >= least) lines.emplace_back(line);
  });
  action();
  set_log_sink(before);
  return lines;
}

template <class Action>
std::vector<std::string> warnings_of(const Action& action) {
  return lines_of(action, LogLevel::kWarning);
}

}  // namespace tutti::thrown
