// Registry of cluster resolvers, and selection of a resolver from environment variables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// Creates a resolver from environment variables. Throws if they do not describe a cluster.
using ResolverFactory = std::function<std::unique_ptr<ClusterResolver>(const Environment&)>;

/// Registers a resolver. Throws kAlreadyExists if the name is taken. Thread-safe.
void register_cluster_resolver(const std::string& name, ResolverFactory factory);
/// Returns auto, tf_config, slurm, mpi, kubernetes, sagemaker, local, then the registered names.
std::vector<std::string> registered_cluster_resolvers();
/// Creates the resolver with this name. Throws kNotFound, listing the known names, if the name is
/// unknown, and the resolver's own errors.
std::unique_ptr<ClusterResolver> make_cluster_resolver(
    std::string_view name, const Environment& environment = Environment::of_process());

/// A resolver and the reason why it was chosen.
struct ChosenResolver {
  std::unique_ptr<ClusterResolver> resolver;
  /// Text such as "TF_CONFIG: this is worker 1 of 1 chief (a:1), 3 workers (...), because TF_CONFIG
  /// is set".
  std::string reason;
};

/// Chooses the resolver for the first of these that is present in the environment: TF_CONFIG (not
/// empty); an MPI launcher; a Slurm step (srun); PMI or PMIx variables without Slurm;
/// TUTTI_KUBERNETES_JOBS; SM_HOSTS. If none is set, returns a resolver for a single local worker.
/// MPI precedes Slurm, because under Slurm, mpirun starts its helper processes with srun.
ChosenResolver choose_resolver(const Environment& environment = Environment::of_process());
/// Same as choose_resolver(), but logs the reason for the choice, unless this process is alone.
std::unique_ptr<ClusterResolver> resolver_from_environment(
    const Environment& environment = Environment::of_process());

/// Returns TUTTI_CONTROL ("grpc://a:2222"), the address of a control server that tasks join instead
/// of the chief's; "" if it is not set.
std::string control_address(const Environment& environment = Environment::of_process());

}  // namespace tutti
