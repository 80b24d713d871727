// A process of another program: started, heard and signalled; it does not outlive this one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  /// For poll() and its like; -1 after the end of that output.
  int fd(Stream stream) const { return fds_[static_cast<std::size_t>(stream)]; }

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
  std::array<int, 2> fds_{-1, -1};
  std::array<LineBuffer, 2> lines_;
  std::optional<ExitStatus> status_;
};

}  // namespace tutti::launch
