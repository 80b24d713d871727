// Cluster specifications as JSON, each mistake with its path.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cluster/json_place.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using internal::JsonPlace;

// tf has no limit; nobody has a million processes, and a list of them would be made for each job.
constexpr int kLargestIndexOfJob = 999'999;

bool is_job_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
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
  place.fail("a list of addresses, or an object of them by index", remedy);
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
    if (!name) job.fail("a member name");
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
