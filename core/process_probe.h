// Processes of this machine: who runs, who is stopped, who has a port, where each thread is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::internal {

/// Of this process. Numbers of processes compare where `machine` is equal, and cores and devices
/// are the same where `boot_id` is (unless the system tells none: empty).
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // in the system's ticks since it started
  std::string boot_id;
  std::string machine;
  std::string host;
  std::string unique;  // differs from every other process anywhere
};
const ProcessIdentity& this_process();

/// Contents of a launcher's variable about the processes that it started.
struct LaunchedCopies {
  int count = 1;
  std::string sign;  // "WORLD_SIZE=4 (torchrun)"
};
/// Returns how many processes the variables of mpirun, srun, Slurm and torchrun name; 1 and ""
/// without any. `find` looks a variable up.
LaunchedCopies launched_copies(
    const std::function<std::optional<std::string>(const char* name)>& find);

/// Returns "this process trains alone, though WORLD_SIZE=4 (torchrun) names 4 processes: ...", or
/// "" for one process.
std::string warning_of_copies(const LaunchedCopies& copies, std::string_view remedy);

struct ProcessState {
  enum class Kind { kUnknown, kRuns, kIsStopped, kIsGone };
  Kind kind = Kind::kUnknown;
  char letter = '?';  // of /proc/<pid>/stat: R, S, D, T, t, Z, X; R or D where a thread is

  /// Returns true if a thread runs, waits for a processor, or waits in the system (for a disk).
  bool is_busy() const { return letter == 'R' || letter == 'D'; }
};
/// kIsGone also when another process has the number by now.
ProcessState look_at_process(std::int64_t pid, std::uint64_t start_time);

/// "pid 812 (./train)".
std::string process_text(std::int64_t pid);
/// The same of the process that listens at a TCP port of this machine; ""
/// when the system does not tell.
std::string owner_of_port(int port);

}  // namespace tutti::internal

namespace tutti {

// Where each thread of the process stands.

/// Name and stack of each thread of this process, the calling one too, a line per frame
/// ("program(function+0x1f) [0x...]": functions of programs linked without -rdynamic have no
/// names). Threads are asked one after the other, by a signal (SIGRTMIN + 3) whose handler is
/// installed for good; one that does not answer within a second is named without a stack. Threads:
/// any; calls take turns.
std::string stacks_of_all_threads();

}  // namespace tutti
