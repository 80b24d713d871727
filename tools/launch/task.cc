// The tasks of a job and their TF_CONFIG.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/task.h"

#include "tutti/core/error.h"
#include "tutti/core/json.h"

namespace tutti::launch {

std::string Task::name() const { return concat(type, "-", index); }

std::vector<Task> make_tasks(const TaskCounts& counts, const std::vector<std::string>& addresses) {
  TUTTI_CHECK(static_cast<int>(addresses.size()) == counts.total(), addresses.size(), " addresses");
  std::vector<Task> tasks;
  const auto add = [&](const char* type, int count) {
    for (int index = 0; index < count; ++index) {
      tasks.push_back({type, index, addresses[tasks.size()]});
    }
  };
  add("chief", counts.chiefs);
  add("worker", counts.workers);
  add("ps", counts.ps);
  return tasks;
}

std::string tf_config(const std::vector<Task>& tasks, const Task& self) {
  Json cluster = Json::object();
  for (const Task& task : tasks) {
    Json addresses = Json::array();
    if (const Json* const earlier = cluster.find(task.type)) addresses = *earlier;
    addresses.push_back(task.address);
    cluster.set(task.type, std::move(addresses));
  }
  Json own = Json::object();
  own.set("type", self.type);
  own.set("index", self.index);
  Json config = Json::object();
  config.set("cluster", std::move(cluster));
  config.set("task", std::move(own));
  return config.dump();
}

}  // namespace tutti::launch
