// Names -> resolvers, and the choice among them that the environment suggests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// Makes a resolver from the variables of a process. Throws when they do not describe a cluster.
using ResolverFactory = std::function<std::unique_ptr<ClusterResolver>(const Environment&)>;

/// Registration is an explicit call. Throws kAlreadyExists for a name taken twice. Any thread.
void register_cluster_resolver(const std::string& name, ResolverFactory factory);
/// auto, tf_config, slurm, mpi, kubernetes, sagemaker, local, then what was registered.
std::vector<std::string> registered_cluster_resolvers();
/// Throws kNotFound listing the names, and what the resolver throws.
std::unique_ptr<ClusterResolver> make_cluster_resolver(
    std::string_view name, const Environment& environment = Environment::of_process());

/// A resolver and why it was taken.
struct ChosenResolver {
  std::unique_ptr<ClusterResolver> resolver;
  /// "TF_CONFIG: this is worker 1 of 1 chief (a:1), 3 workers (...), because TF_CONFIG is set".
  std::string reason;
};

/// Looks for, in this order: TF_CONFIG (set and not empty); a launcher of MPI; a Slurm step (srun);
/// PMI or PMIx variables without Slurm; TUTTI_KUBERNETES_JOBS in a pod; SM_HOSTS. Else: one local
/// worker. MPI's mpirun comes first since under Slurm it is srun that starts its helpers.
ChosenResolver choose_resolver(const Environment& environment = Environment::of_process());
/// choose_resolver(), with its reason in the log (unless this process is alone).
std::unique_ptr<ClusterResolver> resolver_from_environment(
    const Environment& environment = Environment::of_process());

/// Where the tasks meet when that is not the chief's address: TUTTI_CONTROL ("grpc://a:2222"), or
/// "".
std::string control_address(const Environment& environment = Environment::of_process());

}  // namespace tutti
