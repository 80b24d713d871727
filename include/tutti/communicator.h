// Communicators: collectives between ranks on plain memory and on tensors, and their transports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/cluster/connect_ranks.h"     // communicators between processes
#include "tutti/cluster/key_value_stores.h"  // values that processes exchange to find each other
#include "tutti/core/executor.h"             // starts threads
#include "tutti/cross_device_ops/communicator.h"       // collectives on plain memory
#include "tutti/cross_device_ops/mpi/mpi_transport.h"  // messages sent with MPI
#include "tutti/cross_device_ops/registry.h"           // cross-device operations by name
