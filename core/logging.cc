// The log: level filter, replaceable sink, and a default sink that uses spdlog.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "core/file.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<std::size_t>(level)];
}

LogLevel level_from_environment() {
  const char* text = std::getenv("TUTTI_LOG_LEVEL");
  const std::string_view name = text == nullptr ? "warning" : text;
  if (name == "info") return LogLevel::kInfo;
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  spdlog::warn(
      "TUTTI_LOG_LEVEL: expected debug, info, warning or error, got '{}'; using "
      "warning",
      name);
  return LogLevel::kWarning;
}

/// State of the log, created on first use.
struct LogState {
  LogState() : level(level_from_environment()) {
    // The log is coloured on terminals, unless the user sets NO_COLOR (no-color.org).
    const bool is_plain = std::getenv("NO_COLOR") != nullptr;
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
        is_plain ? spdlog::color_mode::never : spdlog::color_mode::automatic);
    sink->set_color(spdlog::level::info, sink->reset);
    standard_error = std::make_shared<spdlog::logger>("tutti", std::move(sink));
    standard_error->set_pattern("%H:%M:%S.%e %^%l:%$ %v");
    standard_error->set_level(spdlog::level::debug);
    standard_error->flush_on(spdlog::level::debug);
  }

  std::atomic<LogLevel> level;
  std::shared_ptr<spdlog::logger> standard_error;  // shared_ptr, as spdlog expects
  Mutex mutex;
  LogSink sink TUTTI_GUARDED_BY(mutex);
  std::set<std::string, std::less<>> warned TUTTI_GUARDED_BY(mutex);
};

LogState& log_state() {
  static LogState state;
  return state;
}

/// True while this thread runs the sink. A sink that logs would wait for itself, so its messages
/// are written to standard error.
thread_local bool inside_sink = false;

struct InsideSink {
  InsideSink() { inside_sink = true; }
  ~InsideSink() { inside_sink = false; }
};

}  // namespace

LogSink set_log_sink(LogSink sink) {
  LogState& state = log_state();
  MutexLock lock(state.mutex);
  return std::exchange(state.sink, std::move(sink));
}

void set_log_level(LogLevel level) { log_state().level.store(level); }

void log(LogLevel level, std::string_view line) {
  LogState& state = log_state();
  if (level < state.level.load(std::memory_order_relaxed)) return;
  if (!inside_sink) {
    MutexLock lock(state.mutex);
    if (state.sink) {
      InsideSink inside;
      state.sink(level, line);
      return;
    }
  }
  const FileSizeLimitScope error_instead_of_signal;
  state.standard_error->log(to_spdlog(level), "{}", line);
}

bool log_warning_once(std::string_view line) {
  LogState& state = log_state();
  if (!inside_sink) {
    MutexLock lock(state.mutex);
    if (!state.warned.emplace(line).second) return false;
  }
  log_warning(line);
  return true;
}

}  // namespace tutti
