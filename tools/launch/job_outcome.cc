// How a job ended, as an exit code, as words and as JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/job_outcome.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::launch {
namespace {

constexpr int kWrongUsage = 2;  // the same arguments would be wrong again
constexpr Duration kFirstDelay = std::chrono::milliseconds(100);

std::optional<long> counter_in(const std::string& file) {
  std::string text;
  try {
    text = read_file(file);
  } catch (const Error&) {
    return std::nullopt;  // not every machine has every file
  }
  std::istringstream lines(text);
  for (std::string name; lines >> name;) {
    long value = 0;
    if (!(lines >> value)) break;
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

/// Files of the groups that /proc/self/cgroup names: "4:memory:/path", "0::/path".
std::vector<std::string> files_of_cgroups() {
  std::vector<std::string> files;
  std::istringstream lines(read_file("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == "memory") {
      files.push_back(concat("/sys/fs/cgroup/memory", path, "/memory.oom_control"));
      files.push_back("/sys/fs/cgroup/memory/memory.oom_control");  // inside a container
    } else if (controllers.empty()) {
      files.push_back(concat("/sys/fs/cgroup", path, "/memory.events"));
      files.push_back("/sys/fs/cgroup/memory.events");
    }
  }
  return files;
}

Json name_of(StopReason reason) {
  switch (reason) {
    case StopReason::kNone:
      return nullptr;
    case StopReason::kFinished:
      return "finished";
    case StopReason::kFailure:
      return "failure";
    case StopReason::kSignal:
      return "signal";
    case StopReason::kTaskAsked:
      return "task_asked";
    case StopReason::kTimeout:
      return "timeout";
  }
  return nullptr;
}

/// Of a job that was asked to stop: the first that did something else, else 75 when one wrote a
/// checkpoint.
int code_after_request(const std::vector<TaskOutcome>& tasks) {
  const TaskOutcome* first = nullptr;
  bool stopped = false;
  for (const TaskOutcome& task : tasks) {
    const int code = task.status.shell_code();
    stopped = stopped || code == kStoppedOnRequest;
    if (code == 0 || code == kStoppedOnRequest) continue;
    if (!first || task.order < first->order) first = &task;
  }
  if (first) return first->status.shell_code();
  return stopped ? kStoppedOnRequest : 0;
}

}  // namespace

RestartBudget::RestartBudget(RestartLimits limits, int num_tasks)
    : limits_(limits), tasks_(static_cast<std::size_t>(num_tasks)) {}

int RestartBudget::num_restarts(int rank) const {
  return tasks_[static_cast<std::size_t>(rank)].restarts;
}

RestartBudget::Decision RestartBudget::decide(int rank, const ExitStatus& status, Duration lived) {
  Task& task = tasks_[static_cast<std::size_t>(rank)];
  task.quick_failures = lived < limits_.quick ? task.quick_failures + 1 : 0;
  if (limits_.per_task == 0) return {};
  if (status == ExitStatus{kWrongUsage, 0}) return {{}, "wrong usage is wrong again"};
  if (task.restarts >= limits_.per_task) {
    return {{}, concat("it was started again ", task.restarts, " times already")};
  }
  if (restarts_ >= limits_.per_job) {
    return {{}, concat("the job has used its ", restarts_, " restarts")};
  }
  if (task.quick_failures >= limits_.quick_failures) {
    return {{}, concat("it failed at once ", task.quick_failures, " times in a row")};
  }
  ++task.restarts;
  ++restarts_;
  const int doublings = std::max(0, task.quick_failures - 2);
  return {task.quick_failures < 2 ? Duration::zero() : kFirstDelay * (1 << doublings), ""};
}

OomCounter::OomCounter() {
  try {
    for (const std::string& file : files_of_cgroups()) {
      if (!counter_in(file)) continue;
      file_ = file;
      of_cgroup_ = true;
      break;
    }
  } catch (const Error&) {
    // No control groups.
  }
  if (file_.empty()) file_ = "/proc/vmstat";
  last_ = read().value_or(0);
}

std::optional<long> OomCounter::read() const { return counter_in(file_); }

long OomCounter::take_new_kills() {
  const long now = read().value_or(last_);
  return now - std::exchange(last_, now);
}

std::string OomCounter::describe(long kills) const {
  return concat(of_cgroup_ ? "cgroup " : "", "oom_kill +", kills,
                of_cgroup_ ? "" : " on this machine");
}

std::string TaskOutcome::describe() const {
  std::array<char, 32> time{};
  std::snprintf(time.data(), time.size(), "%.1f", seconds);
  return concat(status.to_string(), oom.empty() ? "" : ", ", oom, " after ", time.data(), " s");
}

int JobOutcome::exit_code() const {
  if (first_failure) {
    return tasks[static_cast<std::size_t>(*first_failure)].status.shell_code();
  }
  switch (reason) {
    case StopReason::kTimeout:
      return kTimedOut;
    case StopReason::kSignal:
    case StopReason::kTaskAsked:
      return code_after_request(tasks);
    default:
      return 0;
  }
}

Json to_json(const JobOutcome& outcome) {
  Json tasks = Json::array();
  for (const TaskOutcome& task : outcome.tasks) {
    Json one = Json::object();
    one.set("task", task.task);
    one.set("pid", static_cast<std::int64_t>(task.pid));
    one.set("restarts", task.restarts);
    one.set("exit_code", task.status.signal == 0 ? Json(task.status.code) : Json());
    one.set("signal", task.status.signal == 0 ? Json() : Json(task.status.signal));
    one.set("seconds", task.seconds);
    one.set("end", task.describe());
    tasks.push_back(std::move(one));
  }
  Json json = Json::object();
  json.set("exit_code", outcome.exit_code());
  json.set("stopped_by", name_of(outcome.reason));
  json.set("first_failure",
           outcome.first_failure
               ? Json(outcome.tasks[static_cast<std::size_t>(*outcome.first_failure)].task)
               : Json());
  json.set("tasks", std::move(tasks));
  return json;
}

}  // namespace tutti::launch
