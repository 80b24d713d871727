// The operation "mpi" as the engine of one rank's communicator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "cross_device_ops/collective_engine.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::internal {

/// The rank group.first_rank, with one local replica; every rank of the group is another process of
/// one MPI job (MPI_COMM_WORLD), in any order. Called by all of them.
///
/// Before each call the ranks compare their headers with messages over group.transport, of any kind
/// (the canonical algorithm's barrier), so MPI never sees two different calls, and a rank that does
/// not come is waited for with messages, which can be given up. The data goes by a non-blocking MPI
/// collective on the caller's memory. When a call is ended early although all ranks came, MPI gets
/// 2 s more to finish with that memory; if it does not, this process calls MPI no more. A rank that
/// leaves while they meet begins its part on a copy of its data, for those who have begun theirs.
///
/// Throws kInvalidArgument for a group that is not of one local replica per rank, without
/// transport, or that differs from it in size or rank; kUnimplemented in a build without MPI, in a
/// process that no MPI launcher started, and for ranks that share a process; kFailedPrecondition
/// after MPI_Finalize, or when the program initialised MPI without threads.
std::unique_ptr<CollectiveEngine> mpi_engine(const Group& group, TimePoint deadline);

}  // namespace tutti::internal
