// Spans of time on threads, written as a Chrome trace: what ran when, and beside what.
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

/// From now on spans of the whole process are kept, a million at most; stop_trace(), or the end of
/// the process, writes them to `path` as Chrome trace events (JSON; open it in Perfetto or
/// chrome://tracing). A task of a job writes a file of its own: "t.worker-1.json" for "t.json".
/// Times are those of the machine's steady clock, so that the events of several files fit in one.
/// Throws kFailedPrecondition when a trace is being recorded already.
void start_trace(const std::string& path);
/// Does nothing unless a trace is being recorded. Throws kUnavailable when the file cannot be
/// written.
void stop_trace();
/// start_trace(TUTTI_TRACE) if that is set and no trace was recorded yet. Strategies call it when
/// they are made.
void start_trace_from_environment();

namespace internal {
/// Names the task of its job that this process is: a trace for "t.json" is then written to
/// "t.worker-1.json", and its events have `rank` as their process. A process that is several tasks
/// of one job has no name.
void set_trace_task(const std::string& task, int rank);

inline std::atomic<bool> trace_is_recording{false};
}  // namespace internal
/// Whether a trace is being recorded: one relaxed load.
inline bool trace_is_on() { return internal::trace_is_recording.load(std::memory_order_relaxed); }

/// A number that a viewer shows with a span.
struct TraceArgument {
  const char* key = nullptr;
  std::int64_t number = 0;
};
/// At most four.
using TraceArguments = std::initializer_list<TraceArgument>;

/// From construction to destruction, on one thread. Costs one relaxed load while no trace is
/// recorded. Names, categories and keys are literals; four arguments at most.
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

/// A moment. `label` is copied, while a trace is recorded, and shown as "label".
void trace_instant(const char* name, const char* category, std::string_view label = {},
                   TraceArguments arguments = {});

}  // namespace tutti
