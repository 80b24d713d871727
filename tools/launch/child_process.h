// A process of another program: started, heard and signalled; it does not outlive this one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/launch/exit_status.h"
#include "tools/launch/line_buffer.h"

namespace tutti::launch {

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
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// For poll() and its like; -1 after the end of that output.
  int fd(Stream stream) const { return fds_[static_cast<std::size_t>(stream)]; }

  /// Sends a signal to the whole group; nothing once the process has ended.
  void send(int signal_number);
  /// Hands out the lines that were written since the last call. Does not wait.
  void read_lines(const OnLine& on_line);
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
  std::array<int, 2> fds_{-1, -1};
  std::array<LineBuffer, 2> lines_;
  std::optional<ExitStatus> status_;
};

}  // namespace tutti::launch
