// Which processes and rank a group is of.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "cross_device_ops/mpi/mpi_endpoint.h"

namespace tutti {
namespace {

using internal::MpiEndpoint;
using internal::MpiHub;

std::vector<int> processes_of(const MpiOptions& options, int num_processes) {
  std::vector<int> processes = options.processes;
  for (int p = 0; options.processes.empty() && p < num_processes; ++p) processes.push_back(p);
  for (std::size_t r = 0; r < processes.size(); ++r) {
    if (processes[r] >= 0 && processes[r] < num_processes) continue;
    fail(ErrorCode::kInvalidArgument, "mpi: rank ", r, "; expected a process of this MPI job from ",
         "0 to ", num_processes - 1, ", got ", processes[r]);
  }
  return processes;
}

int rank_of(const MpiOptions& options, const std::vector<int>& processes, int process) {
  if (options.rank) {
    const int rank = *options.rank, size = static_cast<int>(processes.size());
    if (rank >= 0 && rank < size && processes[static_cast<std::size_t>(rank)] == process) {
      return rank;
    }
    fail(ErrorCode::kInvalidArgument, "mpi: expected a rank from 0 to ", size - 1, " that is MPI ",
         "process ", process, ", got ", rank);
  }
  if (std::ranges::count(processes, process) != 1) {
    fail(ErrorCode::kInvalidArgument, "mpi: MPI process ", process, " calls; expected it once ",
         "among the processes of the ranks, got ", join(processes), "; try MpiOptions::rank");
  }
  return static_cast<int>(std::ranges::find(processes, process) - processes.begin());
}

}  // namespace

std::shared_ptr<Transport> mpi_transport(const MpiOptions& options) {
  std::shared_ptr<MpiHub> hub = MpiHub::get();
  hub->runtime().require_usable();
  const std::vector<int> processes = processes_of(options, hub->runtime().size());
  const int rank = rank_of(options, processes, hub->runtime().rank());
  // Equal on all ranks: the processes of an MPI job are of one build.
  const std::uint64_t group = std::hash<std::string>()(concat(options.name, ":", join(processes)));
  internal::MpiRuntime& runtime = hub->runtime();
  auto endpoint = std::make_shared<MpiEndpoint>(std::move(hub), processes, rank, group);
  endpoint->connect(options.timeout);
  runtime.before_finalize([open = std::weak_ptr(endpoint)] {
    if (const auto still_open = open.lock()) still_open->close();
  });
  // Works may outlive the transport, whose end says goodbye.
  Transport* const transport = endpoint.get();
  return {transport, [endpoint](Transport*) { endpoint->close(); }};
}

}  // namespace tutti
