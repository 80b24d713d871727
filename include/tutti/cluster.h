// Cluster resolvers, and the key-value stores of a cluster.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/cluster_resolver.h"   // StaticResolver, UnionResolver
#include "tutti/cluster/key_value_stores.h"   // values that processes exchange to find each other
#include "tutti/cluster/multi_worker_util.h"  // chief, workers and ranks of tasks
#include "tutti/cluster/resolver_registry.h"  // selects a resolver by name or environment
#include "tutti/cluster/resolvers/kubernetes_resolver.h"  // Kubernetes pods
#include "tutti/cluster/resolvers/launcher_resolvers.h"   // MPI jobs, SageMaker jobs
#include "tutti/cluster/resolvers/slurm_resolver.h"       // tasks of a Slurm job
#include "tutti/cluster/resolvers/tf_config_resolver.h"   // clusters from TF_CONFIG
#include "tutti/strategy/recovery.h"                      // recovery after a worker dies
