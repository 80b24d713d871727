// MPI as a transport between ranks, and queries about MPI in this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cross_device_ops/rank_durations.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// Returns true if the environment shows that an MPI launcher (mpirun, srun with its MPI plugin)
/// started this process. Thread-safe.
bool is_started_by_mpi();

/// Returns the MPI library of this program ("Open MPI v4.1.4"); empty in a build without MPI. Does
/// not initialise MPI. Thread-safe.
std::string mpi_library();

struct MpiOptions {
  /// For each rank, its process in MPI_COMM_WORLD; empty: all processes, in order. A process may
  /// have several ranks.
  std::vector<int> processes = {};
  /// This rank; needed only if this process has several ranks.
  std::optional<int> rank = std::nullopt;
  /// Name of the group; must differ between groups that threads create concurrently.
  std::string name = "mpi";
  /// Timeout for all ranks to join.
  Duration timeout = durations::kJoinTimeout;
};

/// Connects this rank to all other ranks. Collective: all ranks call it; calls for groups with the
/// same name must be made in the same order on all ranks. The first use of MPI in a process
/// initialises it unless the program has done so, and all processes of the job wait for each other
/// in that initialisation (docs/mpi.md). Throws kDeadlineExceeded naming the ranks that did not
/// join, kInvalidArgument for processes and ranks out of range, kUnimplemented in a build without
/// MPI and in a process that no MPI launcher started, and kFailedPrecondition after MPI_Finalize
/// and if the program initialised MPI for one thread.
///
/// The transport has no thread: a thread that waits for a Work object (or tests it) moves the bytes
/// of all Work objects. Bodies of up to 16 KiB are sent at once and buffered by the receiver;
/// longer bodies, of any size, wait for their recv() and are then sent in chunks. MPI accesses only
/// copies, so destroying a Work object never waits for a peer. When a rank destroys its transport,
/// the other ranks get kUnavailable after its last message. If a process ends without finalising
/// MPI, its launcher, not the transport, detects the failure.
std::shared_ptr<Transport> mpi_transport(const MpiOptions& options = {});

}  // namespace tutti
