// Threads, behind an interface: nothing outside core/ starts one by itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace tutti {

/// A started thread. The destructor joins.
class Thread {
 public:
  virtual ~Thread() = default;
  virtual void join() = 0;
};

/// Starts threads. Threads: any thread may call start().
class Executor {
 public:
  virtual ~Executor() = default;

  /// Starts a thread that is shown as `name` (at most 15 characters) by debuggers. `body` must not
  /// throw: an exception that leaves it ends the process with a message naming the thread.
  virtual std::unique_ptr<Thread> start(std::string name, std::function<void()> body) = 0;

  /// Threads of the operating system.
  static Executor& system();
};

/// Number of threads that Executor::system() has started and that have not ended yet.
int num_running_threads();

/// How many of those do not sleep in a CondVar, RunToken or Thread::join() now.
int num_awake_threads();

/// Whether a thread that Executor::system() did not start (main) sleeps in a CondVar, RunToken or
/// Thread::join() now.
bool user_thread_sleeps();

/// While it lives the calling thread counts as asleep.
class AsleepScope {
 public:
  AsleepScope();
  ~AsleepScope();
  AsleepScope(const AsleepScope&) = delete;
  AsleepScope& operator=(const AsleepScope&) = delete;
};

/// Number of hardware threads that this process may use (its CPU affinity), at least 1.
int num_hardware_threads();

}  // namespace tutti
