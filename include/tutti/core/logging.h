// Log lines: one replaceable sink for the whole library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tutti {

/// Severity of a line.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Receives each line, without a newline. Called by any thread, one call at a time.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

/// Replaces the sink (default: standard error, through spdlog) and returns the previous one. An
/// empty sink restores the default. Thread-safe.
LogSink set_log_sink(LogSink sink);

/// Sets the level below which lines are dropped (default kWarning, or
/// TUTTI_LOG_LEVEL=debug|info|warning|error in the environment).
void set_log_level(LogLevel level);

/// Writes a line. Thread-safe.
void log(LogLevel level, std::string_view line);
inline void log_info(std::string_view line) { log(LogLevel::kInfo, line); }
inline void log_warning(std::string_view line) { log(LogLevel::kWarning, line); }
inline void log_debug(std::string_view line) { log(LogLevel::kDebug, line); }

/// Logs a warning the first time that it is called with this text. Returns true if it logged.
bool log_warning_once(std::string_view line);

}  // namespace tutti
