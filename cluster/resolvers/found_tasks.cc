// Implements validation of addresses, and assignment of numbered tasks to jobs.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/resolvers/found_tasks.h"

#include <algorithm>
#include <map>

#include "cluster/json_place.h"
#include "core/names.h"
#include "core/network_address.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

/// Problem with an address: what was expected instead, and a remedy.
struct AddressProblem {
  std::string expected, remedy;
};

std::optional<AddressProblem> find_host_problem(const AddressParts& parts) {
  constexpr const char* kExpected = "a host name or an IP address before the port";
  const std::string_view host = parts.host;
  if (parts.has_brackets) {
    if (canonical_ipv6(host).empty()) {
      return {{"an IPv6 address in the brackets", "write [::1]:2222"}};
    }
  } else if (host.empty() || host.size() > 253) {
    return {{kExpected, "write host:port"}};
  } else if (!has_only_alphanumerics_and("-_.", host)) {
    return {{kExpected, "use letters, digits, '-', '_' and '.' only"}};
  }
  if (host == "0.0.0.0" || canonical_ipv6(host) == "::") {
    return {{"an address that other machines can connect to",
             "name this machine instead of all its addresses"}};
  }
  return std::nullopt;
}

/// Returns the problem with the address; nullopt if it is valid.
std::optional<AddressProblem> find_address_problem(std::string_view text) {
  constexpr const char* kExpected = "an address host:port";
  if (text.empty()) return {{kExpected, "name a host and a port"}};
  if (text.find("://") != text.npos) {
    return {{kExpected, "leave out the protocol; rpc_layer names it"}};
  }
  if (text.find(',') != text.npos) return {{kExpected, "write each address as a separate text"}};
  const auto parts = split_address(text);
  if (!parts) {
    return {
        {kExpected, text.starts_with('[') ? "write [::1]:2222" : "add the port, as in host:2222"}};
  }
  const std::string_view port = parts->port;
  if (port.find(':') != port.npos) return {{kExpected, "write an IPv6 address as [::1]:2222"}};
  if (parse_index(port, 65535).value_or(0) == 0) {
    return {{"a port from 1 to 65535 behind the colon",
             port == "0" ? "choose a port: the other tasks cannot know one that the system chooses"
                         : "write host:port, as in host:2222"}};
  }
  return find_host_problem(*parts);
}

/// Throws unless the address is host:port and unique in the cluster. `paths` maps earlier addresses
/// to their paths.
void check_address(std::string_view address, const std::string& path,
                   std::map<std::string, std::string>& paths) {
  if (const auto problem = find_address_problem(address)) {
    fail_place(path, problem->expected, shown(Json(address)), problem->remedy);
  }
  const auto [known, is_new] = paths.emplace(lower_case(address), path);
  if (is_new) return;
  fail_place(path, "an address that no other task has",
             concat(shown(Json(address)), ", which is also ", known->second),
             "give each task its own port");
}

std::string describe(const JobCounts& jobs) {
  std::vector<std::string> parts;
  for (const auto& [job, count] : jobs) parts.push_back(concat(job, "=", count));
  return join(parts, ",");
}

}  // namespace

const ClusterSpec& checked_addresses(const ClusterSpec& cluster, const std::string& path) {
  std::map<std::string, std::string> paths;  // keyed by address
  for (const auto& [job, tasks] : cluster.as_dict()) {
    const std::string at = member_path(path, job);
    for (const auto& [index, address] : tasks.addresses()) {
      check_address(address, element_path(at, static_cast<std::size_t>(index)), paths);
    }
    if ((job == "chief" || job == "evaluator") && tasks.addresses().size() > 1) {
      fail_place(at, concat("at most one ", job), concat(tasks.addresses().size(), " addresses"));
    }
  }
  return cluster;
}

JobCounts parse_job_counts(std::string_view text, std::string_view source) {
  JobCounts jobs;
  for (std::string_view rest = text;;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view job = entry.substr(0, equals);
    const auto count =
        equals < entry.size() ? parse_index(entry.substr(equals + 1), kMostTasks) : std::nullopt;
    const bool is_new = std::ranges::none_of(jobs, [&](const auto& j) { return j.first == job; });
    if (job.empty() || !count || !is_new) {
      fail_place(source, "distinct jobs with their numbers of tasks, such as chief=1,worker=3",
                 shown(Json(text)));
    }
    jobs.emplace_back(job, *count);
    if (comma == rest.size()) return jobs;
    rest.remove_prefix(comma + 1);
  }
}

FilledJobs fill_jobs(JobCounts jobs, const std::vector<std::string>& addresses, int rank,
                     std::string_view who) {
  if (jobs.empty()) jobs.emplace_back("worker", static_cast<int>(addresses.size()));
  FilledJobs filled;
  ClusterSpec::Jobs tasks;
  std::size_t begin = 0;
  for (const auto& [job, count] : jobs) {
    const auto number = static_cast<std::size_t>(std::max(count, 0));
    if (count < 0 || begin + number > addresses.size()) {
      fail(ErrorCode::kInvalidArgument, who, ": expected jobs for at most ", addresses.size(),
           " tasks, got ", describe(jobs), "; start more tasks");
    }
    const auto first = addresses.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::vector<std::string> part(first, first + count);
    internal::require(tasks.emplace(job, part).second, who, ": the job '", job, "' is given twice");
    const int place = rank - static_cast<int>(begin);
    if (place >= 0 && place < count) filled.own = Task{job, place};
    begin += number;
  }
  filled.cluster = ClusterSpec(std::move(tasks));
  return filled;
}

}  // namespace tutti::internal
