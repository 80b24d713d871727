// MPI for programs: whether it is there, and messages between the processes of a job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cross_device_ops/rank_durations.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// Whether a launcher that knows MPI (mpirun, srun with its MPI plugin) has started this process,
/// by the variables that it sets. Any thread.
bool is_started_by_mpi();

/// The library that this program runs with ("Open MPI v4.1.4"); empty in a build without MPI. Does
/// not initialise it. Any thread.
std::string mpi_library();

struct MpiOptions {
  /// The process of MPI_COMM_WORLD that each rank is; empty: all of them, in their order. A process
  /// may be several ranks.
  std::vector<int> processes = {};
  /// Which of them this one is; needed only where this process is several.
  std::optional<int> rank = std::nullopt;
  /// Groups that are made at once by several threads of a process need different ones.
  std::string name = "mpi";
  /// For finding all ranks.
  Duration timeout = durations::kJoinTimeout;
};

/// Connects this rank with all others, who call it too, groups of one name in the same order. The
/// first use of MPI in a process initialises it, unless the program has, and all processes of the
/// job wait for each other there (docs/mpi.md). Throws kDeadlineExceeded naming the ranks that did
/// not come, kInvalidArgument for processes and ranks out of range, kUnimplemented in a build
/// without MPI and in a process that no MPI launcher started, kFailedPrecondition after
/// MPI_Finalize and when the program initialised MPI for one thread.
///
/// No thread is behind it: a thread that waits for a Work (or tests it) moves the bytes of all.
/// Bodies of up to 16 KiB travel at once and are kept where they arrive; longer ones wait for their
/// recv(), and then travel in chunks, of any size in all. MPI sees copies alone: destroying a Work
/// never waits for a peer. A rank whose transport ends is kUnavailable to the others after its last
/// message; a process that ends without finalising MPI is noticed by its launcher.
std::shared_ptr<Transport> mpi_transport(const MpiOptions& options = {});

}  // namespace tutti
