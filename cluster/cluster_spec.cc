// Jobs, tasks and addresses: making, asking, writing as JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/cluster_spec.h"

#include "core/list_text.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using internal::brief_list;

void check_index(int index) {
  if (index >= 0) return;
  fail(ErrorCode::kInvalidArgument, "JobTasks: expected indices of at least 0, got ", index);
}

std::string shown_address(const std::string& address) { return address.empty() ? "?" : address; }

}  // namespace

std::string Task::to_string() const { return concat(type, " ", index); }

std::string Task::device_prefix() const { return concat("/job:", type, "/replica:0/task:", index); }

std::ostream& operator<<(std::ostream& out, const Task& task) { return out << task.to_string(); }

JobTasks::JobTasks(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    addresses_.emplace_hint(addresses_.end(), static_cast<int>(addresses_.size()), address);
  }
}

JobTasks::JobTasks(std::initializer_list<std::pair<int, std::string>> addresses) {
  for (const auto& [index, address] : addresses) {
    check_index(index);
    if (!addresses_.emplace(index, address).second) {
      fail(ErrorCode::kInvalidArgument, "JobTasks: index ", index, " is given twice, as '",
           addresses_[index], "' and '", address, "'");
    }
  }
}

JobTasks::JobTasks(std::map<int, std::string> addresses) : addresses_(std::move(addresses)) {
  if (!addresses_.empty()) check_index(addresses_.begin()->first);
}

bool JobTasks::is_dense() const {
  return addresses_.empty() ||
         addresses_.rbegin()->first == static_cast<int>(addresses_.size()) - 1;
}

ClusterSpec::ClusterSpec(std::initializer_list<std::pair<std::string, JobTasks>> jobs) {
  for (const auto& [job, tasks] : jobs) {
    if (jobs_.emplace(job, tasks).second) continue;
    fail(ErrorCode::kInvalidArgument, "ClusterSpec: the job '", job, "' is given twice");
  }
  if (jobs_.contains("")) fail(ErrorCode::kInvalidArgument, "ClusterSpec: a job has no name");
}

ClusterSpec::ClusterSpec(Jobs jobs) : jobs_(std::move(jobs)) {
  if (jobs_.contains("")) fail(ErrorCode::kInvalidArgument, "ClusterSpec: a job has no name");
}

const JobTasks& ClusterSpec::tasks_of(std::string_view job) const {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) return found->second;
  fail(ErrorCode::kNotFound, "ClusterSpec: there is no job '", job, "'; ",
       empty() ? "the cluster is empty" : concat("jobs are ", brief_list(jobs())));
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

int ClusterSpec::num_tasks(std::string_view job) const {
  return static_cast<int>(tasks_of(job).addresses().size());
}

std::vector<int> ClusterSpec::task_indices(std::string_view job) const {
  std::vector<int> indices;
  for (const auto& [index, address] : tasks_of(job).addresses()) indices.push_back(index);
  return indices;
}

const std::string& ClusterSpec::task_address(std::string_view job, int index) const {
  const auto& addresses = tasks_of(job).addresses();
  const auto found = addresses.find(index);
  if (found != addresses.end()) return found->second;
  fail(ErrorCode::kNotFound, "ClusterSpec: the job '", job, "' has no task ", index, "; ",
       addresses.empty() ? "it has no tasks"
                         : concat("its tasks are ", brief_list(task_indices(job))));
}

std::vector<std::optional<std::string>> ClusterSpec::job_tasks(std::string_view job) const {
  const auto& addresses = tasks_of(job).addresses();
  std::vector<std::optional<std::string>> list(
      addresses.empty() ? 0 : static_cast<std::size_t>(addresses.rbegin()->first) + 1);
  for (const auto& [index, address] : addresses) list[static_cast<std::size_t>(index)] = address;
  return list;
}

int ClusterSpec::count(std::string_view job) const { return has_job(job) ? num_tasks(job) : 0; }

int ClusterSpec::total_tasks() const {
  std::size_t total = 0;
  for (const auto& [job, tasks] : jobs_) total += tasks.addresses().size();
  return static_cast<int>(total);
}

std::vector<Task> ClusterSpec::tasks() const {
  std::vector<Task> list;
  for (const auto& [job, tasks] : jobs_) {
    for (const auto& [index, address] : tasks.addresses()) list.push_back({job, index});
  }
  return list;
}

bool ClusterSpec::has_task(const Task& task) const {
  const auto found = jobs_.find(task.type);
  return found != jobs_.end() && found->second.addresses().contains(task.index);
}

std::string ClusterSpec::to_string() const {
  std::vector<std::string> parts;
  for (const auto& [job, tasks] : jobs_) {
    std::vector<std::string> addresses;
    for (const auto& [index, address] : tasks.addresses()) {
      const std::string at = tasks.is_dense() ? "" : concat(index, " at ");
      addresses.push_back(at + shown_address(address));
    }
    const char* const plural = addresses.size() == 1 || job.ends_with('s') ? "" : "s";
    parts.push_back(concat(addresses.size(), " ", job, plural, " (", brief_list(addresses), ")"));
  }
  return parts.empty() ? "no cluster" : join(parts);
}

std::ostream& operator<<(std::ostream& out, const ClusterSpec& cluster) {
  return out << cluster.to_string();
}

}  // namespace tutti
