// Child processes, a queue of signals, and a guard that kills processes if the launcher crashes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"

namespace tutti::launch {

/// Exit code of a process, or the signal that killed it.
struct ExitStatus {
  int code = 0;
  int signal = 0;  // 0: the process exited with `code`

  bool success() const { return code == 0 && signal == 0; }
  /// Returns true if the process was killed by a signal such as SIGKILL, and not by one that
  /// results from its own errors, such as SIGSEGV.
  bool killed_from_outside() const;
  /// Returns the exit code that a shell reports: the code, or 128 + signal.
  int shell_code() const { return signal == 0 ? code : 128 + signal; }
  /// Returns "exited with code 3" or "killed by signal 9 (SIGKILL)".
  std::string to_string() const;
  bool operator==(const ExitStatus&) const = default;
};

/// Returns "SIGKILL", or "signal 50" for a signal without a name.
std::string signal_name(int number);

/// Converts the status that waitpid() stores.
ExitStatus exit_status_of(int wait_status);

/// Splits bytes into lines, without their newlines. Splits a line that is longer than kMaxLine, so
/// that a process that never writes a newline cannot exhaust memory.
class LineBuffer {
 public:
  static constexpr std::size_t kMaxLine = 64 * 1024;
  using OnLine = std::function<void(std::string_view line)>;

  void append(std::string_view bytes, const OnLine& on_line);
  /// Passes the text after the last newline, if any, to `on_line`.
  void finish(const OnLine& on_line);

 private:
  std::string rest_;
};

/// Environment variables with their values.
using Variables = std::vector<std::pair<std::string, std::string>>;

struct ChildOptions {
  std::vector<std::string> arguments;  // program (looked up in PATH if without '/'), then arguments
  Variables environment = {};          // overrides and extends this process's environment
  std::vector<int> cores = {};         // allowed cores; empty: the cores of this process
};

/// Output stream of a process.
enum class Stream { kOutput, kError };

/// Returns the file to execute. Throws kNotFound with the reason (missing, not executable, or a
/// folder).
std::string find_program(const std::string& name);

/// A started process with pipes from its standard output and standard error; its standard input is
/// empty. The process leads its own process group. The kernel kills the process when the thread
/// that created this object ends. Not thread-safe.
class ChildProcess {
 public:
  using OnLine = std::function<void(Stream stream, std::string_view line)>;

  /// Starts the process. Throws kNotFound if the program is missing or cannot be executed, and
  /// kResourceExhausted if the system cannot create a pipe or a process.
  explicit ChildProcess(const ChildOptions& options);
  /// Kills the remaining processes of the group.
  ~ChildProcess();
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// Returns the descriptor for poll(); -1 after the end of this output.
  int fd(Stream stream) const { return fds_[static_cast<std::size_t>(stream)].get(); }

  /// Sends a signal to the whole process group; has no effect after try_wait() returned a status.
  void send(int signal_number);
  /// Passes the lines written since the last call to `on_line`. Does not wait.
  void read_lines(const OnLine& on_line);
  /// Returns true if the process is exiting or has exited. An exiting process closes its
  /// connections before try_wait() can return its status.
  bool is_ending() const;
  /// Returns true if the process has exited, even if try_wait() has not returned its status yet.
  bool has_ended() const;
  /// If the process has exited, returns its status and kills the other processes of its group. Does
  /// not wait.
  std::optional<ExitStatus> try_wait();
  /// Passes all remaining output of an exited process to `on_line`, including a last line without a
  /// newline.
  void finish_lines(const OnLine& on_line);

 private:
  void read_stream(Stream stream, std::size_t max_bytes, const OnLine& on_line);

  pid_t pid_ = -1;
  std::array<internal::FileDescriptor, 2> fds_;
  std::array<LineBuffer, 2> lines_;
  std::optional<ExitStatus> status_;
};

// The launcher's own process: signals, open files, and cleanup.

/// Opens /dev/null in place of a closed standard input, output or error. Otherwise the next file to
/// be opened would get the descriptor of the closed stream and receive its output. Must be called
/// before a program opens any file.
void open_standard_streams();

/// Raises this process's limit on open files, if necessary, to the number needed for
/// `num_processes`; child processes get the original limit. Throws kInvalidArgument, with both
/// numbers, if the hard limit is too low.
void allow_open_files_for(int num_processes);

/// Restores this process's original limit on open files; called between fork and exec.
void restore_open_files_limit();

/// Queue of signals. Blocks SIGCHLD, and SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 unless they
/// are ignored (as under nohup); take() returns the blocked signals. Ignores SIGPIPE. Must be
/// created before any thread.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue& operator=(SignalQueue&&) = delete;

  /// Returns the descriptor for poll().
  int fd() const { return fd_.get(); }
  /// Returns the pending signals, such as SIGTERM. Does not wait.
  std::vector<int> take();

 private:
  internal::FileDescriptor fd_;
  sigset_t previous_;
};

/// Reaps exited children of this process until none is left or the next one is in `own`. Does not
/// wait. Requires: no other thread waits for children.
void reap_adopted(const std::vector<pid_t>& own);

/// Kills and reaps every child of this process that is not in `own`, and the orphans that this
/// process inherits from these children.
void end_adopted(const std::vector<pid_t>& own);

/// A small process that waits for this process to end. If this process ends without destroying the
/// object (kill -9), the guard kills every watched process group. Next, the guard kills processes
/// that left their group, which it finds by the job's mark in their environment. Finally, it
/// removes the secret's file and folder. Must be created before any thread.
class Guard {
 public:
  /// `secret_folder` contains only `secret_file`. `mark`: "NAME=value", unique to this job.
  Guard(const std::string& secret_folder, const std::string& secret_file, const std::string& mark);
  ~Guard();
  Guard& operator=(Guard&&) = delete;

  pid_t pid() const { return pid_; }
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void write_pid(pid_t number);

  pid_t pid_ = -1;
  internal::FileDescriptor pipe_;
};

/// Counts out-of-memory kills in this process's control group (cgroup versions 1 and 2), or on the
/// whole machine if the control group does not report them.
class OomCounter {
 public:
  OomCounter();
  /// Returns the number of out-of-memory kills since the last call, or since construction.
  long count_new_kills();
  /// Returns "cgroup oom_kill +1" or "oom_kill +1 on this machine".
  std::string describe(long kills) const;

 private:
  std::optional<long> read() const;

  std::string file_;  // path of a file with a line "oom_kill N"
  bool of_cgroup_ = false;
  long last_ = 0;
};

}  // namespace tutti::launch
