// Recording of spans and writing of Chrome trace events.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "core/file.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

constexpr std::size_t kMostEvents = 1'000'000;

struct TraceEvent {
  const char* name = nullptr;
  const char* category = nullptr;
  std::array<TraceArgument, 4> arguments{};
  std::size_t num_arguments = 0;
  std::string label;
  TimePoint begin;
  std::optional<Duration> duration;  // nullopt for an instant event
  pid_t thread = 0;
};

std::string name_of_this_thread(pid_t thread) {
  if (thread == getpid()) return "main";
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

double microseconds(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

Json json_of(const TraceEvent& event, int process) {
  Json json = Json::object();
  json.set("name", event.name).set("cat", event.category).set("pid", process);
  json.set("tid", event.thread).set("ts", microseconds(event.begin.time_since_epoch()));
  if (event.duration) json.set("ph", "X").set("dur", microseconds(*event.duration));
  if (!event.duration) json.set("ph", "i").set("s", "t");
  Json arguments = Json::object();
  for (std::size_t i = 0; i < event.num_arguments; ++i) {
    arguments.set(event.arguments[i].key, event.arguments[i].number);
  }
  if (!event.label.empty()) arguments.set("label", event.label);
  return json.set("args", std::move(arguments));
}

/// Recorder of the process's only trace. Its destructor writes a trace that is still being
/// recorded.
class Recorder {
 public:
  // Logs a line, so that the log is created before this object and therefore destroyed after it.
  Recorder() { log_debug("trace: ready"); }
  ~Recorder() {
    try {
      stop();
    } catch (const Error& error) {
      log(LogLevel::kError, error.message());
    }
  }
  Recorder& operator=(Recorder&&) = delete;

  void start(const std::string& path) {
    MutexLock lock(mutex_);
    if (!path_.empty()) {
      fail(ErrorCode::kFailedPrecondition, "start_trace: a trace is being recorded to '", path_,
           "'; expected none; call stop_trace() first");
    }
    if (path.empty()) fail(ErrorCode::kInvalidArgument, "start_trace: expected a path, got none");
    path_ = path;
    started_once_ = true;
    internal::trace_is_recording.store(true);
  }

  void start_from_environment() {
    const char* path = std::getenv("TUTTI_TRACE");
    if (path == nullptr || *path == '\0') return;
    {
      MutexLock lock(mutex_);
      if (started_once_) return;
    }
    start(path);
  }

  void stop() {
    MutexLock lock(mutex_);
    internal::trace_is_recording.store(false);
    if (path_.empty()) return;
    const std::string path = path_of_task(std::exchange(path_, ""));
    const std::vector<TraceEvent> events = std::exchange(events_, {});
    const std::size_t num_dropped = std::exchange(num_dropped_, 0);
    if (num_dropped > 0) {
      log_warning(concat("trace: the last ", num_dropped, " of ", events.size() + num_dropped,
                         " events are missing from '", path, "'; trace fewer steps"));
    }
    write_file_atomically(path, text_of_all(events, num_dropped));
  }

  void set_task(const std::string& task, int rank) {
    MutexLock lock(mutex_);
    const bool is_another = is_named_ && task != task_;
    task_ = is_another ? "" : task;
    process_ = is_another ? 1 : rank;
    is_named_ = true;
  }

  void add(TraceEvent event) {
    event.thread = gettid();
    MutexLock lock(mutex_);
    if (path_.empty()) return;  // the trace was stopped in the meantime
    if (!threads_.contains(event.thread)) {
      threads_[event.thread] = name_of_this_thread(event.thread);
    }
    if (events_.size() < kMostEvents) {
      events_.push_back(std::move(event));
    } else {
      ++num_dropped_;
    }
  }

 private:
  /// Returns "t.worker-1.json" for "t.json".
  std::string path_of_task(const std::string& path) const TUTTI_REQUIRES(mutex_) {
    if (task_.empty()) return path;
    std::filesystem::path result(path);
    const std::string extension = result.extension();
    result.replace_extension();
    return concat(result.string(), ".", task_, extension);
  }

  std::string text_of_all(const std::vector<TraceEvent>& events, std::size_t num_dropped) const
      TUTTI_REQUIRES(mutex_) {
    std::string text =
        concat(R"({"displayTimeUnit":"ms","otherData":{"dropped_events":)", num_dropped,
               "},\n\"traceEvents\":[\n", R"({"name":"process_name","ph":"M","pid":)", process_,
               R"(,"args":{"name":)", Json(task_.empty() ? "tutti" : task_).dump(), "}}");
    for (const auto& [thread, name] : threads_) {
      text += concat(",\n", R"({"name":"thread_name","ph":"M","pid":)", process_, R"(,"tid":)",
                     thread, R"(,"args":{"name":)", Json(name).dump(), "}}");
    }
    for (const TraceEvent& event : events) text += concat(",\n", json_of(event, process_).dump());
    return text + "\n]}\n";
  }

  Mutex mutex_;
  std::string path_ TUTTI_GUARDED_BY(mutex_);  // empty: not recording
  bool started_once_ TUTTI_GUARDED_BY(mutex_) = false;
  std::string task_ TUTTI_GUARDED_BY(mutex_);  // "worker-1"; empty: no job, or several tasks
  int process_ TUTTI_GUARDED_BY(mutex_) = 1;
  bool is_named_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<TraceEvent> events_ TUTTI_GUARDED_BY(mutex_);
  std::size_t num_dropped_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::map<pid_t, std::string> threads_ TUTTI_GUARDED_BY(mutex_);
};

Recorder& recorder() {
  static Recorder recorder;
  return recorder;
}

}  // namespace

void start_trace(const std::string& path) { recorder().start(path); }
void stop_trace() {
  if (trace_is_on()) recorder().stop();
}
void internal::set_trace_task(const std::string& task, int rank) {
  recorder().set_task(task, rank);
}
void start_trace_from_environment() { recorder().start_from_environment(); }

void TraceSpan::begin(const char* name, const char* category, TraceArguments arguments) {
  category_ = category;
  num_arguments_ = std::min(arguments.size(), arguments_.size());
  std::copy_n(arguments.begin(), num_arguments_, arguments_.begin());
  begin_ = Clock::system().now();
  name_ = name;
}

void TraceSpan::end() noexcept {
  recorder().add({name_, category_, arguments_, num_arguments_, "", begin_,
                  Clock::system().now() - begin_, 0});
}

void trace_instant(const char* name, const char* category, std::string_view label,
                   TraceArguments arguments) {
  if (!trace_is_on()) return;
  TraceEvent event{name,         category, {}, 0, std::string(label), Clock::system().now(),
                   std::nullopt, 0};
  event.num_arguments = std::min(arguments.size(), event.arguments.size());
  std::copy_n(arguments.begin(), event.num_arguments, event.arguments.begin());
  recorder().add(std::move(event));
}

}  // namespace tutti
