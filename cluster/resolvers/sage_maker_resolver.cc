// The cluster of a SageMaker training job.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/sage_maker_resolver.h"

#include <algorithm>

#include "cluster/json_place.h"
#include "cluster/resolvers/found_tasks.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

std::vector<std::string> read_hosts(const std::string& text) {
  const Json json = internal::parse_json(text, "SM_HOSTS", "a list of host names");
  const internal::JsonPlace place(json, "SM_HOSTS");
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < place.array("a list of host names").size(); ++i) {
    hosts.push_back(place.element(i).text("a host's name"));
  }
  std::ranges::sort(hosts);
  return hosts;
}

}  // namespace

SageMakerResolver::SageMakerResolver(int port, const ResolverOverrides& overrides,
                                     const Environment& environment) {
  constexpr const char* kWho = "Not a SageMaker Environment";
  constexpr const char* kRemedy = "expected SM_HOSTS and SM_CURRENT_HOST";
  if (port < 1 || port > 65535) internal::fail_place("port", "1 to 65535", concat(port));
  const std::vector<std::string> hosts = read_hosts(environment.at(kWho, "SM_HOSTS", kRemedy));
  const std::string& current = environment.at(kWho, "SM_CURRENT_HOST", kRemedy);
  const auto own = std::ranges::find(hosts, current);
  if (own != hosts.end()) {
    std::vector<std::string> addresses;
    for (const std::string& host : hosts) addresses.push_back(concat(host, ":", port));
    cluster_ = internal::checked_addresses(ClusterSpec({{"worker", addresses}}), "SM_HOSTS");
    apply({"worker", static_cast<int>(own - hosts.begin()), {}, {}});
  }
  apply(overrides);
}

std::string SageMakerResolver::find_master(const MasterQuery& query) const {
  if (cluster_.total_tasks() <= 1) return {};
  return ClusterResolver::find_master(query);
}

}  // namespace tutti
