// What every resolver asks of the addresses it has found.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/checked_addresses.h"

#include <map>
#include <string_view>

#include "tutti/cluster/address.h"
#include "tutti/cluster/json_place.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// host:port; each address once in the whole cluster.
class AddressChecker {
 public:
  void check(std::string_view address, const std::string& path) {
    if (const auto problem = find_address_problem(address)) {
      fail_place(path, problem->expected, shown(Json(address)), problem->remedy);
    }
    const auto [known, is_new] = paths_.emplace(lower(address), path);
    if (is_new) return;
    fail_place(path, "an address that no other task has",
               concat(shown(Json(address)), ", which is also ", known->second),
               "give each task a port of its own");
  }

 private:
  std::map<std::string, std::string> paths_;  // by address
};

}  // namespace

const ClusterSpec& checked_addresses(const ClusterSpec& cluster, const std::string& path) {
  AddressChecker checker;
  for (const auto& [job, tasks] : cluster.as_dict()) {
    const std::string at = member_path(path, job);
    for (const auto& [index, address] : tasks.addresses()) {
      checker.check(address, element_path(at, static_cast<std::size_t>(index)));
    }
    if ((job == "chief" || job == "evaluator") && tasks.addresses().size() > 1) {
      fail_place(at, concat("at most one ", job), concat(tasks.addresses().size(), " addresses"));
    }
  }
  return cluster;
}

}  // namespace tutti::internal
