// Restarts per task and per job; slower and slower for what fails at once.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/restart_budget.h"

#include <algorithm>

#include "tutti/core/text.h"

namespace tutti::launch {
namespace {

constexpr int kWrongUsage = 2;  // the same arguments would be wrong again
constexpr Duration kFirstDelay = std::chrono::milliseconds(100);

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

}  // namespace tutti::launch
