// Implements the resolvers for the environment variables of MPI launchers and of SageMaker.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolvers/launcher_resolvers.h"

#include <algorithm>
#include <array>

#include "cluster/json_place.h"
#include "cluster/resolvers/found_tasks.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

/// Names of the environment variables that one family of launchers sets.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr std::array<Launcher, 3> kLaunchers{{
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"PMIx", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
}};

const Launcher& find_launcher(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (environment.has(launcher.rank)) return launcher;
  }
  fail(ErrorCode::kFailedPrecondition,
       "MPI: no launcher variable is set; expected OMPI_COMM_WORLD_RANK, PMI_RANK or "
       "PMIX_RANK; start the program with mpirun");
}

}  // namespace

MpiResolver::MpiResolver(const MpiResolverOptions& options, const Environment& environment) {
  const Launcher& launcher = find_launcher(environment);
  static_cast<void>(environment.at("MPI", launcher.size, "expected the number of ranks"));
  launcher_ = launcher.name;
  size_ = *environment.find_int(launcher.size, 1, internal::kMostTasks);
  rank_ = *environment.find_int(launcher.rank, 0, size_ - 1);
  local_size_ = environment.find_int(launcher.local_size, 1, size_);
  local_rank_ = environment.find_int(launcher.local_rank, 0, local_size_.value_or(size_) - 1);
  job_id_ = environment
                .first_of({"TUTTI_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid",
                           "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID"})
                .value_or("");
  const std::vector<std::string> unknown(static_cast<std::size_t>(size_));
  internal::FilledJobs filled = internal::fill_jobs(options.jobs, unknown, rank_, "MPI");
  cluster_ = std::move(filled.cluster);
  if (filled.own) apply({.task_type = filled.own->type, .task_id = filled.own->index});
}

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
