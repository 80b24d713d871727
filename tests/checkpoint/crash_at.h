// Ends a process that saves before a call that changes a file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "tests/support/file_faults.h"

namespace tutti::crash_points {

struct Crash {
  bool finished = false;  // the call was never reached
  int num_saved = 0;      // saves that returned
};

/// Calls `save_all` in a child, which writes a byte to `done` after each save.
inline Crash crash_at(int call, file_faults::Action action, const std::string& folder,
                      const std::function<void(int done)>& save_all) {
  int done[2];
  if (::pipe(done) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    file_faults::arm(folder, action, call);
    save_all(done[1]);
    ::_exit(0);
  }
  ::close(done[1]);
  Crash crash;
  for (char byte; ::read(done[0], &byte, 1) == 1;) ++crash.num_saved;
  ::close(done[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  crash.finished = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(crash.finished || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  return crash;
}

}  // namespace tutti::crash_points
