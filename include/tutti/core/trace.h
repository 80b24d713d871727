// Spans of time on threads, written as a Chrome trace.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tutti/core/clock.h"

namespace tutti {

/// Starts recording the spans of the whole process, at most a million. stop_trace(), or the end of
/// the process, writes them to `path` as Chrome trace events (JSON; open it in Perfetto or
/// chrome://tracing). Each task of a job writes its own file: "t.worker-1.json" for "t.json". Times
/// are those of the machine's steady clock, so that the events of several files can be merged.
/// Throws kFailedPrecondition if a trace is already being recorded, and kInvalidArgument for an
/// empty path.
void start_trace(const std::string& path);
/// Ends the recording and writes the file; does nothing if no trace is being recorded. Throws
/// kUnavailable if the file cannot be written.
void stop_trace();
/// Calls start_trace() with the path in TUTTI_TRACE, if that is set and no trace has been recorded
/// yet. Called by the constructors of strategies.
void start_trace_from_environment();

namespace internal {
/// Sets the name of this process's task in its job: traces are written to "t.worker-1.json" instead
/// of "t.json", and their events have `rank` as their process number. A process that runs several
/// tasks of a job has no task name.
void set_trace_task(const std::string& task, int rank);

inline std::atomic<bool> trace_is_recording{false};
}  // namespace internal
/// Returns true if a trace is being recorded. Costs one relaxed load.
inline bool trace_is_on() { return internal::trace_is_recording.load(std::memory_order_relaxed); }

/// Number that a trace viewer shows with a span.
struct TraceArgument {
  const char* key = nullptr;
  std::int64_t number = 0;
};
/// Up to four arguments; further ones are dropped.
using TraceArguments = std::initializer_list<TraceArgument>;

/// Span from construction to destruction, on one thread. Costs one relaxed load if no trace is
/// being recorded. Names, categories and keys must be literals.
class TraceSpan {
 public:
  TraceSpan(const char* name, const char* category, TraceArguments arguments = {}) {
    if (trace_is_on()) begin(name, category, arguments);
  }
  ~TraceSpan() {
    if (name_ != nullptr) end();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void begin(const char* name, const char* category, TraceArguments arguments);
  void end() noexcept;

  const char* name_ = nullptr;
  const char* category_;
  std::array<TraceArgument, 4> arguments_;
  std::size_t num_arguments_;
  TimePoint begin_;
};

/// Records an event without duration. `label` is copied and shown as "label".
void trace_instant(const char* name, const char* category, std::string_view label = {},
                   TraceArguments arguments = {});

}  // namespace tutti
