// How a job ended, as an exit code, as words and as JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/job_outcome.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "tutti/core/text.h"

namespace tutti::launch {
namespace {

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
