// The launcher as a process of its own: signals, open files, and nothing that remains.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace tutti::launch {

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
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// For poll().
  int fd() const { return fd_; }
  /// Numbers of the signals that came. Does not wait.
  std::vector<int> take();

 private:
  int fd_ = -1;
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
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void tell(pid_t number);

  pid_t pid_ = -1;
  int pipe_ = -1;
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
