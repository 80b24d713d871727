// Finding and ending processes that lost their parent.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/strays.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::launch {
namespace {

/// Children of all threads of this process, as the kernel lists them.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    try {
      std::istringstream numbers(read_file(thread.path() / "children"));
      for (pid_t pid = 0; numbers >> pid;) found.push_back(pid);
    } catch (const Error&) {
      // A thread that has ended, or a kernel without these lists.
    }
  }
  return found;
}

}  // namespace

void reap_adopted(const std::vector<pid_t>& own) {
  for (;;) {
    siginfo_t info = {};
    const int error = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
    if (error != 0 || info.si_pid == 0 || std::ranges::count(own, info.si_pid) > 0) return;
    ::waitpid(info.si_pid, nullptr, 0);
  }
}

void end_adopted(const std::vector<pid_t>& own) {
  for (bool any = true; any;) {
    any = false;
    for (const pid_t pid : children()) {
      if (std::ranges::count(own, pid) > 0) continue;
      ::kill(pid, SIGKILL);
      any = ::waitpid(pid, nullptr, 0) == pid || any;
    }
  }
}

}  // namespace tutti::launch
