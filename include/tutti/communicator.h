// Communicators: collectives of ranks on plain memory and on tensors, and their transports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/connect_ranks.h"     // communicators of processes
#include "tutti/cluster/key_value_stores.h"  // values that processes exchange to find each other
#include "tutti/core/executor.h"             // threads
#include "tutti/cross_device_ops/communicator.h"       // collectives of ranks on plain memory
#include "tutti/cross_device_ops/mpi/mpi_transport.h"  // messages through MPI
#include "tutti/cross_device_ops/registry.h"           // choosing and adding operations
