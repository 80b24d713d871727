// State of processes and threads on this machine, as /proc and signals report it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::internal {

/// Identity of a process. The PIDs of two processes are comparable if `machine` is equal. They
/// share cores and devices if `boot_id` is equal and not empty (empty: the system reports none).
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // in clock ticks since the machine booted
  std::string boot_id;
  std::string machine;
  std::string host;
  std::string unique;  // unique among all processes on all machines
};
const ProcessIdentity& this_process();

/// Number of processes according to a launcher's environment variable.
struct LaunchedCopies {
  int count = 1;
  std::string sign;  // "WORLD_SIZE=4 (torchrun)"
};
/// Returns the number of processes according to the variables set by mpirun, mpiexec, torchrun,
/// srun and Slurm; {1, ""} without such a variable. `find` looks up a variable.
LaunchedCopies launched_copies(
    const std::function<std::optional<std::string>(const char* name)>& find);

/// Returns "this process trains alone, though WORLD_SIZE=4 (torchrun) names 4 processes: ...", or
/// "" for one process.
std::string warning_of_copies(const LaunchedCopies& copies, std::string_view remedy);

struct ProcessState {
  enum class Kind { kUnknown, kRuns, kIsStopped, kIsGone };
  Kind kind = Kind::kUnknown;
  /// State letter of /proc/<pid>/stat (R, S, D, T, t, Z or X), but R or D if any thread has that
  /// state; '?' if unknown.
  char letter = '?';

  /// Returns true if a thread runs, waits for a processor, or waits in the kernel (for a disk).
  bool is_busy() const { return letter == 'R' || letter == 'D'; }
};
/// Returns the state of a process; kIsGone also if its pid now belongs to another process.
ProcessState inspect_process(std::int64_t pid, std::uint64_t start_time);

/// Returns the process's PID and command: "pid 812 (./train)".
std::string process_text(std::int64_t pid);
/// Returns process_text() of the process that listens on a TCP port of this machine, or "" if it is
/// not found.
std::string owner_of_port(int port);

}  // namespace tutti::internal

namespace tutti {

// Stack traces of this process's threads.

/// Returns the name and stack of each thread of this process, including the calling thread, with
/// one line per frame: "program(function+0x1f) [0x...]". Functions of programs linked without
/// -rdynamic have no names. Sends a signal (SIGRTMIN + 3) to each thread in turn; its handler stays
/// installed. A thread that does not answer within a second is listed without a stack. Thread-safe:
/// concurrent calls run one at a time.
std::string stacks_of_all_threads();

}  // namespace tutti
