// Implements ClusterSpec: construction, access, and conversion from and to JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/cluster_spec.h"

#include "cluster/json_place.h"
#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using internal::brief_list;

void check_index(int index) {
  if (index >= 0) return;
  fail(ErrorCode::kInvalidArgument, "JobTasks: expected indices >= 0, got ", index);
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
  if (jobs_.contains(""))
    fail(ErrorCode::kInvalidArgument,
         "ClusterSpec: expected a name for each job, got a job with no name");
}

ClusterSpec::ClusterSpec(Jobs jobs) : jobs_(std::move(jobs)) {
  if (jobs_.contains(""))
    fail(ErrorCode::kInvalidArgument,
         "ClusterSpec: expected a name for each job, got a job with no name");
}

const JobTasks& ClusterSpec::tasks_of(std::string_view job) const {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) return found->second;
  fail(ErrorCode::kNotFound, "ClusterSpec: there is no job '", job, "'; ",
       empty() ? "the cluster is empty" : concat("the jobs are ", brief_list(jobs())));
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

namespace {

// Parsing of JSON; each error contains the path of the value.

using internal::JsonPlace;

// tf.train.ClusterSpec has no limit. A larger index is a mistake: job_tasks() would return a list
// of that size.
constexpr int kLargestIndexOfJob = 999'999;

bool is_job_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && internal::has_only_alphanumerics_and("_-.", name);
}

void check_job_name(std::string_view name, const std::string& path) {
  if (is_job_name(name)) return;
  internal::fail_place(path, "a job's name of 1 to 64 letters, digits, '_', '-' or '.'",
                       internal::shown(Json(name)));
}

JobTasks read_list(const JsonPlace& place) {
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < place.value().as_array().size(); ++i) {
    addresses.push_back(place.element(i).text("an address host:port as text"));
  }
  return addresses;
}

JobTasks read_sparse(const JsonPlace& place) {
  std::map<int, std::string> addresses;
  for (const Json::Member& member : place.value().as_object()) {
    const JsonPlace at = place.member(member);
    const std::optional<int> index = internal::parse_index(member.first, kLargestIndexOfJob);
    if (!index) {
      internal::fail_place(at.path(), concat("a task's index from 0 to ", kLargestIndexOfJob),
                           internal::shown(Json(member.first)));
    }
    addresses.emplace(*index, at.text("an address host:port as text"));
  }
  return addresses;
}

JobTasks read_job(const JsonPlace& place) {
  if (place.value().is_array()) return read_list(place);
  if (place.value().is_object()) return read_sparse(place);
  const std::string remedy = place.value().is_string()
                                 ? concat("write [", internal::shown(place.value()), "]")
                                 : std::string();
  place.fail("a list of addresses, or an object that maps indices to addresses", remedy);
}

Json addresses_by_index(const JobTasks& tasks) {
  Json object = Json::object();
  for (const auto& [index, address] : tasks.addresses()) object.set(concat(index), address);
  return object;
}

}  // namespace

ClusterSpec ClusterSpec::from_json(const Json& json, std::string_view path) {
  const JsonPlace place(json, std::string(path));
  Jobs jobs;
  for (const Json::Member& member : place.object("an object of jobs and their addresses")) {
    check_job_name(member.first, place.member(member).path());
    jobs.emplace(member.first, read_job(place.member(member)));
  }
  return ClusterSpec(std::move(jobs));
}

ClusterSpec ClusterSpec::from_cluster_def(const Json& json, std::string_view path) {
  const JsonPlace place(json, std::string(path));
  place.object("an object with the member job");
  const std::optional<JsonPlace> list = place.find("job");
  Jobs jobs;
  if (!list) return ClusterSpec();
  for (std::size_t i = 0; i < list->array("a list of jobs").size(); ++i) {
    const JsonPlace job = list->element(i);
    job.object("an object with the members name and tasks");
    const std::optional<JsonPlace> name = job.find("name"), tasks = job.find("tasks");
    if (!name) job.fail("a member 'name'");
    check_job_name(name->text("a job's name"), name->path());
    if (tasks) tasks->object("an object of addresses by index");
    if (!jobs.emplace(name->value().as_string(), tasks ? read_sparse(*tasks) : JobTasks()).second) {
      name->fail("each job once");
    }
  }
  return ClusterSpec(std::move(jobs));
}

Json ClusterSpec::to_json() const {
  Json json = Json::object();
  for (const auto& [job, tasks] : jobs_) {
    if (!tasks.is_dense()) {
      json.set(job, addresses_by_index(tasks));
      continue;
    }
    Json list = Json::array();
    for (const auto& [index, address] : tasks.addresses()) list.push_back(address);
    json.set(job, std::move(list));
  }
  return json;
}

Json ClusterSpec::as_cluster_def() const {
  Json jobs = Json::array();
  for (const auto& [job, tasks] : jobs_) {
    Json entry = Json::object();
    entry.set("name", job).set("tasks", addresses_by_index(tasks));
    jobs.push_back(std::move(entry));
  }
  return Json::object().set("job", std::move(jobs));
}

}  // namespace tutti
