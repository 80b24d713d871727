// A program of the tests as a process of its own, with pipes to its input and from its output.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::testing {

/// Killed when destroyed. Not thread-safe.
class LineProcess {
 public:
  /// `words`: the path of the program and its arguments.
  explicit LineProcess(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::array<int, 2> out{}, in{};
    if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(in.data(), O_CLOEXEC) != 0) {
      throw Error(ErrorCode::kUnavailable, "no pipe");
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    const int error =
        ::posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    ::close(in[0]);
    output_ = ::fdopen(out[0], "r");
    input_ = ::fdopen(in[1], "w");
    if (error != 0) throw Error(ErrorCode::kUnavailable, "cannot start " + words[0]);
  }
  ~LineProcess() {
    if (pid_ != 0) ::kill(pid_, SIGKILL);
    (void)exit_code();
    std::fclose(output_);
    std::fclose(input_);
  }
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  void signal(int number) { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  void tell(const std::string& line) {
    std::fputs((line + "\n").c_str(), input_);
    std::fflush(input_);
  }
  /// Returns the next line; "end" after the last one.
  std::string line() {
    std::array<char, 4096> text{};
    if (!std::fgets(text.data(), text.size(), output_)) return "end";
    std::string line = text.data();
    if (!line.empty() && line.back() == '\n') line.pop_back();
    return line;
  }
  /// Returns the next line that begins with `begin`; "end" if there is none.
  std::string line_with(const std::string& begin) {
    for (;;) {
      std::string text = line();
      if (text.starts_with(begin) || text == "end") return text;
    }
  }
  /// Waits for the end. Returns the exit code, or the signal that killed it as a negative number.
  int exit_code() {
    if (pid_ == 0) return code_;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
  int code_ = 0;
  std::FILE* output_ = nullptr;
  std::FILE* input_ = nullptr;
};

}  // namespace tutti::testing
