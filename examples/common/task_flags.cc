// Implements flags that define a task, as in the programs of the Distributed TensorFlow guide.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/task_flags.h"

#include <sstream>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"

namespace tutti::examples {
namespace {

std::vector<std::string> addresses_of(const std::string& hosts) {
  std::vector<std::string> addresses;
  std::istringstream text(hosts);
  for (std::string address; std::getline(text, address, ',');) addresses.push_back(address);
  return addresses;
}

}  // namespace

void TaskFlags::add_to(Flags& flags) {
  flags.add("--ps_hosts", ps_hosts, "addresses of the parameter servers, separated by commas");
  flags.add("--worker_hosts", worker_hosts, "addresses of the workers, separated by commas");
  flags.add("--job_name", job_name,
            "job of this task: ps or worker; default: from the environment");
  flags.add("--task_index", task_index, "index of this task in its job");
}

std::unique_ptr<ClusterResolver> TaskFlags::resolver() const {
  if (job_name.empty()) {
    if (ps_hosts.empty() && worker_hosts.empty()) return resolver_from_environment();
    fail(ErrorCode::kInvalidArgument,
         "--ps_hosts, --worker_hosts: expected --job_name as well, got none");
  }
  const ClusterSpec cluster(
      {{"ps", addresses_of(ps_hosts)}, {"worker", addresses_of(worker_hosts)}});
  StaticResolverOptions self;
  self.task_type = job_name;
  self.task_id = static_cast<int>(task_index);
  return std::make_unique<StaticResolver>(cluster, self);
}

}  // namespace tutti::examples
