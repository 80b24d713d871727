// A child process that reads XLA_FLAGS first.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/flags_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <sstream>

#include "core/file.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::chrono::seconds kPatience{30};

/// Everything that goes wrong with the plugin is written to `report`.
[[noreturn]] void create_and_exit(const std::function<void()>& create, int report) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGABRT, SIG_DFL);
  dup2(report, STDERR_FILENO);
  try {
    create();
  } catch (const std::exception&) {  // the parent will see it, too
  }
  _exit(0);
}

/// What the child writes until it ends; less when that takes too long.
std::string read_until_end(int report) {
  const TimePoint deadline = deadline_after(Clock::system().now(), kPatience);
  std::string text;
  for (pollfd waiting{report, POLLIN, 0};;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::system().now());
    if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return text;
    char part[4096];
    const ssize_t size = read(report, part, sizeof(part));
    if (size <= 0) return text;
    text.append(part, static_cast<std::size_t>(size));
  }
}

/// "F0000 00:00:1.2 7 parse_flags_from_env.cc:234] Unknown flag": what comes after the bracket in
/// the first line of an error (E) or the end (F).
std::string reason_in(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("] ");
    const bool is_error = line.starts_with("E0") || line.starts_with("F0");
    if (is_error && begin != line.npos) return line.substr(begin + 2);
  }
  return "it gives no reason";
}

}  // namespace

void check_xla_flags(const std::function<void()>& create) {
  const char* const flags = std::getenv("XLA_FLAGS");
  int ends[2];
  if (!flags || !*flags || pipe2(ends, O_CLOEXEC) != 0) return;
  const Descriptor report(ends[0]);
  Descriptor child_end(ends[1]);
  const pid_t child = fork();
  if (child == 0) create_and_exit(create, child_end.get());
  child_end.close();
  if (child < 0) return;
  const std::string log = read_until_end(report.get());
  kill(child, SIGKILL);  // does nothing to one that has ended
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const bool took_too_long = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (status == 0 || took_too_long) return;
  fail(ErrorCode::kInvalidArgument,
       "XLA_FLAGS: the PJRT plugin would end the process: ", reason_in(log),
       "; expected flags that it knows, got '", flags, "'; try without them");
}

}  // namespace tutti::internal
