// Implements the registry of resolvers and the selection of one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/resolver_registry.h"

#include <algorithm>
#include <utility>

#include "core/names.h"
#include "core/process_probe.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolvers/kubernetes_resolver.h"
#include "tutti/cluster/resolvers/launcher_resolvers.h"
#include "tutti/cluster/resolvers/slurm_resolver.h"
#include "tutti/cluster/resolvers/tf_config_resolver.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

using Entry = std::pair<std::string, ResolverFactory>;

template <class Resolver, class... Arguments>
ResolverFactory factory_of(Arguments... arguments) {
  return [=](const Environment& e) { return std::make_unique<Resolver>(arguments..., e); };
}

std::unique_ptr<ClusterResolver> make_local(const Environment&) {
  return std::make_unique<StaticResolver>(
      ClusterSpec(), StaticResolverOptions{.task_type = "worker", .task_id = 0, .name = "local"});
}

std::vector<Entry> builtin_resolvers() {
  return {{"auto", [](const Environment& e) { return choose_resolver(e).resolver; }},
          {"tf_config", factory_of<TfConfigResolver>(ResolverOverrides{})},
          {"slurm", factory_of<SlurmResolver>(SlurmResolverOptions{})},
          {"mpi", factory_of<MpiResolver>(MpiResolverOptions{})},
          {"kubernetes", factory_of<KubernetesResolver>(KubernetesResolverOptions{})},
          {"sagemaker", factory_of<SageMakerResolver>(2223, ResolverOverrides{})},
          {"local", make_local}};
}

struct Registry {
  Mutex mutex;
  std::vector<Entry> entries TUTTI_GUARDED_BY(mutex) = builtin_resolvers();
};

Registry& registry() {
  static Registry instance;
  return instance;
}

/// Name of the chosen resolver, and the reason for the choice.
struct Choice {
  const char* name;
  std::string sign;
};

bool has_text(const Environment& environment, std::string_view name) {
  const std::optional<std::string> text = environment.find(name);
  return text && text->find_first_not_of(" \t\r\n") != text->npos;
}

Choice choose(const Environment& environment) {
  const struct {
    const char* variable;
    const char* name;
  } kSigns[] = {
      {"TF_CONFIG", "tf_config"},
      {"OMPI_COMM_WORLD_SIZE", "mpi"},
      {"MPI_LOCALNRANKS", "mpi"},  // MPICH's mpiexec; srun sets only PMI_RANK
      {"SLURM_STEP_TASKS_PER_NODE", "slurm"},
      {"PMI_RANK", "mpi"},
      {"PMIX_RANK", "mpi"},
      {"TUTTI_KUBERNETES_JOBS", "kubernetes"},
      {"SM_HOSTS", "sagemaker"},
  };
  for (const auto& sign : kSigns) {
    if (has_text(environment, sign.variable)) {
      return {sign.name, concat("because ", sign.variable, " is set")};
    }
  }
  return {"local", "because no variable names a cluster"};
}

/// Warns if several copies of this program were started by a launcher whose environment variables
/// contain no addresses.
void warn_of_copies(const Environment& environment) {
  const auto copies =
      internal::launched_copies([&](const char* name) { return environment.find(name); });
  const std::string warning =
      internal::warning_of_copies(copies, "tutti run, mpirun or srun, or TF_CONFIG");
  if (!warning.empty()) log_warning_once(warning);
}

}  // namespace

void register_cluster_resolver(const std::string& name, ResolverFactory factory) {
  internal::require(!name.empty(), "register_cluster_resolver: expected a name, got none");
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  if (std::ranges::find(all.entries, name, &Entry::first) != all.entries.end()) {
    fail(ErrorCode::kAlreadyExists, "register_cluster_resolver: '", name,
         "' is already registered");
  }
  all.entries.emplace_back(name, std::move(factory));
}

std::vector<std::string> registered_cluster_resolvers() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  return internal::names_of(all.entries, &Entry::first);
}

std::unique_ptr<ClusterResolver> make_cluster_resolver(std::string_view name,
                                                       const Environment& environment) {
  ResolverFactory factory;
  {
    Registry& all = registry();
    const MutexLock lock(all.mutex);
    const auto entry = std::ranges::find(all.entries, name, &Entry::first);
    if (entry == all.entries.end()) {
      fail(ErrorCode::kNotFound, "make_cluster_resolver: there is no resolver '", name,
           "'; expected one of ",
           internal::choices(internal::names_of(all.entries, &Entry::first), name));
    }
    factory = entry->second;
  }
  return factory(environment);
}

ChosenResolver choose_resolver(const Environment& environment) {
  const Choice choice = choose(environment);
  std::unique_ptr<ClusterResolver> resolver = make_cluster_resolver(choice.name, environment);
  std::string reason = concat(resolver->to_string(), ", ", choice.sign);
  return {std::move(resolver), std::move(reason)};
}

std::unique_ptr<ClusterResolver> resolver_from_environment(const Environment& environment) {
  ChosenResolver chosen = choose_resolver(environment);
  const bool is_alone = chosen.resolver->cluster_spec().empty();
  log(is_alone ? LogLevel::kDebug : LogLevel::kInfo, concat("cluster: ", chosen.reason));
  if (is_alone) warn_of_copies(environment);
  for (const std::string& doubt : doubts_about(*chosen.resolver)) log_warning(doubt);
  return std::move(chosen.resolver);
}

std::string control_address(const Environment& environment) {
  return environment.find("TUTTI_CONTROL").value_or("");
}

}  // namespace tutti
