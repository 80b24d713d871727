// How a process ended: names of signals, decoding of waitpid()'s number.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/exit_status.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "tutti/core/text.h"

namespace tutti::launch {

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name ? concat("SIG", name) : concat("signal ", number);
}

std::string ExitStatus::to_string() const {
  if (signal != 0) return concat("killed by signal ", signal, " (", signal_name(signal), ")");
  return concat("exited with code ", code);
}

ExitStatus exit_status_of(int wait_status) {
  ExitStatus status;
  if (WIFSIGNALED(wait_status)) {
    status.signal = WTERMSIG(wait_status);
  } else {
    status.code = WEXITSTATUS(wait_status);
  }
  return status;
}

}  // namespace tutti::launch
