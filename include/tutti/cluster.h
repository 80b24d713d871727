// Cluster resolvers, and the key-value stores of a cluster.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/cluster_resolver.h"               // clusters of the program, unions
#include "tutti/cluster/key_value_stores.h"               // how processes find each other
#include "tutti/cluster/multi_worker_util.h"              // who is chief, who trains
#include "tutti/cluster/resolver_registry.h"              // resolvers by name, or by environment
#include "tutti/cluster/resolvers/kubernetes_resolver.h"  // pods
#include "tutti/cluster/resolvers/launcher_resolvers.h"   // MPI jobs, SageMaker jobs
#include "tutti/cluster/resolvers/slurm_resolver.h"       // tasks of a Slurm job
#include "tutti/cluster/resolvers/tf_config_resolver.h"   // a cluster as TF_CONFIG describes it
#include "tutti/strategy/recovery.h"                      // several workers save and restore
