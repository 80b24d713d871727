// Cluster resolvers, and the key-value stores of a cluster.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/cluster_resolver.h"               // a cluster written in the program
#include "tutti/cluster/cluster_resolver.h"               // several as one
#include "tutti/cluster/file_key_value_store.h"           // how processes find each other
#include "tutti/cluster/multi_worker_util.h"              // who is chief, who trains
#include "tutti/cluster/resolver_registry.h"              // resolvers by name, or by environment
#include "tutti/cluster/resolvers/kubernetes_resolver.h"  // pods
#include "tutti/cluster/resolvers/mpi_resolver.h"         // ranks of an MPI job
#include "tutti/cluster/resolvers/sage_maker_resolver.h"  // hosts of a SageMaker job
#include "tutti/cluster/resolvers/slurm_resolver.h"       // tasks of a Slurm job
#include "tutti/cluster/resolvers/tf_config_resolver.h"   // a cluster as TF_CONFIG describes it
#include "tutti/strategy/recovery.h"                      // several workers save and restore
