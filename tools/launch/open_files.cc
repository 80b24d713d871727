// The launcher's own files: the standard ones open, and room for a pipe per output of each process.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/open_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

// Two pipes and a connection to the control server, which may be made anew; and a port at first.
constexpr rlim_t kPerProcess = 4;
constexpr rlim_t kForTheRest = 64;

rlimit limit_before = {0, 0};
bool is_raised = false;

}  // namespace

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // The lowest free number is this one.
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  }
}

void allow_open_files_for(int num_processes) {
  const rlim_t needed = kPerProcess * static_cast<rlim_t>(num_processes) + kForTheRest;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  rlimit raised = limit;
  raised.rlim_cur = std::min(needed, limit.rlim_max);
  if (raised.rlim_cur < needed || ::setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    fail(ErrorCode::kInvalidArgument, "run: ", num_processes, " processes: expected a limit of ",
         needed, " open files, got ", limit.rlim_max, "; try a higher hard limit (ulimit -Hn ",
         needed, "), or fewer processes");
  }
  limit_before = limit;
  is_raised = true;
}

void restore_open_files_limit() {
  if (is_raised) ::setrlimit(RLIMIT_NOFILE, &limit_before);
}

}  // namespace tutti::launch
