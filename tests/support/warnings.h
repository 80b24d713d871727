// Captures log lines during an action or for an object's lifetime, for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/core/text.h"

namespace tutti::thrown {

/// Collects log lines of level `lowest` and above until it is destroyed. Thread-safe.
class LogLines {
 public:
  explicit LogLines(LogLevel lowest = LogLevel::kDebug)
      : previous_(set_log_sink([this, lowest](LogLevel level, std::string_view line) {
          MutexLock lock(mutex_);
          if (level >= lowest) lines_.emplace_back(line);
        })) {}
  ~LogLines() { set_log_sink(previous_); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  std::vector<std::string> list() const {
    MutexLock lock(mutex_);
    return lines_;
  }
  void clear() {
    MutexLock lock(mutex_);
    lines_.clear();
  }
  /// Returns all lines, joined into one string.
  std::string text() const { return join(list(), "\n"); }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ TUTTI_GUARDED_BY(mutex_);
  const LogSink previous_;
};

/// Returns the log lines, of level `lowest` and above, that `action` causes; `action` must not
/// throw.
template <class Action>
std::vector<std::string> lines_of(const Action& action, LogLevel lowest = LogLevel::kDebug) {
  const LogLines lines(lowest);
  action();
  return lines.list();
}

template <class Action>
std::vector<std::string> warnings_of(const Action& action) {
  return lines_of(action, LogLevel::kWarning);
}

}  // namespace tutti::thrown
