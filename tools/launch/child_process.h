// Processes of another program, started, heard and signalled; the launcher as a process.
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

/// The end of a process: a code, or the signal that killed it.
struct ExitStatus {
  int code = 0;
  int signal = 0;  // 0: it ended by itself, with `code`

  bool success() const { return code == 0 && signal == 0; }
  /// Returns true if a signal killed it that is no consequence of its own error, such as SIGKILL.
  bool killed_from_outside() const;
  /// What a shell reports: the code, or 128 + signal.
  int shell_code() const { return signal == 0 ? code : 128 + signal; }
  /// "exited with code 3", "killed by signal 9 (SIGKILL)".
  std::string to_string() const;
  bool operator==(const ExitStatus&) const = default;
};

/// "SIGKILL"; "signal 50" for one without a name.
std::string signal_name(int number);

/// From what waitpid() stored.
ExitStatus exit_status_of(int wait_status);

/// Collects bytes and hands out whole lines, without the newline. A line longer than kMaxLine is
/// handed out in pieces: a process that never writes a newline cannot fill the memory.
class LineBuffer {
 public:
  static constexpr std::size_t kMaxLine = 64 * 1024;
  using OnLine = std::function<void(std::string_view line)>;

  void append(std::string_view bytes, const OnLine& on_line);
  /// Hands out what stands behind the last newline, if anything does.
  void finish(const OnLine& on_line);

 private:
  std::string rest_;
};

/// Names with values, as of an environment.
using Variables = std::vector<std::pair<std::string, std::string>>;

struct ChildOptions {
  std::vector<std::string> arguments;  // the program first; without '/', it is looked up in PATH
  Variables environment = {};          // in addition to that of this process
  std::vector<int> cores = {};         // where it may run; empty: wherever this process may
};

/// Which of its outputs a process wrote to.
enum class Stream { kOutput, kError };

/// The file that would be executed. Throws kNotFound naming what is wrong with it: not there, not
/// executable, a folder.
std::string find_program(const std::string& name);

/// A started process with pipes from its standard output and standard error; its standard input is
/// empty. It leads a process group of its own, and the kernel kills it when the thread that made
/// this object ends. Threads: one.
class ChildProcess {
 public:
  using OnLine = std::function<void(Stream stream, std::string_view line)>;

  /// Throws kNotFound (no such program) or kUnavailable (the system refuses).
  explicit ChildProcess(const ChildOptions& options);
  /// Kills what still runs of the group.
  ~ChildProcess();
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// For poll() and its like; -1 after the end of that output.
  int fd(Stream stream) const { return fds_[static_cast<std::size_t>(stream)].get(); }

  /// Sends a signal to the whole group; nothing once the process has ended.
  void send(int signal_number);
  /// Hands out the lines that were written since the last call. Does not wait.
  void read_lines(const OnLine& on_line);
  /// Whether the system is taking it down, or has: the connections of such a process close before
  /// it can be waited for.
  bool is_ending() const;
  /// Whether it has ended, also before try_wait() has said so.
  bool has_ended() const;
  /// The end of the process, once it has ended. Then the rest of its group is killed. Does not
  /// wait.
  std::optional<ExitStatus> try_wait();
  /// Hands out everything that an ended process has written, the last line without newline too.
  void finish_lines(const OnLine& on_line);

 private:
  void read_stream(Stream stream, std::size_t max_bytes, const OnLine& on_line);

  pid_t pid_ = -1;
  std::array<internal::FileDescriptor, 2> fds_;
  std::array<LineBuffer, 2> lines_;
  std::optional<ExitStatus> status_;
};

// The launcher as a process of its own: signals, open files, and nothing that remains.

/// Opens /dev/null where standard input, output or error were closed: what is opened next would
/// take their numbers, and get the lines that are meant for them. First thing in a program.
void open_standard_streams();

/// Raises this process's limit of open files, if need be, to what `num_processes` take; the
/// processes themselves start with the limit from before. Throws kInvalidArgument naming both
/// numbers where the user may not have so many.
void allow_open_files_for(int num_processes);

/// For the process between fork and exec: sets the limit back.
void restore_open_files_limit();

/// While it lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGCHLD (of them those that are
/// not ignored: nohup) do not interrupt, but are taken from here; SIGPIPE is ignored. Make it
/// before any thread is started.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue& operator=(SignalQueue&&) = delete;

  /// For poll().
  int fd() const { return fd_.get(); }
  /// Numbers of the signals that came. Does not wait.
  std::vector<int> take();

 private:
  internal::FileDescriptor fd_;
  sigset_t previous_;
};

/// Takes leave of children of this process that have ended, except those of `own`. Call it when no
/// other child can have ended. Does not wait.
void reap_adopted(const std::vector<pid_t>& own);

/// Kills and reaps every child of this process that is not in `own`, and what comes to this process
/// when they end.
void end_adopted(const std::vector<pid_t>& own);

/// A small process beside this one, waiting for its end. When this process ends without destroying
/// the object (kill -9), the guard kills every watched process group, then whatever else was
/// started with the job's mark in its environment (processes of the job that left their group), and
/// removes the file and its folder. Make it before any thread is started.
class Guard {
 public:
  /// `secret_folder` holds one file, `secret_file`. `mark`: "NAME=value", of this job alone.
  Guard(const std::string& secret_folder, const std::string& secret_file, const std::string& mark);
  ~Guard();
  Guard& operator=(Guard&&) = delete;

  pid_t pid() const { return pid_; }
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void tell(pid_t number);

  pid_t pid_ = -1;
  internal::FileDescriptor pipe_;
};

/// Counts kills in the control group of this process (versions 1 and 2), or on the whole machine
/// where groups do not tell.
class OomCounter {
 public:
  OomCounter();
  /// Kills since the last call, or since construction.
  long take_new_kills();
  /// "cgroup oom_kill +1", or "oom_kill +1 on this machine".
  std::string describe(long kills) const;

 private:
  std::optional<long> read() const;

  std::string file_;  // with a line "oom_kill N"; empty: none
  bool of_cgroup_ = false;
  long last_ = 0;
};

}  // namespace tutti::launch
