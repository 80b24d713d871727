// Collectives of ranks, on plain memory and on tensors, and what carries them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/connect_ranks.h"               // processes of a launcher, and any others
#include "tutti/cluster/key_value_stores.h"            // how processes find each other
#include "tutti/core/executor.h"                       // threads
#include "tutti/cross_device_ops/communicator.h"       // collectives of ranks on plain memory
#include "tutti/cross_device_ops/mpi/mpi_transport.h"  // messages between processes of an MPI job
#include "tutti/cross_device_ops/registry.h"           // choosing and adding operations
