// Signals of this process as events of a loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <vector>

namespace tutti::launch {

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

}  // namespace tutti::launch
