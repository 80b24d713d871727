// Signals of this process through a signalfd.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/signals.h"

#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "tutti/core/error.h"

namespace tutti::launch {

SignalQueue::SignalQueue() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    struct sigaction action = {};
    ::sigaction(number, nullptr, &action);
    const bool ignored = action.sa_handler == SIG_IGN;
    if (number == SIGCHLD && ignored) ::signal(SIGCHLD, SIG_DFL);  // else there is no exit status
    if (!ignored || number == SIGCHLD) ::sigaddset(&wanted, number);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::sigprocmask(SIG_BLOCK, &wanted, &previous_);
  fd_ = ::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd_ < 0) fail(ErrorCode::kUnavailable, "run: no signalfd: ", ::strerror(errno));
}

SignalQueue::~SignalQueue() {
  ::close(fd_);
  ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> numbers;
  signalfd_siginfo info = {};
  while (::read(fd_, &info, sizeof(info)) == sizeof(info)) {
    numbers.push_back(static_cast<int>(info.ssi_signo));
  }
  return numbers;
}

}  // namespace tutti::launch
